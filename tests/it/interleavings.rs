//! Every schedule of two or three deductions over the model database.
//!
//! What runs is the service's own code, from the first attempt to the answer; the model decides
//! only what each statement sees. So that `no-lock` oversells is proved here, not hoped for, and
//! so is, for these small cases and as far as the model is right, that the safe ones never do. The
//! counts are exact on purpose: they change only when a strategy's statements do. (Those of
//! `no-lock` and `optimistic` were also counted by a program that has nothing in common with the
//! explorer: paths through the states of the same model, by dynamic programming.)

use rstest::rstest;
use stocklock::stock::{Precondition, Quantity, StockError};
use stocklock::store::{Attempt, Change, StockStore};
use stocklock::strategy::{Safeguards, Strategy};

use crate::support::explore::{Explorer, Task, World};
use crate::support::memory_store::{Guard, MemoryStore};
use scenario::{Buyer, Scenario, Tally, adjustment, deduction, level_change, sku};

mod scenario;

#[rstest]
#[case::one_last_unit(1, 1_980, 1_974)]
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

/// Where there is enough for all, a lost update oversells nothing; the audit shows it all the same.
#[test]
fn the_audit_finds_lost_updates_that_oversell_nothing() {
    let tally = Scenario::new(Strategy::NoLock, 2, 2).explore();
    assert_eq!(
        (tally.schedules, tally.oversold, tally.drifted),
        (24, 0, 22)
    );
}

#[rstest]
fn safe_strategies_never_oversell_under_any_schedule(
    #[values(Strategy::SingleSql, Strategy::ForUpdate, Strategy::Optimistic)] strategy: Strategy,
    #[values(1, 2)] stock: i64,
) {
    let tally = Scenario::new(strategy, stock, 3).explore();
    tally.assert_clean();
    let expected = match (strategy, stock) {
        (Strategy::SingleSql, 1) => 144,
        (Strategy::SingleSql, _) => 84,
        (Strategy::ForUpdate, 1) => 78,
        (Strategy::ForUpdate, _) => 150,
        (_, 1) => 3_102,
        (..) => 47_544,
    };
    assert_eq!(tally.schedules, expected);
}

#[rstest]
#[case::one_last_unit(1)]
#[case::two_units(2)]
fn local_mutex_never_oversells_in_one_process(#[case] stock: i64) {
    Scenario::new(Strategy::LocalMutex, stock, 3)
        .explore()
        .assert_clean();
}

#[rstest]
#[case::one_last_unit(1, 6_798, 6_510)]
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

/// Too few attempts: some give up, and then nothing of theirs is left.
#[test]
fn an_optimistic_deduction_that_gives_up_has_taken_nothing() {
    let scenario = Scenario {
        max_attempts: 1,
        ..Scenario::new(Strategy::Optimistic, 3, 3)
    };
    let tally = scenario.explore();
    assert_eq!((tally.oversold, tally.drifted, tally.unknown), (0, 0, 0));
    assert!(tally.contended > 0, "{tally:?}");
}

#[rstest]
fn one_key_sells_once_and_answers_both(
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
        anyhow::ensure!(sold.len() == 1, "one movement, not {sold:?}");
        let [Ok(first), Ok(second)] = [&answers[0].1, &answers[1].1] else {
            anyhow::bail!("one was refused: {answers:?}");
        };
        let mut same = second.clone();
        same.replayed = first.replayed;
        anyhow::ensure!(*first == same, "two answers: {first:?}, {second:?}");
        anyhow::ensure!(
            first.replayed != second.replayed,
            "one of them is the repeat"
        );
        Ok(())
    });
}

/// Of two requests, for different SKUs, under one key, the second one waits for the first one at
/// the ledger's index, and is refused; its level is what it was.
#[rstest]
fn one_key_for_two_requests_serves_one_and_refuses_the_other(
    #[values(Strategy::SingleSql, Strategy::ForUpdate, Strategy::Optimistic)] strategy: Strategy,
) {
    let mut scenario = Scenario::new(strategy, 1, 2);
    scenario.buyers[0].key = Some("order-1");
    scenario.buyers[1] = Buyer {
        sku: "1002",
        key: Some("order-1"),
    };
    scenario.explore_with(|store, answers| {
        let refused = |one: &Result<_, _>| matches!(one, Err(StockError::IdempotencyKeyReused));
        let count = answers.iter().filter(|(_, one)| refused(one)).count();
        anyhow::ensure!(count == 1, "one is refused: {answers:?}");
        anyhow::ensure!(store.deductions_now().len() == 1, "one is sold");
        Ok(())
    });
}

/// A connection may be lost in one COMMIT, which then takes effect, or not, at any later time.
#[rstest]
fn a_commit_in_doubt_is_settled_with_exactly_one_movement(
    #[values(Strategy::SingleSql, Strategy::ForUpdate, Strategy::Optimistic)] strategy: Strategy,
    #[values(1, 2)] stock: i64,
) {
    // Three optimistic ones have millions of schedules.
    let buyers = if strategy == Strategy::Optimistic {
        2
    } else {
        3
    };
    let scenario = Scenario {
        faults: 1,
        ..Scenario::new(strategy, stock, buyers)
    };
    scenario.explore().assert_clean();
}

