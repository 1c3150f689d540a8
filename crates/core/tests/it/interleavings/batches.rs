//! Every schedule of two batches of two deductions, of two replicas; of one level, or of two.
//!
//! The queue is left out, so that both batches always have two members. Scenarios with `GroupCommit`
//! explore it with the rest of the service.

use std::collections::BTreeSet;

use anyhow::ensure;
use rstest::rstest;
use stocklock_core::model::{Faults, MemoryStore, Task, World};
use stocklock_core::ports::{
    AttemptOutcome, BatchAnswer, DeductionStore, LateAttempt, LedgerReader, StoreError,
};
use stocklock_core::stock::{Deduction, OperationId};
use stocklock_core::strategy::Strategy::GroupCommit;

use super::answers::explorer;
use super::requests::{SKU, deduction, sku};

/// What a buyer knows in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    /// The ledger has this operation.
    Sold(OperationId),
    /// The ledger does not have the buyer's operation, and never will.
    NotSold,
    /// The buyer gave up, and does not know.
    Unknown,
}

type Answers = Vec<(OperationId, Known)>;

/// How a replica makes its deductions.
#[derive(Debug, Clone, Copy)]
enum Way {
    /// In one batch of one level.
    Batch { read_first: bool },
    /// The levels in one transaction. Those that are refused, each by itself.
    Merged,
}

impl Way {
    async fn attempt(self, store: &MemoryStore, orders: &[Deduction]) -> Vec<BatchAnswer> {
        if let Self::Batch { read_first } = self {
            return store.deduct_all(orders, read_first).await;
        }
        let batches = orders.chunk_by(|one, next| one.sku == next.sku);
        let batches: Vec<_> = batches.map(<[_]>::to_vec).collect();
        let mut answers = Vec::new();
        for (batch, merged) in batches.iter().zip(store.deduct_merged(&batches).await) {
            match merged {
                Some(merged) => answers.extend(merged),
                None => answers.extend(store.deduct_all(batch, false).await),
            }
        }
        answers
    }
}

/// Attempts each deduction until its outcome is known, at most six times.
async fn buy_all(store: MemoryStore, batch: Vec<Deduction>, way: Way) -> Answers {
    let mut known = Vec::new();
    let mut left: Vec<_> = batch.into_iter().map(|order| (order, None)).collect();
    for _ in 0..6 {
        let orders: Vec<_> = left.iter().map(|(order, _)| order.clone()).collect();
        let answers = way.attempt(&store, &orders).await;
        let mut again = Vec::new();
        for ((order, unknown), answer) in left.into_iter().zip(answers) {
            let operation = order.operation;
            match answer {
                Ok(AttemptOutcome::Deducted { .. }) => {
                    known.push((operation, Known::Sold(operation)));
                }
                Ok(AttemptOutcome::Recorded(movement)) => {
                    known.push((operation, Known::Sold(movement.operation)));
                }
                Ok(AttemptOutcome::Insufficient { .. } | AttemptOutcome::Unrecorded { .. }) => {
                    let late = match unknown {
                        Some(expiry) => store.late_attempt(&order, expiry).await,
                        None => Ok(LateAttempt::Dead),
                    };
                    known.push((
                        operation,
                        match late {
                            Ok(LateAttempt::Dead) => Known::NotSold,
                            Ok(LateAttempt::Recorded(movement)) => Known::Sold(movement.operation),
                            Ok(LateAttempt::Alive) | Err(_) => Known::Unknown,
                        },
                    ));
                }
                Ok(AttemptOutcome::Duplicate) => {
                    let key = order.idempotency.as_ref();
                    match store.recorded(&order.sku, operation, key).await {
                        Ok(Some(movement)) => {
                            known.push((operation, Known::Sold(movement.operation)));
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
    known.extend(
        left.iter()
            .map(|(order, _)| (order.operation, Known::Unknown)),
    );
    known
}

/// What two replicas sell: the SKU and the key of each deduction.
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
    explore(replicas, stock, faults, Way::Batch { read_first });
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
    explore(replicas, stock, faults, Way::Merged);
}

/// Explores two replicas. Each level has `stock` units.
fn explore(replicas: Replicas, stock: i64, faults: Faults, way: Way) {
    let members = replicas.concat();
    let skus: BTreeSet<_> = members.iter().map(|(name, _)| sku(name)).collect();
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
                let orders = orders.map(|(name, key)| deduction(&sku(name), *key, GroupCommit));
                let answers = buy_all(state.clone(), orders.collect(), way);
                Box::pin(answers) as Task<Answers>
            });
            World {
                state,
                tasks: tasks.into(),
            }
        },
        |store, answers| {
            let sold = store.deductions_now();
            let count = |operation| sold.iter().filter(|one| one.operation == operation).count();
            let mut unknown = false;
            for (operation, known) in answers.iter().flatten() {
                match known {
                    Known::Sold(of) => ensure!(count(*of) == 1, "{of}: {sold:?}"),
                    Known::NotSold => ensure!(count(*operation) == 0, "{operation} was sold"),
                    Known::Unknown => {
                        contended += 1;
                        unknown = true;
                    }
                }
            }
            let mut left = 0;
            for sku in &skus {
                let audit = store.audit_now(sku);
                ensure!(audit.consistent() && audit.oversold() == 0, "{audit:?}");
                left += audit.on_hand;
                let of_sku = sold.iter().filter(|one| one.sku == *sku);
                let versions: Vec<_> = of_sku.map(|one| one.level_version).collect();
                let expected: Vec<_> = (2..).take(versions.len()).collect();
                ensure!(versions == expected, "{versions:?}");
            }
            let repeated = keys.len().saturating_sub(1);
            let everything_sold = left == 0 || sold.len() == members.len() - repeated;
            ensure!(unknown || everything_sold, "{answers:?}");
            Ok(())
        },
    );
    let schedules = explored.unwrap_or_else(|failure| panic!("{failure}"));
    println!("{schedules} schedules, {contended} deductions given up");
    assert_eq!(contended, 0);
}
