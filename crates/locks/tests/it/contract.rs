//! The contract: one list of test cases that runs on every back end.
//!
//! Under virtual time a test does not really wait, so leases last ten seconds. On real servers they
//! are short.

mod admin;
mod cancel;
mod coordination;
mod core;
mod faults;
mod jobs;
mod leases;
mod multi;
mod permits;

/// Generates a module with one test per case.
macro_rules! contract {
    ($rig:ident, $start:expr, $test:meta, $($list:ident: [$($case:ident),* $(,)?]),* $(,)?) => {
        mod $rig {
            $($(
                #[$test]
                async fn $case() {
                    use super::*;
                    let rig = $start.await;
                    super::$list::$case(&rig).await;
                }
            )*)*
        }
    };
}

/// Generates the cases that every back end must pass in `make test`.
macro_rules! core_contract {
    ($rig:ident, $start:expr, $test:meta $(, $list:ident: $cases:tt)*) => {
        contract!($rig, $start, $test,
            core: [
                many_contenders_have_one_holder_at_a_time, locks_with_different_names_are_independent,
                acquire_of_held_lock_fails_at_wait_limit, try_acquire_of_held_lock_returns_none,
                repeated_release_keeps_lock_of_next_holder, dropped_guard_is_released_in_background,
                child_guard_keeps_lock_after_parent_release, run_releases_lock_when_body_ends,
                shutdown_releases_locks_and_ends_waits, shutdown_keeps_locks_of_another_manager,
                unusual_names_work_and_invalid_lengths_fail,
                waiting_tasks_acquire_in_order_with_one_attempt_each,
            ],
            leases: [lock_without_renewals_expires],
            cancel: [
                acquire_dropped_at_any_time_leaves_nothing, wait_dropped_at_any_time_leaves_nothing,
                release_undoes_attempt_dropped_at_any_await_point,
            ],
            $($list: $cases,)*
        );
    };
}

/// Generates the cases of another macro, and other cases that need no server fault and no fencing token.
macro_rules! larger_contract {
    ($contract:ident, $rig:ident, $start:expr, $test:meta $(, $list:ident: $cases:tt)*) => {
        $contract!($rig, $start, $test,
            leases: [
                renewals_keep_lock_for_many_leases, many_locks_are_renewed_in_few_requests,
                lock_lost_at_shutdown_stays_held_for_its_margin,
                client_clock_one_hour_ahead_has_no_effect,
            ],
            jobs: [
                next_leader_follows_resignation, lost_leadership_is_followed_by_another,
                shutdown_ends_candidacies,
            ],
            multi: [
                multi_lock_takes_all_or_nothing, multi_locks_in_any_order_never_deadlock,
                loss_of_one_lock_is_loss_of_all, multi_lock_dropped_at_any_time_leaves_nothing,
            ],
            admin: [
                holder_is_shown_with_token_age_and_lease, waiting_tasks_of_manager_are_counted,
                revoked_holder_learns_it_and_next_one_enters, verify_and_release_report_revocation,
                revocation_affects_only_its_holder,
            ]
            $(, $list: $cases)*
        );
    };
}

/// Generates the cases that need no server fault, no fencing token, and no server that has executed every
/// request when it is answered.
macro_rules! untokened_contract {
    ($rig:ident, $start:expr, $test:meta $(, $list:ident: $cases:tt)*) => {
        larger_contract!(core_contract, $rig, $start, $test $(, $list: $cases)*);
    };
}

/// Generates the cases of the client, which depend little on the back end.
macro_rules! untokened_client_contract {
    ($rig:ident, $start:expr, $test:meta $(, $list:ident: $cases:tt)*) => {
        contract!($rig, $start, $test,
            leases: [
                max_hold_ends_hanging_holder, max_renewals_ends_hanging_holder,
                release_after_loss_reports_it_and_keeps_next_holder, run_drops_body_when_lock_is_lost,
                extend_moves_deadline,
            ],
            multi: [multi_lock_has_one_wait_limit],
            $($list: $cases,)*
        );
    };
}

/// The same for back ends with tokens.
macro_rules! client_contract {
    ($rig:ident, $start:expr, $test:meta $(, $list:ident: $cases:tt)*) => {
        untokened_client_contract!($rig, $start, $test,
            jobs: [job_whose_runner_is_gone_waits_for_next_period]
            $(, $list: $cases)*
        );
    };
}

/// Generates the cases of back ends with tokens and with one server.
macro_rules! basic_contract {
    ($rig:ident, $start:expr, $test:meta $(, $list:ident: $cases:tt)*) => {
        untokened_contract!($rig, $start, $test,
            core: [tokens_grow_within_one_source],
            cancel: [acquire_dropped_between_polls_leaves_nothing],
            jobs: [
                job_runs_once_per_period_over_processes, job_runs_again_after_its_period,
                job_longer_than_its_period_runs_alone,
            ]
            $(, $list: $cases)*
        );
    };
}

