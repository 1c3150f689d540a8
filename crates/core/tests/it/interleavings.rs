//! Every schedule of two or three deductions over the model database.
//!
//! The code under test is the service's own, from the first attempt to the answer; the model only
//! decides what each statement sees. For these small cases, and as far as the model is right, this
//! proves that `no-lock` oversells and that the safe strategies never do. The schedule counts are
//! exact on purpose: they change only if a strategy's statements change. A program that shares no
//! code with the explorer confirmed the counts of `no-lock` and `optimistic`: it counted the paths
//! through the states of the same model by dynamic programming.

use anyhow::{bail, ensure};
use rstest::rstest;
use stocklock_core::model::{Faults, MemoryStore, Task, World, WriteCondition};
use stocklock_core::ports::{AttemptOutcome, DeductionStore, OperationStore};
use stocklock_core::stock::{Precondition, StockError};
use stocklock_core::strategy::Strategy::{self, *};

use answers::explorer;
use level_changes::level_change;
use requests::{SKU, deduction, sku};
use scenario::{Scenario, Tally};

mod answers;
mod batches;
mod counters;
mod holds;
mod level_changes;
mod refusals;
mod requests;
mod scenario;
mod scheduled;
mod sourced;
mod walks;

/// No schedule oversells, drifts, gives up or leaves an outcome unknown. With a fault, the COMMIT
/// whose connection is lost takes effect or not, at any later step. (Three buyers under
/// `optimistic` have millions of schedules then.) A lock is held until the outcome is known: the
/// repeated attempt under the same lock finds what the first one did, even if the first one commits
/// later. While no lease is lost, the lock alone is enough: unconditional writes are exact, too.
#[rstest]
#[case::single_sql(Scenario::new(SingleSql, 1, 3), 144)]
#[case::single_sql_two_units(Scenario::new(SingleSql, 2, 3), 84)]
#[case::single_sql_fault(Scenario::new(SingleSql, 1, 3).with_fault(), 25_428)]
#[case::single_sql_two_units_fault(Scenario::new(SingleSql, 2, 3).with_fault(), 9_468)]
#[case::for_update(Scenario::new(ForUpdate, 1, 3), 48)]
#[case::for_update_two_units(Scenario::new(ForUpdate, 2, 3), 84)]
#[case::for_update_fault(Scenario::new(ForUpdate, 1, 3).with_fault(), 3_072)]
#[case::for_update_two_units_fault(Scenario::new(ForUpdate, 2, 3).with_fault(), 4_974)]
#[case::optimistic(Scenario::new(Optimistic, 1, 3), 3_102)]
#[case::optimistic_two_units(Scenario::new(Optimistic, 2, 3), 47_544)]
#[case::optimistic_fault(Scenario::new(Optimistic, 1, 2).with_fault(), 1_872)]
#[case::optimistic_two_units_fault(Scenario::new(Optimistic, 2, 2).with_fault(), 17_644)]
#[case::group_commit(Scenario::new(GroupCommit, 1, 3), 9_666)]
#[case::group_commit_two_units(Scenario::new(GroupCommit, 2, 3), 12_072)]
#[case::group_commit_fault(Scenario::new(GroupCommit, 1, 2).with_fault(), 6_706)]
#[case::group_commit_two_units_fault(Scenario::new(GroupCommit, 2, 2).with_fault(), 8_854)]
#[case::local_mutex(Scenario::new(LocalMutex, 1, 3), 144)]
#[case::local_mutex_two_units(Scenario::new(LocalMutex, 2, 3), 234)]
#[case::lock(Scenario::new(RedisLock, 1, 2), 10)]
#[case::lock_two_units(Scenario::new(RedisLock, 2, 2), 10)]
#[case::lock_fault(Scenario::new(RedisLock, 1, 2).with_fault(), 134)]
#[case::lock_without_guard(without_guard(RedisLock, 1), 10)]
#[case::lock_without_guard_two_units(without_guard(RedisLock, 2), 10)]
#[case::sql_lock(Scenario::new(SqlLock, 1, 2), 10)]
#[case::sql_lock_two_units(Scenario::new(SqlLock, 2, 2), 10)]
#[case::sql_lock_fault(Scenario::new(SqlLock, 1, 2).with_fault(), 134)]
#[case::redlock(Scenario::new(Redlock, 1, 2), 10)]
#[case::redlock_two_units(Scenario::new(Redlock, 2, 2), 10)]
#[case::redlock_fault(Scenario::new(Redlock, 1, 2).with_fault(), 130)]
fn protected_deductions_end_clean(#[case] scenario: Scenario, #[case] schedules: u64) {
    let clean = Tally {
        schedules,
        ..Tally::default()
    };
    assert_eq!(scenario.explore(), clean);
}

