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
mod processes;

/// Defines a macro for each group of cases, which generates a module with one test per case.
macro_rules! groups {
    ($d:tt $($group:ident: $($list:ident[$($case:ident),* $(,)?])*;)*) => {
        $(macro_rules! $group {
            ($d start:expr, $d test:meta) => {
                mod $group {
                    use super::*;
                    $($(
                        #[$d test]
                        async fn $case() {
                            let rig = $d start.await;
                            let case = crate::contract::$list::$case(&rig);
                            crate::rig::CLAIM.scope(CLAIMED, case).await;
                        }
                    )*)*
                }
            };
        })*
    };
}

/// Generates a module for each rig, with its groups. Its cases of waits, revocations, leases, losses, silence
/// and a lost answer acquire the claim.
macro_rules! contract {
    ($test:meta; $($rig:ident = $start:expr $(, $claim:expr)? => $($group:ident)*;)*) => {
        $(mod $rig {
            use super::*;
            $(const CLAIMED: Claim = $claim;)?
            contract!(@ $start, $test, $($group)*);
        })*
    };
    (@ $start:expr, $test:meta, $($group:ident)*) => { $($group!($start, $test);)* };
}

groups! {$
    // What every back end must do.
    basics:
        core[
            many_contenders_have_one_holder_at_a_time, acquire_of_held_lock_fails_at_wait_limit,
            repeated_release_keeps_lock_of_next_holder, dropped_guard_is_released_in_background,
            child_guard_keeps_lock_after_parent_release, run_releases_lock_when_body_ends,
            shutdown_releases_locks_and_ends_waits, shutdown_keeps_locks_of_another_manager,
            unusual_names_work_and_invalid_lengths_fail,
            waiting_tasks_acquire_in_order_with_one_attempt_each,
        ]
        cancel[release_undoes_attempt_dropped_at_any_await_point];
    waits: cancel[wait_dropped_at_any_time_leaves_nothing];
    expiry: leases[lock_without_renewals_expires];
    // It needs no server fault and no fencing token.
    lasting: leases[
        renewals_keep_lock_for_many_leases, many_locks_are_renewed_in_few_requests,
        lock_lost_at_shutdown_stays_held_for_its_margin, client_clock_one_hour_ahead_has_no_effect,
    ];
    larger:
        jobs[
            next_leader_follows_resignation, lost_leadership_is_followed_by_another,
            shutdown_ends_candidacies,
        ]
        multi[
            multi_lock_takes_all_or_nothing, multi_locks_in_any_order_never_deadlock,
            loss_of_one_lock_is_loss_of_all, multi_lock_dropped_at_any_time_leaves_nothing,
        ]
        admin[
            holder_is_shown_with_token_age_and_lease, revoked_holder_learns_it_and_next_one_enters,
            revocation_affects_only_its_holder,
        ];
    revocation: admin[revoked_holder_learns_it_from_each_request];
    // Logic of the client, which depends little on the back end.
    limits: leases[
        max_hold_ends_hanging_holder, max_renewals_ends_hanging_holder,
        release_after_loss_reports_it_and_keeps_next_holder, run_drops_body_when_lock_is_lost,
        extend_moves_deadline,
    ];
    common_limit: multi[multi_lock_has_one_wait_limit];
    next_period: jobs[job_whose_runner_is_gone_waits_for_next_period];
    // With fencing tokens, and one server that has executed every request when it is answered.
    tokens: cancel[acquire_dropped_between_polls_leaves_nothing];
    periods: jobs[
        job_runs_once_per_period_over_processes, job_runs_again_after_its_period,
        job_longer_than_its_period_runs_alone,
    ];
    // With a faulty connection to the server.
    deletion: faults[
        lock_deleted_on_server_is_lost_before_deadline, verify_detects_lock_deleted_on_server,
        late_request_of_revoked_lock_takes_nothing, acquire_dropped_after_lost_answer_leaves_nothing,
    ];
    lost_answer: faults[acquire_with_lost_answer_has_one_holder];
    loss: faults[loss_is_reported_before_next_grant];
    silence: faults[silent_server_is_reported_as_unavailable, blocked_release_is_repeated];
    // With a server that fails itself.
    restart: faults[restarted_server_is_used_again, ping_succeeds_only_while_server_answers];
    // With locks that several clients share.
    shares:
        permits[
            readers_share_lock_and_exclude_writer, waiting_writer_stops_new_readers,
            waiting_readers_acquire_together, permits_never_exceed_their_limit,
            claims_are_granted_in_order_of_arrival, raised_limit_admits_waiters,
            downgraded_writer_admits_readers, impossible_permits_are_refused,
        ]
        admin[readers_and_waiting_writer_are_shown, revoked_writer_admits_readers];
    patience: permits[dead_waiters_cost_their_patience_once, waiter_for_too_many_permits_is_refused];
    late_claims: permits[late_claim_takes_nothing, late_claim_keeps_expired_permits_free];
    numbers: coordination[
        changes_of_many_processes_count_once_each, exchange_succeeds_for_one_process,
        change_of_number_wakes_waiter, number_is_zero_before_first_change_and_after_removal,
        impossible_numbers_are_refused, latch_opens_for_all_at_last_arrival,
        missing_participants_are_reported_at_limit, barrier_lets_participants_in_and_out_together,
        dead_participant_does_not_open_barrier,
        dead_participant_delays_others_only_until_its_lease_ends,
        gate_of_abandoned_round_lets_no_participant_in, new_participant_waits_behind_full_barrier,
        enter_dropped_at_any_time_leaves_nothing, shutdown_ends_waits_for_participants,
    ];
    // With a server that another process can use.
    processes: processes[killed_holder_is_replaced, stopped_holder_learns_of_its_loss];
    killed_waiter: processes[killed_first_waiter_is_skipped];
    repetition: coordination[repeated_change_counts_once];
    lost_change: coordination[change_with_lost_answer_counts_once, silent_server_is_reported_to_participants];
}

