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
use stocklock_core::ports::{AttemptOutcome, ChangeOutcome, DeductionStore, LevelStore};
use stocklock_core::stock::{Precondition, Quantity, StockError};
use stocklock_core::strategy::{Safeguards, Strategy};

use scenario::{Buyer, Scenario, Tally, adjustment, deduction, level_change, sku};
use stocklock_core::model::{Explorer, Task, World};
use stocklock_core::model::{MemoryStore, WriteCondition};

mod scenario;

/// The guard without the local check of the lock.
const GUARD_ONLY: Safeguards = Safeguards {
    guard: true,
    check: false,
};

#[rstest]
#[case::one_unit(1, 1_980, 1_974)]
#[case::two_units(2, 2_490, 2_484)]
fn no_lock_oversells_in_most_schedules(
    #[case] stock: i64,
    #[case] schedules: u64,
    #[case] oversold: u64,
) {
    let tally = Scenario::new(Strategy::NoLock, stock, 3).explore();
    let expected = Tally {
        schedules,
        oversold,
        drifted: oversold,
        ..Tally::default()
    };
    assert_eq!(tally, expected);
    assert!(tally.oversold > tally.schedules / 2);
}

/// With enough stock for all buyers, a lost update oversells nothing, but the audit still shows it.
#[test]
fn audit_finds_lost_updates_that_oversell_nothing() {
    let tally = Scenario::new(Strategy::NoLock, 2, 2).explore();
    assert_eq!(
        (tally.schedules, tally.oversold, tally.drifted),
        (24, 0, 22)
    );
}

#[rstest]
#[case::single_sql(Strategy::SingleSql, [144, 84])]
#[case::for_update(Strategy::ForUpdate, [78, 150])]
#[case::optimistic(Strategy::Optimistic, [3_102, 47_544])]
fn safe_strategies_never_oversell_under_any_schedule(
    #[case] strategy: Strategy,
    #[case] schedules: [u64; 2],
) {
    for (stock, expected) in [1, 2].into_iter().zip(schedules) {
        let tally = Scenario::new(strategy, stock, 3).explore();
        tally.assert_clean();
        assert_eq!(tally.schedules, expected, "stock {stock}");
    }
}

#[rstest]
fn local_mutex_never_oversells_in_one_process(#[values(1, 2)] stock: i64) {
    let scenario = Scenario::new(Strategy::LocalMutex, stock, 3);
    scenario.explore().assert_clean();
}

#[rstest]
#[case::one_unit(1, 6_798, 6_510)]
#[case::two_units(2, 16_344, 15_786)]
fn local_mutex_oversells_with_two_processes(
    #[case] stock: i64,
    #[case] schedules: u64,
    #[case] oversold: u64,
) {
    let scenario = Scenario {
        processes: 2,
        ..Scenario::new(Strategy::LocalMutex, stock, 3)
    };
    let tally = scenario.explore();
    assert_eq!((tally.schedules, tally.oversold), (schedules, oversold));
    assert_eq!(tally.drifted, oversold);
}

#[test]
fn optimistic_deduction_that_gives_up_takes_nothing() {
    let scenario = Scenario {
        max_attempts: 1,
        ..Scenario::new(Strategy::Optimistic, 3, 3)
    };
    let tally = scenario.explore();
    assert_eq!((tally.oversold, tally.drifted, tally.unknown), (0, 0, 0));
    assert!(tally.contended > 0, "{tally:?}");
}

#[rstest]
fn one_key_sells_once_and_answers_both_requests(
    #[values(Strategy::SingleSql, Strategy::ForUpdate, Strategy::Optimistic)] strategy: Strategy,
    #[values(1, 2)] stock: i64,
    #[values(0, 1)] faults: u32,
) {
    let mut scenario = Scenario::new(strategy, stock, 2);
    scenario.faults = faults;
    for buyer in &mut scenario.buyers {
        buyer.key = Some("order-1");
    }
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
    #[values(Strategy::SingleSql, Strategy::ForUpdate, Strategy::Optimistic)] strategy: Strategy,
) {
    let mut scenario = Scenario::new(strategy, 1, 2);
    let key = Some("order-1");
    scenario.buyers = ["1001", "1002"].map(|sku| Buyer { sku, key }).into();
    scenario.explore_with(|store, answers| {
        let refused = |one: &Result<_, _>| matches!(one, Err(StockError::IdempotencyKeyReused));
        let refusals = answers.iter().filter(|(_, one)| refused(one)).count();
        ensure!(refusals == 1, "not exactly one refusal: {answers:?}");
        let sold = store.deductions_now();
        ensure!(sold.len() == 1, "not exactly one movement: {sold:?}");
        Ok(())
    });
}