/// Every lost update makes the level drift. The last case has stock for all buyers, so it oversells
/// nothing, but the audit still shows the lost updates. A mutex protects nothing from the other
/// process. It is released after the attempt, but the server may commit that attempt later.
#[rstest]
#[case::no_lock(Scenario::new(NoLock, 1, 3), 1_980, 1_974, 1_974)]
#[case::no_lock_two_units(Scenario::new(NoLock, 2, 3), 2_490, 2_484, 2_484)]
#[case::local_mutex(two_processes(1), 6_798, 6_510, 6_510)]
#[case::local_mutex_two_units(two_processes(2), 16_344, 15_786, 15_786)]
#[case::local_mutex_fault(Scenario::new(LocalMutex, 1, 2).with_fault(), 654, 146, 146)]
#[case::enough_stock(Scenario::new(NoLock, 2, 2), 24, 0, 22)]
fn unprotected_deductions_lose_updates(
    #[case] scenario: Scenario,
    #[case] schedules: u64,
    #[case] oversold: u64,
    #[case] drifted: u64,
) {
    let expected = Tally {
        schedules,
        oversold,
        drifted,
        ..Tally::default()
    };
    assert_eq!(scenario.explore(), expected);
}

fn without_guard(strategy: Strategy, stock: i64) -> Scenario {
    let mut scenario = Scenario::new(strategy, stock, 2);
    scenario.safeguards.guard = false;
    scenario
}

fn two_processes(stock: i64) -> Scenario {
    Scenario {
        processes: 2,
        ..Scenario::new(LocalMutex, stock, 3)
    }
}

/// The client has lost the connection, and the server receives the message at any later step: before
/// or after a delivery of one unit. If the server did not check the expiry, the request could be
/// refused, and its sale recorded later.
#[rstest]
fn late_message_sells_nothing_after_a_refusal(
    #[values(0, 1)] stock: i64,
    #[values(None, Some("order-1"))] key: Option<&'static str>,
) {
    let mut scenario = Scenario {
        key,
        ..Scenario::new(SingleSql, stock, 1).with_late_message()
    };
    let (mut sold, mut refused) = (0, 0);
    let tally = scenario.explore_with(|store, answers| {
        let sales = store.deductions_now().len();
        sold += sales;
        refused += answers.len() - sales;
        Ok(())
    });
    assert_eq!((tally.oversold, tally.drifted, tally.unknown), (0, 0, 0));
    assert!(sold > 0, "no schedule sells");
    assert_eq!(refused > 0, stock == 0);

    scenario.checks_expiry = false;
    let broken = scenario.try_explore(|_, _| Ok(()));
    let broken = broken.map_err(|failure| failure.why.contains("made, but the answer was"));
    let sold_after_refusal = broken.err();
    assert_eq!(sold_after_refusal, (stock == 0).then_some(true));
}

#[rstest]
fn one_key_sells_once_and_answers_both_requests(
    #[values(SingleSql, ForUpdate, Optimistic, GroupCommit, RedisLua)] strategy: Strategy,
    #[values(1, 2)] stock: i64,
    #[values(0, 1)] faults: u32,
) {
    let scenario = Scenario {
        faults: Faults {
            commits: faults,
            ..Faults::default()
        },
        key: Some("order-1"),
        ..Scenario::new(strategy, stock, 2)
    };
    scenario.explore_with(|store, answers| {
        let sold = store.deductions_now();
        ensure!(sold.len() == 1, "not exactly one movement: {sold:?}");
        let [(_, Ok(first)), (_, Ok(second))] = answers else {
            bail!("a request was refused: {answers:?}");
        };
        let mut same = second.clone();
        same.replayed = first.replayed;
        ensure!(*first == same, "two answers: {first:?}, {second:?}");
        ensure!(
            first.replayed != second.replayed,
            "not exactly one replayed answer: {answers:?}"
        );
        Ok(())
    });
}