// After the macros, which they use.
mod full;

use stocklock_locks::backend::Claim;
use stocklock_testkit::servers::Backend::{Mysql, Postgres, Sqlite};

use crate::holder::LEASE;
use crate::rig::cluster::ClusterRig;
use crate::rig::memory::{LocalRig, MemoryRig};
use crate::rig::redis::RedisRig;
use crate::rig::redlock::RedLockRig;
use crate::rig::sql::SqlRig;
use crate::rig::zookeeper::ZooKeeperRig;

/// What the cases acquire, unless a rig says otherwise.
const CLAIMED: Claim = Claim::Exclusive;

/// Two of three permits have one holder.
const TWO_OF_THREE: Claim = Claim::Permits { take: 2, of: 3 };

contract! { tokio::test(start_paused = true);
    local = LocalRig::start() => basics waits expiry lasting larger revocation limits common_limit next_period
        tokens periods shares patience numbers;
    local_writers = LocalRig::start(), Claim::WRITE => waits revocation expiry lasting limits;
    local_two_of_three = LocalRig::start(), TWO_OF_THREE => expiry lasting limits;
    memory = MemoryRig::start() => basics waits expiry lasting larger revocation limits common_limit next_period
        tokens periods deletion lost_answer loss silence restart shares patience late_claims numbers repetition
        lost_change;
    memory_writers = MemoryRig::start(), Claim::WRITE => waits revocation expiry lasting limits lost_answer loss
        silence;
    memory_two_of_three = MemoryRig::start(), TWO_OF_THREE => expiry lasting limits loss silence;
}

contract! { tokio::test;
    redis = RedisRig::start() => basics waits expiry lasting larger revocation limits common_limit next_period
        tokens periods deletion lost_answer loss silence restart shares patience late_claims numbers repetition
        lost_change processes killed_waiter;
    redis_writers = RedisRig::start(), Claim::WRITE => waits revocation expiry lost_answer loss;
    redis_two_of_three = RedisRig::start(), TWO_OF_THREE => expiry loss;
    redlock = RedLockRig::start() => basics waits expiry lasting larger revocation deletion lost_answer loss silence;
    // The cases without faults share one cluster. Each of the others has its own.
    cluster = ClusterRig::start() => basics waits expiry tokens shares patience late_claims;
    cluster_writers = ClusterRig::start(), Claim::WRITE => waits revocation;
    cluster_broken = ClusterRig::start_private() => deletion lost_answer loss silence restart;
    cluster_broken_writers = ClusterRig::start_private(), Claim::WRITE => lost_answer;
    // The lease of the example is shorter than that of the rig.
    redlock_processes = RedLockRig::with_max_lease(3, LEASE) => processes;
    redlock_restart = RedLockRig::start_private() => restart;
    zookeeper = ZooKeeperRig::start() => basics waits expiry lasting larger revocation tokens periods deletion
        lost_answer loss silence shares numbers repetition lost_change processes killed_waiter;
    zookeeper_restart = ZooKeeperRig::start_private() => restart;
    zookeeper_writers = ZooKeeperRig::start(), Claim::WRITE => waits revocation expiry lost_answer loss;
    zookeeper_two_of_three = ZooKeeperRig::start(), TWO_OF_THREE => expiry loss;
    postgres = SqlRig::start(Postgres) => basics waits expiry lasting larger revocation tokens periods deletion
        lost_answer loss silence processes killed_waiter;
    postgres_restart = SqlRig::start_private(Postgres) => restart;
    mysql = SqlRig::start(Mysql) => basics waits expiry lasting larger revocation tokens periods deletion
        lost_answer loss silence processes;
    mysql_restart = SqlRig::start_private(Mysql) => restart;
    sqlite = SqlRig::start(Sqlite) => basics waits expiry lasting larger revocation tokens periods processes;
}