/// Generates the cases of another macro, and those with a faulty connection to the server.
macro_rules! faulty_contract {
    ($contract:ident, $rig:ident, $start:expr, $test:meta) => {
        $contract!($rig, $start, $test,
            faults: [
                lock_deleted_on_server_is_lost_before_deadline, verify_detects_lock_deleted_on_server,
                loss_is_reported_before_next_grant, acquire_with_lost_answer_has_one_holder,
                late_request_of_revoked_lock_takes_nothing,
                acquire_dropped_after_lost_answer_leaves_nothing,
                silent_server_is_reported_as_unavailable, blocked_release_is_repeated,
            ]
        );
    };
}

/// Generates all cases for a back end with tokens and with one server.
macro_rules! full_contract {
    ($rig:ident, $start:expr, $test:meta) => {
        faulty_contract!(basic_contract, $rig, $start, $test);
    };
}

/// Generates the cases in which the server itself fails.
macro_rules! restart_contract {
    ($rig:ident, $start:expr, $test:meta) => {
        contract!($rig, $start, $test,
            faults: [restarted_server_is_used_again, ping_succeeds_only_while_server_answers]
        );
    };
}

/// Generates the cases of locks that several clients share.
macro_rules! permit_contract {
    ($rig:ident, $start:expr, $test:meta $(, $more:ident)*) => {
        contract!($rig, $start, $test,
            permits: [
                readers_share_lock_and_exclude_writer, waiting_writer_stops_new_readers,
                waiting_readers_acquire_together, permits_never_exceed_their_limit,
                claims_are_granted_in_order_of_arrival, permits_of_expired_holder_return,
                renewals_keep_permits_for_many_leases, raised_limit_admits_waiters,
                downgraded_writer_admits_readers, impossible_permits_are_refused,
                claim_dropped_at_any_time_leaves_nothing, $($more,)*
            ],
            admin: [
                readers_and_waiting_writer_are_shown, revoked_writer_admits_readers,
                revoked_writer_learns_it_from_each_request,
            ],
        );
    };
}

/// Generates the cases of leases for claims that exclude each other, but are not locks: those of
/// `make test`.
macro_rules! claim_contract {
    ($rig:ident, $start:expr, $test:meta $(, $list:ident: $cases:tt)*) => {
        contract!($rig, $start, $test,
            leases: [lock_without_renewals_expires]
            $(, $list: $cases)*
        );
    };
}

/// Generates the cases of another macro, and the other cases of leases for claims.
macro_rules! long_claim_contract {
    ($contract:ident, $rig:ident, $start:expr, $test:meta $(, $list:ident: $cases:tt)*) => {
        $contract!($rig, $start, $test,
            leases: [
                renewals_keep_lock_for_many_leases, many_locks_are_renewed_in_few_requests,
                max_hold_ends_hanging_holder, lock_lost_at_shutdown_stays_held_for_its_margin,
                max_renewals_ends_hanging_holder, release_after_loss_reports_it_and_keeps_next_holder,
                run_drops_body_when_lock_is_lost, client_clock_one_hour_ahead_has_no_effect,
                extend_moves_deadline,
            ]
            $(, $list: $cases)*
        );
    };
}

/// Generates the cases of another macro for writers, and for holders of two permits of three.
macro_rules! claim_contracts {
    ($contract:ident$(($inner:ident))?, [$writers:ident, $permits:ident], $start:expr, $($rest:tt)*) => {
        $contract!($($inner,)? $writers, Claiming::start($start, LockManager::write), $($rest)*);
        $contract!($($inner,)? $permits, Claiming::start($start, two_of_three), $($rest)*);
    };
}

/// Generates the cases of numbers, latches and barriers.
macro_rules! coordination_contract {
    ($rig:ident, $start:expr, $test:meta $(, $more:ident)*) => {
        contract!($rig, $start, $test,
            coordination: [
                changes_of_many_processes_count_once_each, exchange_succeeds_for_one_process,
                change_of_number_wakes_waiter, number_is_zero_before_first_change_and_after_removal,
                impossible_numbers_are_refused, latch_opens_for_all_at_last_arrival,
                incomplete_participants_are_reported_at_limit, barrier_lets_parties_in_and_out_together,
                party_that_died_before_does_not_open_barrier, party_that_died_inside_holds_up_none,
                gate_of_abandoned_round_lets_no_party_in, new_party_waits_behind_full_barrier,
                enter_dropped_at_any_time_leaves_nothing, shutdown_ends_waits_for_participants,
                $($more,)*
            ],
        );
    };
}