/// Two requests for different SKUs use the same key. The second one waits at the ledger's unique
/// index and is then refused; the level of its SKU does not change.
#[rstest]
fn one_key_for_two_skus_serves_one_and_refuses_the_other(
    #[values(SingleSql, ForUpdate, Optimistic, GroupCommit)] strategy: Strategy,
) {
    let scenario = Scenario {
        key: Some("order-1"),
        buyers: vec![SKU, "1002"],
        ..Scenario::new(strategy, 1, 2)
    };
    scenario.explore_with(|store, answers| {
        let refused = |one: &Result<_, _>| matches!(one, Err(StockError::IdempotencyKeyReused));
        let refusals = answers.iter().filter(|(_, one)| refused(one)).count();
        ensure!(refusals == 1, "not exactly one refusal: {answers:?}");
        let sold = store.deductions_now();
        ensure!(sold.len() == 1, "not exactly one movement: {sold:?}");
        Ok(())
    });
}

/// A lease may end at any step while its holder continues without knowing. A write conditional on
/// version and fence is refused then. The fence alone is not enough: the stale holder may write
/// *before* the next holder, which then overwrites that level with one computed from an older read.
/// Unconditional writes oversell in more schedules. The local check makes these schedules fewer but
/// does not prevent them, because the lease may end between the check and the write.
#[rstest]
#[case::two_buyers(2, false, [1_364, 702], [1_364, 834])]
#[case::two_buyers_with_check(2, true, [1_222, 546], [1_222, 594])]
#[case::three_buyers(3, false, [69_690, 22_170], [69_294, 54_330])]
fn lost_lease_oversells_unless_version_and_fence_are_checked(
    #[case] buyers: usize,
    #[case] check: bool,
    #[case] fence_only: [u64; 2],
    #[case] unconditional: [u64; 2],
) {
    let explore = |condition, guard| {
        let mut scenario = Scenario {
            losses: 1,
            condition,
            ..Scenario::new(RedisLock, 1, buyers)
        };
        scenario.safeguards.guard = guard;
        scenario.safeguards.check = check;
        scenario.explore()
    };
    let counts = |tally: &Tally| [tally.schedules, tally.oversold];
    let both = explore(WriteCondition::VersionAndFence, true);
    let clean = Tally {
        schedules: both.schedules,
        ..Tally::default()
    };
    assert_eq!(both, clean);
    let found = explore(WriteCondition::FenceOnly, true);
    assert_eq!(counts(&found), fence_only);
    let found = explore(WriteCondition::VersionAndFence, false);
    assert_eq!(counts(&found), unconditional);
    assert!(0 < fence_only[1] && fence_only[1] < unconditional[1]);
}

/// Without a fencing token, the version alone refuses the write of a holder whose lease has ended.
#[rstest]
fn lost_lease_without_token_oversells_only_without_version(
    #[values(2, 3)] buyers: usize,
    #[values(false, true)] check: bool,
) {
    let explore = |guard| {
        let mut scenario = Scenario::new(Redlock, 1, buyers);
        scenario.losses = 1;
        scenario.safeguards.guard = guard;
        scenario.safeguards.check = check;
        scenario.explore()
    };
    let guarded = explore(true);
    let clean = Tally {
        schedules: guarded.schedules,
        ..Tally::default()
    };
    assert_eq!(guarded, clean);
    assert!(explore(false).oversold > 0);
}

