//! The explorer tested: it sees every schedule, and it reports what goes wrong so that it can be
//! seen again. A tool that finds nothing is worth something only if it would have found something.

use std::sync::{Arc, Mutex};

use anyhow::ensure;
use stocklock::stock::{Deduction, OperationId, Quantity, Sku, Warehouse};
use stocklock::store::{Attempt, StockStore, StoreError};

use crate::support::explore::{Decisions, Explorer, Failure, Task, World, yield_once};
use crate::support::memory_store::MemoryStore;

/// A counter that `tasks` add 1 to by a read and a write, either of which is a step.
fn counters(tasks: usize) -> World<Arc<Mutex<u32>>, ()> {
    let counter = Arc::new(Mutex::new(0));
    let add = |counter: Arc<Mutex<u32>>| async move {
        yield_once().await;
        let read = *counter.lock().expect("nobody panics with it");
        yield_once().await;
        *counter.lock().expect("nobody panics with it") = read + 1;
    };
    let tasks = (0..tasks).map(|_| Box::pin(add(Arc::clone(&counter))) as Task<()>);
    let tasks = tasks.collect();
    World {
        state: counter,
        tasks,
    }
}

/// Schedules in all, and those in which no addition was lost.
fn count(tasks: usize) -> (u64, u64) {
    let mut exact = 0;
    let schedules = Explorer::up_to(1_000).explore(
        |_| counters(tasks),
        |counter, _| {
            let sum = *counter.lock().expect("nobody panics with it");
            exact += u64::from(usize::try_from(sum)? == tasks);
            Ok(())
        },
    );
    (schedules.expect("nothing is checked"), exact)
}

/// Two steps of each of n tasks have (2n)! / 2^n orders; in n! of them nobody cuts in.
#[test]
fn every_interleaving_of_two_step_counters_is_seen_once() {
    assert_eq!(count(1), (1, 1));
    assert_eq!(count(2), (6, 2));
    assert_eq!(count(3), (90, 6));
}

#[test]
#[should_panic(expected = "more than 89 schedules")]
fn more_schedules_than_the_bound_are_a_failure() {
    let _ = Explorer::up_to(89).explore(|_| counters(3), |_, _| Ok(()));
}

/// Two tasks that take two locks in opposite order, as they can only in some schedules.
#[test]
fn a_deadlock_is_reported_with_its_schedule() {
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
    let again = explore(Explorer::only(&failure.schedule)).expect_err("the same schedule");
    assert_eq!(again.why, failure.why);
}

/// What looks careful, and is not: it checks, reads once more, and writes what follows from that.
async fn check_then_reread(
    store: &dyn StockStore,
    deduction: &Deduction,
) -> Result<Attempt, StoreError> {
    let (sku, warehouse) = (&deduction.sku, &deduction.warehouse);
    let first = store.level(sku, warehouse).await?;
    if first.is_none_or(|level| level.available() < deduction.quantity.units()) {
        return Ok(Attempt::Insufficient { available: 0 });
    }
    match store.level(sku, warehouse).await? {
        Some(level) => store.overwrite(deduction, &level).await,
        None => Ok(Attempt::UnknownSku),
    }
}

fn explore_broken(explorer: Explorer) -> Result<u64, Failure> {
    let sku = Sku::parse("1001").expect("a good name");
    explorer.explore(
        |decisions| {
            let store = MemoryStore::new(decisions, 0);
            store.stock(&sku, 1);
            let buy = |store: MemoryStore, sku: Sku| async move {
                let deduction = Deduction {
                    operation: OperationId::mint(),
                    sku,
                    warehouse: Warehouse::default(),
                    quantity: Quantity::ONE,
                    idempotency: None,
                    strategy: "check-then-reread",
                };
                let attempt = check_then_reread(&store, &deduction).await;
                attempt.expect("the model has no faults here");
            };
            let tasks = (0..2).map(|_| Box::pin(buy(store.clone(), sku.clone())) as Task<()>);
            let tasks = tasks.collect();
            World {
                state: store,
                tasks,
            }
        },
        |store, _| {
            let sold = store.deductions_now().len();
            ensure!(sold == 1, "sold {sold} of 1");
            Ok(())
        },
    )
}

#[test]
fn a_broken_strategy_is_reported_and_its_schedule_fails_again() {
    let failure = explore_broken(Explorer::up_to(1_000)).expect_err("it oversells");
    assert_eq!(failure.why, "sold 2 of 1");
    let printed = failure.to_string();
    assert!(printed.contains("task 1: SELECT"), "{printed}");
    assert!(printed.contains(&format!("only(\"{}\")", failure.schedule)));
    let again = explore_broken(Explorer::only(&failure.schedule)).expect_err("the same schedule");
    assert_eq!(again.why, failure.why);
    assert_eq!(again.trace, failure.trace);
}