// After the macros, which they use.
mod cluster;
mod full;

use stocklock_locks::{LockBuilder, LockManager};
use stocklock_testkit::servers::Backend::{Mysql, Postgres, Sqlite};

use crate::rig::claiming::Claiming;
use crate::rig::local::LocalRig;
use crate::rig::memory::MemoryRig;
use crate::rig::redis::RedisRig;
use crate::rig::redlock::RedLockRig;
use crate::rig::sql::SqlRig;
use crate::rig::zookeeper::ZooKeeperRig;

basic_contract! { local, LocalRig::start(), tokio::test(start_paused = true) }
full_contract! { memory, MemoryRig::start(), tokio::test(start_paused = true) }
full_contract! { redis, RedisRig::start(), tokio::test }
faulty_contract! { untokened_contract, redlock, RedLockRig::start(), tokio::test }
full_contract! { zookeeper, ZooKeeperRig::start(), tokio::test }
full_contract! { postgres, SqlRig::start(Postgres), tokio::test }
full_contract! { mysql, SqlRig::start(Mysql), tokio::test }
basic_contract! { sqlite, SqlRig::start(Sqlite), tokio::test }
client_contract! { local_client, LocalRig::start(), tokio::test(start_paused = true) }
client_contract! { memory_client, MemoryRig::start(), tokio::test(start_paused = true) }
client_contract! { redis_client, RedisRig::start(), tokio::test }
restart_contract! { memory_restart, MemoryRig::start(), tokio::test(start_paused = true) }
restart_contract! { redis_restart, RedisRig::start(), tokio::test }
restart_contract! { redlock_restart, RedLockRig::start_private(), tokio::test }
restart_contract! { zookeeper_restart, ZooKeeperRig::start_private(), tokio::test }
restart_contract! { postgres_restart, SqlRig::start_private(Postgres), tokio::test }
restart_contract! { mysql_restart, SqlRig::start_private(Mysql), tokio::test }
permit_contract! {
    local_permits, LocalRig::start(), tokio::test(start_paused = true),
    dead_waiters_cost_their_patience_once, waiter_for_too_many_permits_is_refused
}
permit_contract! {
    memory_permits, MemoryRig::start(), tokio::test(start_paused = true),
    dead_waiters_cost_their_patience_once, waiter_for_too_many_permits_is_refused, late_claim_takes_nothing,
    late_claim_keeps_expired_permits_free, claim_with_lost_answer_has_one_holder
}
permit_contract! {
    redis_permits, RedisRig::start(), tokio::test, dead_waiters_cost_their_patience_once,
    waiter_for_too_many_permits_is_refused, late_claim_takes_nothing, late_claim_keeps_expired_permits_free,
    claim_with_lost_answer_has_one_holder
}
permit_contract! {
    zookeeper_permits, ZooKeeperRig::start(), tokio::test, claim_with_lost_answer_has_one_holder
}
/// Two of three permits have one holder.
fn two_of_three(manager: &LockManager, name: &str) -> LockBuilder {
    manager.permits(name, 2, 3)
}

claim_contracts! {
    long_claim_contract(claim_contract), [local_writers, local_two_of_three], LocalRig::start(),
    tokio::test(start_paused = true)
}
claim_contracts! {
    long_claim_contract(claim_contract), [memory_writers, memory_two_of_three], MemoryRig::start(),
    tokio::test(start_paused = true),
    faults: [
        loss_is_reported_before_next_grant, silent_server_is_reported_as_unavailable, blocked_release_is_repeated
    ]
}
claim_contracts! {
    claim_contract, [redis_writers, redis_two_of_three], RedisRig::start(), tokio::test,
    faults: [loss_is_reported_before_next_grant]
}
claim_contracts! {
    claim_contract, [zookeeper_writers, zookeeper_two_of_three], ZooKeeperRig::start(), tokio::test,
    faults: [loss_is_reported_before_next_grant]
}
coordination_contract! { local_coordination, LocalRig::start(), tokio::test(start_paused = true) }
coordination_contract! {
    memory_coordination, MemoryRig::start(), tokio::test(start_paused = true), repeated_change_counts_once,
    change_with_lost_answer_counts_once, silent_server_is_reported_to_participants
}
coordination_contract! {
    redis_coordination, RedisRig::start(), tokio::test, repeated_change_counts_once,
    change_with_lost_answer_counts_once, silent_server_is_reported_to_participants
}
coordination_contract! {
    zookeeper_coordination, ZooKeeperRig::start(), tokio::test, repeated_change_counts_once,
    change_with_lost_answer_counts_once, silent_server_is_reported_to_participants
}
