//! Every schedule of two batches of two deductions, of two replicas.
//!
//! The queue is left out, so that both batches always have two members. Scenarios with `GroupCommit`
//! explore it with the rest of the service.

use anyhow::ensure;
use rstest::rstest;
use stocklock_core::model::{Faults, MemoryStore, Task, World};
use stocklock_core::ports::{
    AttemptOutcome, DeductionStore, LateAttempt, LedgerReader, StoreError,
};
use stocklock_core::stock::{Deduction, OperationId};
use stocklock_core::strategy::Strategy::GroupCommit;

use super::answers::explorer;
use super::scenario::{SKU, deduction, sku};

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

/// Attempts each deduction until its outcome is known, at most six times.
async fn buy_all(store: MemoryStore, batch: Vec<Deduction>, read_first: bool) -> Answers {
    let mut known = Vec::new();
    let mut left: Vec<_> = batch.into_iter().map(|order| (order, None)).collect();
    for _ in 0..6 {
        let orders: Vec<_> = left.iter().map(|(order, _)| order.clone()).collect();
        let answers = store.deduct_all(&orders, read_first).await;
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
                Ok(AttemptOutcome::Insufficient { .. }) => {
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

/// The batches of two replicas: a key for each member.
type Batches = [&'static [Option<&'static str>]; 2];

const NO_KEYS: Batches = [&[None, None], &[None, None]];
/// The second request with the key `K` comes to the other replica.
const SHARED_KEY: Batches = [&[Some("K"), None], &[None, Some("K")]];
/// It comes in the same batch.
const REPEATED_KEY: Batches = [&[Some("K"), Some("K")], &[None, None]];

/// The second batch has one member, so it is made like `single-sql`.
const ONE_ALONE: Batches = [&[Some("K"), None], &[Some("K")]];

/// No schedule oversells, each answer agrees with the ledger, and the versions have no gaps.
#[rstest]
#[case::sold_out(NO_KEYS, 3, Faults::default())]
#[case::shared_key(SHARED_KEY, 2, Faults::default())]
#[case::repeated_key(REPEATED_KEY, 2, Faults::default())]
#[case::commit_lost(NO_KEYS, 3, Faults { commits: 1, ..Faults::default() })]
#[case::commit_lost_shared_key(SHARED_KEY, 2, Faults { commits: 1, ..Faults::default() })]
#[case::message_late(ONE_ALONE, 1, Faults { late_messages: 1, ..Faults::default() })]
#[case::statement_fails(NO_KEYS, 3, Faults { statements: 1, ..Faults::default() })]
fn two_batches_of_two_are_decided_one_by_one(
    #[case] batches: Batches,
    #[case] stock: i64,
    #[case] faults: Faults,
    #[values(false, true)] read_first: bool,
) {
    let sku = sku(SKU);
    let mut contended = 0;
    let explored = explorer().explore(
        |decisions| {
            let state = MemoryStore::new(decisions).with_faults(faults);
            state.stock(&sku, stock);
            let tasks = batches.map(|keys| {
                let batch = keys.iter().map(|key| deduction(&sku, *key, GroupCommit));
                let answers = buy_all(state.clone(), batch.collect(), read_first);
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
            for (operation, known) in answers.iter().flatten() {
                match known {
                    Known::Sold(of) => ensure!(count(*of) == 1, "{of}: {sold:?}"),
                    Known::NotSold => ensure!(count(*operation) == 0, "{operation} was sold"),
                    Known::Unknown => contended += 1,
                }
            }
            let audit = store.audit_now(&sku);
            ensure!(audit.consistent() && audit.oversold() == 0, "{audit:?}");
            let versions: Vec<_> = sold.iter().filter_map(|one| one.level_version).collect();
            let expected: Vec<_> = (2..).take(sold.len()).collect();
            ensure!(versions == expected, "{versions:?}");
            let members = batches.concat().len();
            let buyers = members - usize::from(batches != NO_KEYS);
            let unknown = answers
                .iter()
                .flatten()
                .any(|(_, known)| *known == Known::Unknown);
            let wanted = buyers.min(usize::try_from(stock)?);
            ensure!(unknown || sold.len() == wanted, "{answers:?}");
            Ok(())
        },
    );
    let schedules = explored.unwrap_or_else(|failure| panic!("{failure}"));
    println!("{schedules} schedules, {contended} deductions given up");
    assert_eq!(contended, 0);
}
