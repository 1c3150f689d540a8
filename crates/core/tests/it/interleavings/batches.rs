//! Every schedule of two batches of two deductions, of two replicas; of one level, or of two.
//!
//! The scheduler is left out, so that both batches always have two members. `scheduled` explores it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::{mem, slice};

use anyhow::ensure;
use rstest::rstest;
use stocklock_core::deduct::Scheduler;
use stocklock_core::model::{Faults, MemoryStore, Task, World};
use stocklock_core::ports::{
    AttemptOutcome, BatchAnswer, LateAttempt, LedgerReader, OperationStore, SharedAnswer,
    StoreError,
};
use stocklock_core::stock::{Operation, OperationId, Sku};
use stocklock_core::strategy::Strategy::GroupCommit;

use super::answers::explorer;
use super::requests::{SKU, deduction, sku};

/// What a buyer knows in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    /// The ledger has this operation.
    Sold(OperationId),
    /// The ledger does not have the buyer's operation, and never will.
    NotSold,
    /// The buyer gave up, and does not know.
    Unknown,
}

type Answers = Vec<(Operation, Known)>;

/// How a replica makes its deductions.
#[derive(Debug, Clone)]
pub(super) enum Way {
    /// In one batch of one level.
    Batch { read_first: bool },
    /// The levels in one transaction. Those that are refused, each by itself.
    Merged,
    /// Through a scheduler.
    Scheduled(Arc<Scheduler>),
}

impl Way {
    async fn attempt(&self, store: &MemoryStore, operations: &[Operation]) -> Vec<BatchAnswer> {
        let mut answers = Vec::new();
        match self {
            Self::Batch { read_first } => {
                return store.write_batch(operations, *read_first).await;
            }
            Self::Merged => {}
            Self::Scheduled(scheduler) => {
                for operation in operations {
                    answers.push(scheduler.attempt(operation.clone()).await);
                }
                return answers;
            }
        }
        let shared = store.write_shared(operations, false).await;
        for (operation, shared) in operations.iter().zip(shared) {
            match shared {
                SharedAnswer::Made(answer) => answers.push(answer),
                _ if operation.lines.len() == 1 => {
                    answers.extend(store.write_batch(slice::from_ref(operation), false).await);
                }
                _ => match &mut store.write_shared(slice::from_ref(operation), true).await[..] {
                    [SharedAnswer::Made(answer)] => {
                        answers.push(mem::replace(answer, Ok(AttemptOutcome::Conflict)));
                    }
                    other => panic!("it waits for its rows: {other:?}"),
                },
            }
        }
        answers
    }
}

/// Attempts each deduction until its outcome is known, at most six times.
pub(super) async fn buy(store: MemoryStore, batch: Vec<Operation>, way: Way) -> Answers {
    let mut known = Vec::new();
    let mut left: Vec<_> = batch.into_iter().map(|order| (order, None)).collect();
    for _ in 0..6 {
        let orders: Vec<_> = left.iter().map(|(order, _)| order.clone()).collect();
        let answers = way.attempt(&store, &orders).await;
        let mut again = Vec::new();
        for ((order, unknown), answer) in left.into_iter().zip(answers) {
            match answer {
                Ok(AttemptOutcome::Deducted { .. } | AttemptOutcome::Lines(_)) => {
                    let sold = Known::Sold(order.id);
                    known.push((order, sold));
                }
                Ok(AttemptOutcome::Recorded(movement)) => {
                    known.push((order, Known::Sold(movement.operation)));
                }
                Ok(
                    AttemptOutcome::Insufficient { .. }
                    | AttemptOutcome::Unrecorded { .. }
                    | AttemptOutcome::Short { .. }
                    | AttemptOutcome::RefusedLines(_),
                ) => {
                    let late = match unknown {
                        Some(expiry) => store.late_attempt(&order, expiry).await,
                        None => Ok(LateAttempt::Dead),
                    };
                    let late = match late {
                        Ok(LateAttempt::Dead) => Known::NotSold,
                        Ok(LateAttempt::Recorded(movement)) => Known::Sold(movement.operation),
                        Ok(LateAttempt::Alive) | Err(_) => Known::Unknown,
                    };
                    known.push((order, late));
                }
                Ok(AttemptOutcome::Duplicate) => {
                    let key = order.idempotency.as_ref();
                    match store.recorded(&order.first().sku, order.id, key).await {
                        Ok(Some(movement)) => {
                            known.push((order, Known::Sold(movement.operation)));
                        }
                        _ => again.push((order, unknown)),
                    }
                }
                Err(StoreError::OutcomeUnknown(_, expiry)) => again.push((order, Some(expiry))),
                _ => again.push((order, unknown)),
            }
        }
        left = again;
        if left.is_empty() {
            break;
        }
    }
    known.extend(left.into_iter().map(|(order, _)| (order, Known::Unknown)));
    known
}