/// Any statement may fail, besides a COMMIT that loses its connection; the lock server may be away
/// while a lease is lost; and a lock goes to any of its waiters. Every answer is right: an error says
/// that nothing was sold, even if an earlier attempt is still in flight.
#[rstest]
#[case::single_sql(Scenario::new(SingleSql, 1, 2))]
#[case::for_update(Scenario::new(ForUpdate, 1, 2))]
#[case::optimistic(Scenario::new(Optimistic, 1, 1))]
#[case::group_commit(Scenario::new(GroupCommit, 1, 1))]
#[case::lock(with_lost_lease(RedisLock))]
#[case::redlock(with_lost_lease(Redlock))]
fn faults_at_every_step_make_no_answer_wrong(#[case] scenario: Scenario) {
    let tally = scenario
        .with_faults_at_every_step()
        .at_full_size()
        .explore();
    assert_eq!((tally.oversold, tally.drifted), (0, 0), "{tally:?}");
    assert!(tally.unavailable > 0, "{tally:?}");
}

/// One buyer, who finds the lease lost after the read.
fn with_lost_lease(strategy: Strategy) -> Scenario {
    let mut scenario = Scenario::new(strategy, 1, 1);
    scenario.losses = 1;
    scenario.safeguards.check = true;
    scenario
}

/// The process of one buyer dies at any step. Its lock and its transaction end, and the other buyer
/// gets the unit unless it was sold.
#[rstest]
fn dead_process_neither_blocks_nor_doubles_a_sale(
    #[values(
        SingleSql,
        ForUpdate,
        Optimistic,
        GroupCommit,
        RedisLock,
        SqlLock,
        Redlock
    )]
    strategy: Strategy,
    #[values(None, Some("order-1"))] key: Option<&'static str>,
) {
    let scenario = Scenario {
        deaths: 1,
        any_order: true,
        key,
        ..Scenario::new(strategy, 1, 2)
    };
    let tally = scenario.at_full_size().explore_with(|store, _| {
        let sold = store.deductions_now().len();
        ensure!(sold == 1, "sold {sold} of 1");
        Ok(())
    });
    assert!(tally.unknown > 0, "{tally:?}");
}

/// One task sets the level to 5 while another sells one unit: the level agrees with its movements in
/// every schedule. A refusal names a level that was too low. If the level is raised between the
/// refusal of a sale and the read of the level, the attempt is a conflict.
#[rstest]
fn set_level_during_a_sale_keeps_level_and_movements_equal(#[values(0, 1)] stock: i64) {
    let can_conflict = stock == 0;
    let sku = sku(SKU);
    let mut sold_out = 0;
    let mut conflicts = 0;
    let explored = explorer().explore(
        |decisions| {
            let state = MemoryStore::new(decisions);
            state.stock(&sku, stock);
            let set: Task<_> = Box::pin(set_to_five(state.clone()));
            let tasks = vec![set, Box::pin(sell_one(state.clone()))];
            World { state, tasks }
        },
        |store, answers| {
            match &answers[1] {
                AttemptOutcome::Deducted { .. } => {}
                AttemptOutcome::Insufficient { available: 0 } if stock == 0 => sold_out += 1,
                AttemptOutcome::Conflict if can_conflict => conflicts += 1,
                refused => bail!("{refused:?}"),
            }
            let audit = store.audit_now(&sku);
            let sale = matches!(answers[1], AttemptOutcome::Deducted { .. });
            let right = audit.consistent() && audit.sold == i64::from(sale);
            ensure!(right, "{audit:?}");
            Ok(())
        },
    );
    let schedules = explored.unwrap_or_else(|failure| panic!("{failure}"));
    assert!(schedules > 5, "{schedules} schedules");
    assert_eq!((sold_out > 0, conflicts > 0), (stock == 0, can_conflict));
}

async fn sell_one(store: MemoryStore) -> AttemptOutcome {
    let order = deduction(&sku(SKU), None, SingleSql);
    let sold = store.deduct(&order).await;
    sold.expect("no faults")
}

/// The outcome in the words of a deduction.
async fn set_to_five(store: MemoryStore) -> AttemptOutcome {
    let change = level_change(5, Precondition::Exists);
    let set = store.write(&change).await;
    match set.expect("no faults") {
        AttemptOutcome::Changed(changed) => AttemptOutcome::Deducted {
            remaining: changed.level.available(),
        },
        refused => panic!("{refused:?}"),
    }
}