/// One COMMIT may lose its connection. It takes effect or not, at any later step.
#[rstest]
fn commit_with_unknown_outcome_leaves_exactly_one_movement(
    #[values(Strategy::SingleSql, Strategy::ForUpdate, Strategy::Optimistic)] strategy: Strategy,
    #[values(1, 2)] stock: i64,
) {
    // Three buyers under `optimistic` have millions of schedules.
    let optimistic = strategy == Strategy::Optimistic;
    let scenario = Scenario {
        faults: 1,
        ..Scenario::new(strategy, stock, if optimistic { 2 } else { 3 })
    };
    scenario.explore().assert_clean();
}

/// The mutex is released after the attempt, but the server may commit that attempt later.
#[test]
fn local_mutex_oversells_after_an_unknown_outcome() {
    let scenario = Scenario {
        faults: 1,
        ..Scenario::new(Strategy::LocalMutex, 1, 2)
    };
    let tally = scenario.explore();
    assert_eq!((tally.schedules, tally.oversold), (654, 146));
}

/// While no lease is lost, the lock alone is enough: unconditional writes are exact, too.
#[rstest]
fn kept_lock_never_oversells_with_or_without_the_guard(
    #[values(1, 2)] stock: i64,
    #[values(false, true)] guard: bool,
) {
    let scenario = Scenario {
        safeguards: Safeguards {
            guard,
            ..GUARD_ONLY
        },
        ..Scenario::new(Strategy::RedisLock, stock, 2)
    };
    scenario.explore().assert_clean();
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
    let explore = |condition: Option<WriteCondition>| {
        let scenario = Scenario {
            losses: 1,
            condition: condition.unwrap_or(WriteCondition::VersionAndFence),
            safeguards: Safeguards {
                guard: condition.is_some(),
                check,
            },
            ..Scenario::new(Strategy::RedisLock, 1, buyers)
        };
        scenario.explore()
    };
    let counts = |tally: Tally| [tally.schedules, tally.oversold];
    explore(Some(WriteCondition::VersionAndFence)).assert_clean();
    let found = explore(Some(WriteCondition::FenceOnly));
    assert_eq!(counts(found), fence_only);
    assert_eq!(counts(explore(None)), unconditional);
    assert!(0 < fence_only[1] && fence_only[1] < unconditional[1]);
}

/// The lock is held until the outcome is known: the repeated attempt under the same lock finds what
/// the first one did, even if the first one commits later.
#[test]
fn unknown_outcome_under_a_lock_leaves_exactly_one_movement() {
    let scenario = Scenario {
        faults: 1,
        safeguards: GUARD_ONLY,
        ..Scenario::new(Strategy::RedisLock, 1, 2)
    };
    scenario.explore().assert_clean();
}

/// One task sets the level to 5 while another sells or removes one unit: the level agrees with its
/// movements in every schedule. A refusal names a level that was too low. If the level is raised
/// between the refusal and the read of the level, the attempt is a conflict.
#[rstest]
fn set_level_during_a_sale_keeps_level_and_movements_equal(
    #[values(0, 1)] stock: i64,
    #[values(false, true)] by_adjustment: bool,
) {
    let sku = sku("1001");
    let mut sold_out = 0;
    let mut conflicts = 0;
    let explored = Explorer::up_to(100_000).explore(
        |decisions| {
            let state = MemoryStore::new(decisions, 0);
            state.stock(&sku, stock);
            let (setter, taker) = (state.clone(), state.clone());
            let change = level_change(&sku, 5, Some(Precondition::Exists));
            let order = deduction(&sku, Quantity::ONE, None, Strategy::SingleSql);
            let removal = adjustment(&sku, -1);
            let tasks: Vec<Task<Option<AttemptOutcome>>> = vec![
                Box::pin(async move {
                    setter.set_level(&change).await.expect("no faults");
                    None
                }),
                Box::pin(async move {
                    if !by_adjustment {
                        let attempt = taker.deduct_if_available(&order).await;
                        return Some(attempt.expect("no faults"));
                    }
                    match taker.adjust(&removal).await.expect("no faults") {
                        ChangeOutcome::BelowLimit { available } => {
                            Some(AttemptOutcome::Insufficient { available })
                        }
                        ChangeOutcome::Conflict => Some(AttemptOutcome::Conflict),
                        done => {
                            assert!(matches!(done, ChangeOutcome::Done { .. }), "{done:?}");
                            None
                        }
                    }
                }),
            ];
            World { state, tasks }
        },
        |store, answers| {
            let audit = &store.audit_now(&sku)[0];
            let sold = match answers[1] {
                Some(AttemptOutcome::Deducted { .. }) => 1,
                None => 0,
                Some(AttemptOutcome::Insufficient { available: 0 }) if stock == 0 => {
                    sold_out += 1;
                    0
                }
                Some(AttemptOutcome::Conflict) if stock == 0 => {
                    conflicts += 1;
                    0
                }
                refused => bail!("{refused:?}"),
            };
            ensure!(audit.consistent() && audit.sold == sold, "{audit:?}");
            Ok(())
        },
    );
    let schedules = explored.unwrap_or_else(|failure| panic!("{failure}"));
    assert!(schedules > 10, "{schedules} schedules");
    assert_eq!((sold_out > 0, conflicts > 0), (stock == 0, stock == 0));
}