/// Checks that the ledger has each operation with all of its lines or none, as its buyer knows; that no level is
/// oversold; and that the versions have no gaps. Returns how many do not know.
pub(super) fn check_known<'a>(
    store: &MemoryStore,
    answers: impl IntoIterator<Item = &'a (Operation, Known)>,
    skus: &BTreeSet<Sku>,
) -> anyhow::Result<usize> {
    let sold = store.deductions_now();
    let lines = |id| sold.iter().filter(|one| one.operation == id).count();
    let mut unknown = 0;
    for (operation, known) in answers {
        let (wanted, own) = (operation.lines.len(), lines(operation.id));
        ensure!(own == 0 || own == wanted, "a part of it: {sold:?}");
        match known {
            Known::Sold(of) => ensure!(lines(*of) == wanted, "{of}: {sold:?}"),
            Known::NotSold => ensure!(own == 0, "{operation:?} was sold"),
            Known::Unknown => unknown += 1,
        }
    }
    for sku in skus {
        let audit = store.audit_now(sku);
        ensure!(audit.consistent() && audit.oversold() == 0, "{audit:?}");
        let of_sku = sold.iter().filter(|one| one.sku == *sku);
        let versions: Vec<_> = of_sku.map(|one| one.level_version).collect();
        let expected: Vec<_> = (2..).take(versions.len()).collect();
        ensure!(versions == expected, "{versions:?}");
    }
    Ok(unknown)
}

