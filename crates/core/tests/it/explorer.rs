//! Tests of the explorer: it sees every schedule, and it reports a failure so that it can be
//! replayed. A tool that finds no errors proves something only if it finds errors that exist.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use anyhow::ensure;
use stocklock_core::model::{Decisions, Explorer, Failure, Task, World, yield_once};

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
fn explorer_reports_a_deadlock() {
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
    let explored = Explorer::up_to(100).explore(build, |(), _| Ok(()));
    let failure = explored.expect_err("they can block each other");
    assert!(failure.why.contains("deadlock"), "{failure}");
}

fn explore_lost_increments(explorer: Explorer) -> Result<u64, Failure> {
    explorer.explore(
        |_| counters(2),
        |counter, _| {
            ensure!(counter.load(Relaxed) == 2, "an increment is lost");
            Ok(())
        },
    )
}

#[test]
fn failure_is_repeated_by_its_schedule_and_walk_by_its_seed() {
    let walk = |seed| explore_lost_increments(Explorer::walk(seed)).err();
    let mut seeds = 0..100;
    let found = seeds.find_map(|seed| Some((seed, walk(seed)?)));
    let (seed, walked) = found.expect("a walk loses one");
    let again = walk(seed).expect("the same walk");
    assert_eq!(again.schedule, walked.schedule);
    let explored = explore_lost_increments(Explorer::up_to(100)).expect_err("one is lost");
    for failure in [walked, explored] {
        assert_eq!(failure.why, "an increment is lost");
        let only = format!("only(\"{}\")", failure.schedule);
        assert!(failure.to_string().contains(&only), "{failure}");
        let replay = Explorer::only(&failure.schedule);
        let replayed = explore_lost_increments(replay).expect_err("the same schedule");
        assert_eq!(replayed.why, failure.why);
    }
}
