//! Tests of the explorer: it sees every schedule, and it reports a failure so that it can be
//! replayed. A tool that finds no errors proves something only if it finds errors that exist.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use anyhow::ensure;
use stocklock_core::model::{Decisions, Explorer, Failure, MemoryStore, Task, World, yield_once};
use stocklock_core::ports::{AttemptOutcome, Condition, DeductionStore, LedgerReader, StoreError};
use stocklock_core::stock::Operation;
use stocklock_core::strategy::Strategy;

use crate::interleavings::requests::{SKU, deduction, sku};

/// A counter that each task increments with a read and a write, which are two steps.
fn counters(tasks: usize) -> World<Arc<AtomicUsize>, ()> {
    let state = Arc::new(AtomicUsize::new(0));
    let add = |counter: Arc<AtomicUsize>| async move {
        yield_once().await;
        let read = counter.load(Relaxed);
        yield_once().await;
        counter.store(read + 1, Relaxed);
    };
    let tasks = (0..tasks).map(|_| Box::pin(add(Arc::clone(&state))) as Task<()>);
    let tasks = tasks.collect();
    World { state, tasks }
}

/// The number of schedules, and the number of those that lose no increment.
fn count(tasks: usize) -> (u64, u64) {
    let mut exact = 0;
    let schedules = Explorer::up_to(1_000).explore(
        |_| counters(tasks),
        |counter, _| {
            exact += u64::from(counter.load(Relaxed) == tasks);
            Ok(())
        },
    );
    (schedules.expect("the check never fails"), exact)
}

/// Two steps of each of n tasks have (2n)! / 2^n orders. In n! of them no task interrupts another.
#[test]
fn explorer_sees_every_interleaving_of_counters_once() {
    assert_eq!(count(1), (1, 1));
    assert_eq!(count(2), (6, 2));
    assert_eq!(count(3), (90, 6));
}

#[test]
#[should_panic(expected = "more than 89 schedules")]
fn explorer_panics_at_more_schedules_than_its_bound() {
    let _ = Explorer::up_to(89).explore(|_| counters(3), |_, _| Ok(()));
}

/// Two tasks take two locks in opposite order, which blocks them in some schedules only.
#[test]
fn explorer_reports_a_deadlock_with_its_schedule() {
    let build = |_: &Decisions| {
        let locks = Arc::new([tokio::sync::Mutex::new(()), tokio::sync::Mutex::new(())]);
        let both = |first: usize, second: usize| {
            let locks = Arc::clone(&locks);
            let task = async move {
                yield_once().await;
                let _first = locks[first].lock().await;
                yield_once().await;
                let _second = locks[second].lock().await;
            };
            Box::pin(task) as Task<()>
        };
        let tasks = vec![both(0, 1), both(1, 0)];
        World { state: (), tasks }
    };
    let explore = |explorer: Explorer| explorer.explore(build, |(), _| Ok(()));
    let failure = explore(Explorer::up_to(100)).expect_err("they can block each other");
    assert!(failure.why.contains("deadlock"), "{failure}");
    let replayed = explore(Explorer::only(&failure.schedule)).expect_err("the same schedule");
    assert_eq!(replayed.why, failure.why);
}

/// Checks one read of the level, reads again and overwrites the level without a condition.
async fn check_then_reread(
    store: &MemoryStore,
    deduction: &Operation,
) -> Result<AttemptOutcome, StoreError> {
    let (sku, warehouse) = deduction.level();
    let first = store.level(sku, warehouse).await?;
    if first.is_none_or(|level| level.available() < deduction.units()) {
        return Ok(AttemptOutcome::Insufficient { available: 0 });
    }
    match store.level(sku, warehouse).await? {
        Some(level) => {
            store
                .write_back(deduction, (&level).into(), Condition::None)
                .await
        }
        None => Ok(AttemptOutcome::UnknownSku),
    }
}

#[test]
fn walk_is_repeated_by_its_seed_and_by_its_schedule() {
    let failure = |seed| explore_broken_strategy(Explorer::walk(seed)).err();
    let mut seeds = 0..100;
    let found = seeds.find_map(|seed| Some((seed, failure(seed)?)));
    let (seed, first) = found.expect("a walk oversells");
    let again = failure(seed).expect("the same walk");
    assert_eq!(
        (again.schedule, again.trace),
        (first.schedule.clone(), first.trace)
    );
    let replayed = explore_broken_strategy(Explorer::only(&first.schedule));
    assert_eq!(replayed.expect_err("the same walk").why, first.why);
}

fn explore_broken_strategy(explorer: Explorer) -> Result<u64, Failure> {
    explorer.explore(
        |decisions| {
            let state = MemoryStore::new(decisions);
            state.stock(&sku(SKU), 1);
            let buy = |store: MemoryStore| async move {
                let deduction = deduction(&sku(SKU), None, Strategy::NoLock);
                let attempt = check_then_reread(&store, &deduction).await;
                attempt.expect("the model has no faults here");
            };
            let tasks = (0..2).map(|_| Box::pin(buy(state.clone())) as Task<()>);
            let tasks = tasks.collect();
            World { state, tasks }
        },
        |store, _| {
            let sold = store.deductions_now().len();
            ensure!(sold == 1, "sold {sold} of 1");
            Ok(())
        },
    )
}

#[test]
fn explorer_reports_a_broken_strategy_and_replays_it() {
    let failure = explore_broken_strategy(Explorer::up_to(1_000)).expect_err("it oversells");
    assert_eq!(failure.why, "sold 2 of 1");
    let printed = failure.to_string();
    assert!(printed.contains("task 1: SELECT"), "{printed}");
    assert!(printed.contains(&format!("only(\"{}\")", failure.schedule)));
    let replay = Explorer::only(&failure.schedule);
    let replayed = explore_broken_strategy(replay).expect_err("the same schedule");
    assert_eq!(replayed.why, failure.why);
    assert_eq!(replayed.trace, failure.trace);
}