/// The mutex is free once the attempt is over, but the transaction in doubt may not be.
#[test]
fn local_mutex_oversells_after_a_commit_in_doubt() {
    let scenario = Scenario {
        faults: 1,
        ..Scenario::new(Strategy::LocalMutex, 1, 2)
    };
    let tally = scenario.explore();
    assert_eq!((tally.schedules, tally.oversold), (654, 146));
}

/// While no lease is lost, the lock alone excludes: also what writes unconditionally sells exactly.
#[rstest]
fn a_lock_that_is_kept_protects_even_without_a_guard(
    #[values(1, 2)] stock: i64,
    #[values(false, true)] guard: bool,
) {
    let scenario = Scenario {
        safeguards: Safeguards {
            guard,
            check: false,
        },
        ..Scenario::new(Strategy::RedisLock, stock, 2)
    };
    scenario.explore().assert_clean();
}

/// A lease may end at any step, and its holder goes on, not knowing. Version and fence refuse what
/// it writes. The fence alone does not: the holder that was overtaken may write *before* the next
/// one, which then overwrites that with what follows from an earlier read. Without either there are
/// more schedules that oversell. (With the local check they are fewer, and none is gone: the lease
/// may end between the check and the write.)
#[rstest]
#[case::of_two(2, false, [1_364, 702], [1_364, 834])]
#[case::of_two_who_check(2, true, [1_222, 546], [1_222, 594])]
#[case::of_three(3, false, [69_690, 22_170], [69_294, 54_330])]
fn a_lost_lease_oversells_unless_version_and_fence_guard_the_write(
    #[case] buyers: usize,
    #[case] check: bool,
    #[case] fence_alone: [u64; 2],
    #[case] neither: [u64; 2],
) {
    let explore = |guard: Option<Guard>| {
        let scenario = Scenario {
            losses: 1,
            guard: guard.unwrap_or(Guard::VersionAndFence),
            safeguards: Safeguards {
                guard: guard.is_some(),
                check,
            },
            ..Scenario::new(Strategy::RedisLock, 1, buyers)
        };
        scenario.explore()
    };
    let counts = |tally: Tally| [tally.schedules, tally.oversold];
    explore(Some(Guard::VersionAndFence)).assert_clean();
    assert_eq!(counts(explore(Some(Guard::FenceAlone))), fence_alone);
    assert_eq!(counts(explore(None)), neither);
    assert!(0 < fence_alone[1] && fence_alone[1] < neither[1]);
}

/// The lock is kept until the outcome is known: the repeat under it finds what the first attempt
/// did, also if that commits later still.
#[test]
fn a_commit_in_doubt_under_a_lock_is_settled_with_exactly_one_movement() {
    let scenario = Scenario {
        faults: 1,
        safeguards: Safeguards {
            guard: true,
            check: false,
        },
        ..Scenario::new(Strategy::RedisLock, 1, 2)
    };
    scenario.explore().assert_clean();
}

/// Levels that are set and adjusted while they are sold still agree with their ledger; and whoever
/// is refused is told of a level that did not suffice, also where somebody restocks between the
/// refusal and the look at the level.
#[rstest]
fn changes_of_a_level_and_sales_keep_counter_and_ledger_together(
    #[values(0, 1)] stock: i64,
    #[values(false, true)] by_adjustment: bool,
) {
    let sku = sku("1001");
    let mut sold_out = 0;
    let mut restocked_meanwhile = 0;
    let explored = Explorer::up_to(100_000).explore(
        |decisions| {
            let store = MemoryStore::new(decisions, 0);
            store.stock(&sku, stock);
            let (setter, taker) = (store.clone(), store.clone());
            let change = level_change(&sku, 5, Some(Precondition::Exists));
            let order = deduction(&sku, Quantity::ONE, None, Strategy::SingleSql);
            let removal = adjustment(&sku, -1);
            let tasks: Vec<Task<Option<Attempt>>> = vec![
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
                        Change::BelowLimit { available } => {
                            Some(Attempt::Insufficient { available })
                        }
                        Change::Stale => Some(Attempt::Stale),
                        done => {
                            assert!(matches!(done, Change::Done { .. }), "{done:?}");
                            None
                        }
                    }
                }),
            ];
            World {
                state: store,
                tasks,
            }
        },
        |store, answers| {
            let audit = &store.audit_now(&sku)[0];
            let sold = match answers[1] {
                Some(Attempt::Deducted { .. }) => 1,
                None => 0,
                Some(Attempt::Insufficient { available: 0 }) if stock == 0 => {
                    sold_out += 1;
                    0
                }
                Some(Attempt::Stale) if stock == 0 => {
                    restocked_meanwhile += 1;
                    0
                }
                refused => anyhow::bail!("{refused:?}"),
            };
            anyhow::ensure!(audit.consistent() && audit.sold == sold, "{audit:?}");
            Ok(())
        },
    );
    assert!(explored.is_ok_and(|schedules| schedules > 10));
    assert_eq!(
        (sold_out > 0, restocked_meanwhile > 0),
        (stock == 0, stock == 0)
    );
}
