//! Every schedule of an order of two lines, and of deductions of its levels, through the schedulers of two
//! replicas.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use anyhow::ensure;
use rstest::rstest;
use stocklock_core::deduct::Scheduler;
use stocklock_core::model::{Decisions, Faults, MemoryStore, Task, World, mortal, yield_once};
use stocklock_core::ports::NoMetrics;
use stocklock_core::spawn::{Detached, Spawn};
use stocklock_core::stock::{Line, Operation};

use super::answers::explorer;
use super::batches::{Known, Way, buy, check_known, order};
use super::requests::{SKU, sku};
use super::scenario::policy;

const OTHER: &str = "1002";
const BOTH: &str = "1001 1002";

/// What each replica makes: the SKUs of each operation, and its key.
type Replicas = &'static [&'static [(&'static str, Option<&'static str>)]];

const ORDER: Replicas = &[&[(BOTH, None)]];
/// They wait for each other in one replica.
const ORDER_AND_DEDUCTION: Replicas = &[&[(BOTH, None), (OTHER, None)]];
/// The rows of one are locked by the other.
const ORDER_AND_RIVAL: Replicas = &[&[(BOTH, None)], &[(OTHER, None)]];
const ORDERS: Replicas = &[&[(BOTH, None)], &[("1002 1001", None)]];
const KEYED_ORDERS: Replicas = &[&[(BOTH, Some("K"))], &[(BOTH, Some("K"))]];
const ORDER_BEHIND_DEDUCTION: Replicas = &[&[(SKU, None), (BOTH, None)]];

/// What may happen besides the operations.
#[derive(Debug, Clone, Copy, Default)]
struct Events {
    commits: u32,
    statements: u32,
    /// Callers that leave.
    cancelled: u32,
    /// Tasks of batches that end.
    aborted: u32,
    /// Whether the second replica has no scheduler, which keeps the schedules few.
    is_rival_bare: bool,
}

const NONE: Events = Events {
    commits: 0,
    statements: 0,
    cancelled: 0,
    aborted: 0,
    is_rival_bare: false,
};
const COMMIT_LOST: Events = Events { commits: 1, ..NONE };
const STATEMENT_FAILS: Events = Events {
    statements: 1,
    ..NONE
};
const CANCELLED: Events = Events {
    cancelled: 1,
    ..NONE
};
const ABORTED: Events = Events { aborted: 1, ..NONE };

fn bare(events: Events) -> Events {
    Events {
        is_rival_bare: true,
        ..events
    }
}

/// Tasks that may be aborted before any of their steps.
#[derive(Debug)]
struct Mortal(Decisions, Arc<AtomicU32>);

impl Spawn for Mortal {
    fn spawn(&self, task: Detached) {
        let task = mortal(self.0.clone(), Arc::clone(&self.1), task);
        self.0.spawn(Box::pin(async move {
            let _ = task.await;
        }));
    }
}

/// No schedule oversells or makes a part of an order; each answer agrees with the ledger; a refused operation
/// found a level sold out; and the versions have no gaps.
#[rstest]
#[case::faultless(ORDER_AND_DEDUCTION, 1, NONE)]
#[case::for_all(ORDER_AND_DEDUCTION, 2, NONE)]
#[case::rival(ORDER_AND_RIVAL, 1, NONE)]
#[case::rival_for_all(ORDER_AND_RIVAL, 2, NONE)]
#[case::orders(ORDERS, 1, NONE)]
#[case::keyed(KEYED_ORDERS, 2, NONE)]
#[case::commit_lost(ORDER_BEHIND_DEDUCTION, 1, COMMIT_LOST)]
#[case::statement_fails(ORDER_BEHIND_DEDUCTION, 1, STATEMENT_FAILS)]
#[case::rival_statement_fails(ORDER_AND_RIVAL, 1, bare(STATEMENT_FAILS))]
#[case::cancelled(ORDER_BEHIND_DEDUCTION, 2, CANCELLED)]
#[case::rival_cancelled(ORDER_AND_RIVAL, 1, CANCELLED)]
#[case::aborted_alone(ORDER, 1, ABORTED)]
#[case::aborted(ORDER_BEHIND_DEDUCTION, 2, ABORTED)]
#[case::rival_aborted(ORDER_AND_RIVAL, 2, bare(ABORTED))]
fn operations_that_share_transactions_are_decided_one_by_one(
    #[case] replicas: Replicas,
    #[case] stock: i64,
    #[case] events: Events,
) {
    let skus = BTreeSet::from([SKU, OTHER].map(sku));
    let mut unknown = 0;
    let explored = explorer().explore(
        |decisions| world(decisions, replicas, stock, events),
        |store, answers: &[(Operation, Known)]| {
            unknown += check_known(store, answers, &skus)?;
            for (operation, known) in answers {
                let left = |line: &Line| store.audit_now(&line.sku).on_hand;
                let is_short = operation.lines.iter().any(|line| left(line) == 0);
                let is_right = *known != Known::NotSold || is_short;
                ensure!(is_right, "{operation:?} was refused: {answers:?}");
            }
            Ok(())
        },
    );
    let schedules = explored.unwrap_or_else(|failure| panic!("{failure}"));
    println!("{schedules} schedules, {unknown} unknown");
    assert_eq!(unknown > 0, events.cancelled > 0);
}

fn world(
    decisions: &Decisions,
    replicas: Replicas,
    stock: i64,
    events: Events,
) -> World<MemoryStore, (Operation, Known)> {
    let state = MemoryStore::new(decisions).with_faults(Faults {
        commits: events.commits,
        statements: events.statements,
        ..Faults::default()
    });
    for name in [SKU, OTHER] {
        state.stock(&sku(name), stock);
    }
    let cancelled = Arc::new(AtomicU32::new(events.cancelled));
    let aborted = Arc::new(AtomicU32::new(events.aborted));
    let mut tasks = Vec::new();
    for (number, replica) in replicas.iter().enumerate() {
        let store = Arc::new(state.clone());
        let tasks_of_batches = Mortal(decisions.clone(), Arc::clone(&aborted));
        let spawn = Arc::new(tasks_of_batches);
        let scheduler = Scheduler::new(store, &policy(6, false), spawn, Arc::new(NoMetrics));
        for (names, key) in *replica {
            let operation = order(names, *key);
            let way = if number > 0 && events.is_rival_bare {
                Way::Batch { read_first: false }
            } else {
                Way::Scheduled(Arc::clone(&scheduler))
            };
            let buyer = caller(state.clone(), operation.clone(), way);
            let buyer = mortal(decisions.clone(), Arc::clone(&cancelled), buyer);
            let known = async move { (operation, buyer.await.unwrap_or(Known::Unknown)) };
            tasks.push(Box::pin(known) as Task<_>);
        }
    }
    World { state, tasks }
}

fn caller(store: MemoryStore, operation: Operation, way: Way) -> Task<Known> {
    Box::pin(async move {
        yield_once().await;
        let answers = buy(store, vec![operation], way).await;
        answers[0].1
    })
}