/// What two replicas sell: the SKUs, with blanks between them, and the key of each operation.
type Replicas = [&'static [(&'static str, Option<&'static str>)]; 2];

const NO_KEYS: Replicas = [&[(SKU, None), (SKU, None)], &[(SKU, None), (SKU, None)]];
/// The second request with the key `K` comes to the other replica.
const SHARED_KEY: Replicas = [
    &[(SKU, Some("K")), (SKU, None)],
    &[(SKU, None), (SKU, Some("K"))],
];
/// It comes in the same batch.
const REPEATED_KEY: Replicas = [
    &[(SKU, Some("K")), (SKU, Some("K"))],
    &[(SKU, None), (SKU, None)],
];
/// The second batch has one member, so it is made like `single-sql`.
const ONE_ALONE: Replicas = [&[(SKU, Some("K")), (SKU, None)], &[(SKU, Some("K"))]];

const OTHER: &str = "1002";
/// Two levels each, in another order.
const TWO_LEVELS: Replicas = [&[(SKU, None), (OTHER, None)], &[(OTHER, None), (SKU, None)]];
/// The same key for another SKU.
const TWO_LEVELS_SHARED_KEY: Replicas = [
    &[(SKU, Some("K")), (OTHER, None)],
    &[(OTHER, Some("K")), (SKU, None)],
];
/// The same request comes to both.
const TWO_LEVELS_REPEATED: Replicas = [
    &[(SKU, Some("K")), (OTHER, None)],
    &[(SKU, Some("K")), (OTHER, None)],
];
/// The same request comes to both; the second replica sells nothing else.
const ONE_OF_TWO_LEVELS: Replicas = [&[(SKU, Some("K")), (OTHER, None)], &[(SKU, Some("K"))]];
/// The rival of a late message is its own repetition.
const ONE_REPLICA: Replicas = [&[(SKU, Some("K")), (OTHER, None)], &[]];

/// Orders of two lines, in another order, and a deduction that needs one of the levels.
const ORDERS: Replicas = [&[("1001 1002", None)], &[("1002 1001", None)]];
const ORDERS_SHARED_KEY: Replicas = [&[("1001 1002", Some("K"))], &[("1002 1001", Some("K"))]];
const ONE_ORDER: Replicas = [&[("1001 1002", None)], &[]];

const NO_FAULTS: Faults = Faults {
    commits: 0,
    late_messages: 0,
    statements: 0,
};
const COMMIT_LOST: Faults = Faults {
    commits: 1,
    ..NO_FAULTS
};
const MESSAGE_LATE: Faults = Faults {
    late_messages: 1,
    ..NO_FAULTS
};
const STATEMENT_FAILS: Faults = Faults {
    statements: 1,
    ..NO_FAULTS
};

/// No schedule oversells, each answer agrees with the ledger, and the versions have no gaps.
#[rstest]
#[case::sold_out(NO_KEYS, 3, NO_FAULTS)]
#[case::shared_key(SHARED_KEY, 2, NO_FAULTS)]
#[case::repeated_key(REPEATED_KEY, 2, NO_FAULTS)]
#[case::commit_lost(NO_KEYS, 3, COMMIT_LOST)]
#[case::commit_lost_shared_key(SHARED_KEY, 2, COMMIT_LOST)]
#[case::message_late(ONE_ALONE, 1, MESSAGE_LATE)]
#[case::statement_fails(NO_KEYS, 3, STATEMENT_FAILS)]
fn two_batches_of_two_are_decided_one_by_one(
    #[case] replicas: Replicas,
    #[case] stock: i64,
    #[case] faults: Faults,
    #[values(false, true)] read_first: bool,
) {
    explore(replicas, stock, faults, &Way::Batch { read_first });
}

/// The same, if a transaction has batches of two levels.
#[rstest]
#[case::sold_out(TWO_LEVELS, 1, NO_FAULTS)]
#[case::for_all(TWO_LEVELS, 2, NO_FAULTS)]
#[case::shared_key(TWO_LEVELS_SHARED_KEY, 2, NO_FAULTS)]
#[case::repeated(TWO_LEVELS_REPEATED, 1, NO_FAULTS)]
#[case::commit_lost(ONE_OF_TWO_LEVELS, 1, COMMIT_LOST)]
#[case::message_late(ONE_REPLICA, 1, MESSAGE_LATE)]
#[case::statement_fails(ONE_OF_TWO_LEVELS, 1, STATEMENT_FAILS)]
fn two_transactions_of_two_levels_are_decided_one_by_one(
    #[case] replicas: Replicas,
    #[case] stock: i64,
    #[case] faults: Faults,
) {
    explore(replicas, stock, faults, &Way::Merged);
}

/// The same for orders of two lines. Without an answer, an order is made alone, with its rows locked.
#[rstest]
#[case::sold_out(ORDERS, 1, NO_FAULTS)]
#[case::for_all(ORDERS, 2, NO_FAULTS)]
#[case::shared_key(ORDERS_SHARED_KEY, 2, NO_FAULTS)]
#[case::commit_lost(ORDERS, 1, COMMIT_LOST)]
#[case::message_late(ONE_ORDER, 1, MESSAGE_LATE)]
#[case::statement_fails(ORDERS, 1, STATEMENT_FAILS)]
fn orders_are_made_with_all_lines_or_none(
    #[case] replicas: Replicas,
    #[case] stock: i64,
    #[case] faults: Faults,
) {
    explore(replicas, stock, faults, &Way::Merged);
}

/// Takes one unit of each SKU.
pub(super) fn order(names: &str, key: Option<&str>) -> Operation {
    let mut names = names.split(' ').map(sku);
    let mut order = deduction(&names.next().expect("a name"), key, GroupCommit);
    let others = names.flat_map(|name| deduction(&name, key, GroupCommit).lines);
    order.lines.extend(others);
    order
}

/// Explores two replicas. Each level has `stock` units.
fn explore(replicas: Replicas, stock: i64, faults: Faults, way: &Way) {
    let members = replicas.concat();
    let names = members.iter().flat_map(|(names, _)| names.split(' '));
    let skus: BTreeSet<_> = names.map(sku).collect();
    let keys = members
        .iter()
        .filter_map(|(_, key)| *key)
        .collect::<Vec<_>>();
    let mut contended = 0;
    let explored = explorer().explore(
        |decisions| {
            let state = MemoryStore::new(decisions).with_faults(faults);
            for sku in &skus {
                state.stock(sku, stock);
            }
            let tasks = replicas.map(|members| {
                let orders = members.iter();
                let orders = orders.map(|(names, key)| order(names, *key));
                let answers = buy(state.clone(), orders.collect(), way.clone());
                Box::pin(answers) as Task<Answers>
            });
            World {
                state,
                tasks: tasks.into(),
            }
        },
        |store, answers| {
            let unknown = check_known(store, answers.iter().flatten(), &skus)?;
            contended += unknown;
            let left: i64 = skus.iter().map(|sku| store.audit_now(sku).on_hand).sum();
            let repeated = keys.len().saturating_sub(1);
            let sold = store.deductions_now();
            let made: BTreeSet<_> = sold.iter().map(|one| one.operation).collect();
            let everything_sold = left == 0 || made.len() == members.len() - repeated;
            ensure!(unknown > 0 || everything_sold, "{answers:?}");
            Ok(())
        },
    );
    let schedules = explored.unwrap_or_else(|failure| panic!("{failure}"));
    println!("{schedules} schedules, {contended} deductions given up");
    assert_eq!(contended, 0);
}
