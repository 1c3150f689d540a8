//! One list of cases, run on every back end.
//!
//! Where time is virtual a lease of ten seconds costs nothing; on real servers it is short.

mod cancel;
mod core;
mod faults;
mod leases;

/// Makes a test of each case on each rig.
macro_rules! contract {
    ($rig:ident, $start:path, $test:meta, $($list:ident: [$($case:ident),* $(,)?]),* $(,)?) => {
        mod $rig {
            $($(
                #[$test]
                async fn $case() {
                    use super::*;
                    let rig = $start().await;
                    super::$list::$case(&rig).await;
                }
            )*)*
        }
    };
}

/// Runs `contract!` with the cases that need no server to break.
macro_rules! basic_contract {
    ($rig:ident, $start:path, $test:meta $(, $list:ident: $cases:tt)*) => {
        contract!(
            $rig, $start, $test,
            core: [
                only_one_of_many_holds_at_a_time,
                locks_of_other_names_are_independent,
                acquire_ends_at_the_wait_limit,
                try_acquire_is_none_while_held,
                tokens_grow_and_name_their_source,
                a_second_release_frees_nobody_elses_lock,
                a_dropped_guard_is_released_in_the_background,
                a_child_guard_keeps_the_lock,
                run_releases_when_its_body_ends,
                shutdown_releases_what_is_held_and_ends_what_waits,
                names_that_no_path_could_hold_are_fine,
                tasks_of_one_process_are_one_contender,
            ],
            leases: [
                a_lock_that_is_not_renewed_runs_out,
                renewals_keep_a_lock_for_many_leases,
                many_locks_are_renewed_in_few_requests,
                max_hold_ends_a_holder_that_hangs,
                max_renewals_ends_a_holder_that_hangs,
                release_after_the_loss_says_so_and_frees_nobody,
                run_drops_its_body_when_the_lock_is_lost,
                a_clock_that_is_an_hour_ahead_changes_nothing,
                extend_moves_the_deadline,
            ],
            cancel: [
                an_acquisition_dropped_at_any_time_leaves_nothing,
                an_acquisition_dropped_between_any_two_polls_leaves_nothing,
                a_wait_dropped_at_any_time_leaves_nothing,
                an_attempt_dropped_at_any_await_point_is_undone_by_a_release,
            ],
            $($list: $cases,)*
        );
    };
}

/// Runs `basic_contract!` and the cases that break the way to the server.
macro_rules! full_contract {
    ($rig:ident, $start:path, $test:meta) => {
        basic_contract!(
            $rig, $start, $test,
            faults: [
                a_lock_taken_away_is_lost_before_its_deadline,
                verify_asks_the_server,
                lost_comes_before_the_server_may_grant_to_another,
                an_acquire_whose_answer_was_lost_has_one_holder,
                an_acquire_given_up_after_its_answer_was_lost_leaves_nothing,
                a_server_that_gives_no_answer_is_unavailable,
                a_release_that_cannot_arrive_is_repeated
            ]
        );
    };
}

/// Runs the cases that break the server itself.
macro_rules! restart_contract {
    ($rig:ident, $start:path, $test:meta) => {
        contract!(
            $rig, $start, $test,
            faults: [
                a_server_that_comes_back_is_used_again,
                ping_says_whether_the_server_answers,
            ]
        );
    };
}

use crate::rig::local::LocalRig;
use crate::rig::memory::MemoryRig;
use crate::rig::redis::RedisRig;
use crate::rig::zookeeper::ZooKeeperRig;

basic_contract!(local, LocalRig::start, tokio::test(start_paused = true));
full_contract!(memory, MemoryRig::start, tokio::test(start_paused = true));
full_contract!(redis, RedisRig::start, tokio::test);
full_contract!(zookeeper, ZooKeeperRig::start, tokio::test);
restart_contract!(
    memory_restart,
    MemoryRig::start,
    tokio::test(start_paused = true)
);
restart_contract!(redis_restart, RedisRig::start, tokio::test);
restart_contract!(zookeeper_restart, ZooKeeperRig::start_private, tokio::test);
