//! Tests of what shares a transaction.

use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::sleep;

use super::*;
use crate::ports::{AttemptOutcome, NoMetrics};
use crate::spawn::Detached;

mod calls;

use calls::{AWAY, BROKEN, Calls, LOCKED, MAX_BATCH, SHORT};

const WAIT_LIMIT: Duration = Duration::from_secs(2);

/// The tasks of the batches.
#[derive(Debug, Default)]
struct Tasks(Mutex<Vec<JoinHandle<()>>>);

impl Spawn for Tasks {
    fn spawn(&self, task: Detached) {
        self.0.lock().push(tokio::spawn(task));
    }
}

type Buyer = JoinHandle<BatchAnswer>;

struct Scene {
    scheduler: Arc<Scheduler>,
    calls: Arc<Calls>,
    tasks: Arc<Tasks>,
}

impl Scene {
    fn new() -> Self {
        let calls = Arc::new(Calls {
            ends: Semaphore::new(0),
            called: Mutex::default(),
        });
        let policy = RetryPolicy::new(1, WAIT_LIMIT, WAIT_LIMIT);
        let store: Arc<dyn OperationStore> = Arc::clone(&calls) as _;
        let tasks = Arc::new(Tasks::default());
        Self {
            scheduler: Scheduler::new(store, &policy, Arc::clone(&tasks) as _, Arc::new(NoMetrics)),
            calls,
            tasks,
        }
    }

    /// Two transactions in flight, which is the maximum. Together they claim four levels.
    async fn with_transactions() -> (Self, Vec<Buyer>) {
        let scene = Self::new();
        let buyers = scene.buy_all(["w+x", "y+z"]).await;
        assert_eq!(scene.end_calls(0).await, ["[w+x]", "[y+z]"]);
        (scene, buyers)
    }

    /// A buyer of these SKUs, who waits.
    async fn buy(&self, skus: &str) -> Buyer {
        let lines = skus.split('+').flat_map(|sku| Operation::sample(sku).lines);
        let operation = Operation {
            lines: lines.collect(),
            ..Operation::sample("a")
        };
        let scheduler = Arc::clone(&self.scheduler);
        let buyer = tokio::spawn(async move { scheduler.attempt(operation).await });
        settle().await;
        buyer
    }

    async fn buy_all<const N: usize>(&self, orders: [&str; N]) -> Vec<Buyer> {
        let mut buyers = Vec::new();
        for skus in orders {
            buyers.push(self.buy(skus).await);
        }
        buyers
    }

    /// Aborts the task that was started last.
    fn abort_last(&self) {
        let tasks = self.tasks.0.lock();
        tasks.last().expect("a task").abort();
    }

    /// Lets calls end. Returns those that have been made since the last time.
    async fn end_calls(&self, number: usize) -> Vec<String> {
        self.calls.ends.add_permits(number);
        settle().await;
        std::mem::take(&mut *self.calls.called.lock())
    }
}

/// Lets all tasks run until each waits.
async fn settle() {
    for _ in 0..20 {
        yield_now().await;
    }
}

async fn assert_sold(buyers: impl IntoIterator<Item = Buyer>) {
    for buyer in buyers {
        let answer = buyer.await.expect("no panic");
        assert!(
            matches!(answer, Ok(AttemptOutcome::Deducted { .. })),
            "{answer:?}"
        );
    }
}

async fn assert_queued(buyer: Buyer) {
    let answer = buyer.await.expect("no panic");
    assert!(matches!(answer, Err(StoreError::Queued)), "{answer:?}");
}

async fn assert_unknown(buyer: Buyer) {
    let answer = buyer.await.expect("no panic");
    assert!(
        matches!(answer, Err(StoreError::OutcomeUnknown(..))),
        "{answer:?}"
    );
}

/// If four levels are claimed, and two transactions are in flight, a batch waits.
#[tokio::test(start_paused = true)]
async fn batch_of_one_level_starts_while_few_levels_are_claimed() {
    let scene = Scene::new();
    let mut buyers = scene.buy_all(["a", "b", "c", "v+w", "x+y"]).await;
    buyers.extend(scene.buy_all(["d", "e", "d"]).await);
    let first = ["1 a", "1 b", "1 c", "[v+w]", "[x+y]"];
    assert_eq!(scene.end_calls(0).await, first);
    // Four others are still claimed.
    assert!(scene.end_calls(3).await.is_empty());
    assert_eq!(scene.end_calls(1).await, ["[d, e, d]"]);
    scene.end_calls(2).await;
    assert_sold(buyers).await;
}

#[tokio::test(start_paused = true)]
async fn level_left_out_is_written_in_its_own_transaction() {
    let (scene, mut buyers) = Scene::with_transactions().await;
    buyers.extend(scene.buy_all(["d", LOCKED, SHORT]).await);
    assert_eq!(scene.end_calls(1).await, ["[d, locked, short]"]);
    // The slot is free, and the levels are not.
    buyers.extend(scene.buy_all([LOCKED, "d"]).await);
    let mut calls = scene.end_calls(2).await;
    calls.sort_unstable();
    assert_eq!(calls, ["1 d", "1 locked", "1 short"]);
    assert_eq!(scene.end_calls(3).await, ["1 locked"]);
    scene.end_calls(1).await;
    assert_sold(buyers).await;
}

#[tokio::test(start_paused = true)]
async fn order_that_misses_a_row_frees_its_other_levels() {
    let scene = Scene::new();
    let order = scene.buy("a+locked").await;
    assert_eq!(scene.end_calls(1).await, ["[a+locked]", "wait for locked"]);
    // Its other level is free.
    let mut buyers = scene.buy_all(["a", "locked", "a"]).await;
    assert_eq!(scene.end_calls(0).await, ["1 a"]);
    // Before the younger ones.
    assert_eq!(scene.end_calls(2).await, ["[a+locked, locked, a]"]);
    assert_eq!(scene.end_calls(1).await, ["1 locked"]);
    // After two misses, it keeps the rows that it has locked while it waits for the other.
    buyers.push(scene.buy("a").await);
    assert_eq!(scene.end_calls(1).await, ["1 a"]);
    assert_eq!(scene.end_calls(1).await, ["waiting [a+locked]"]);
    scene.end_calls(1).await;
    buyers.push(order);
    assert_sold(buyers).await;
}

#[tokio::test(start_paused = true)]
async fn order_that_is_decided_apart_is_made_alone() {
    let scene = Scene::new();
    let buyers = scene.buy_all(["a+short", "a"]).await;
    assert_eq!(scene.end_calls(1).await, ["[a+short]", "waiting [a+short]"]);
    assert_eq!(scene.end_calls(1).await, ["1 a"]);
    scene.end_calls(1).await;
    assert_sold(buyers).await;
}

#[tokio::test(start_paused = true)]
async fn order_whose_rows_are_never_free_is_given_up() {
    let scene = Scene::new();
    let order = scene.buy("a+locked").await;
    assert_eq!(scene.end_calls(1).await, ["[a+locked]", "wait for locked"]);
    sleep(WAIT_LIMIT).await;
    assert!(scene.end_calls(1).await.is_empty());
    let answer = order.await.expect("no panic");
    assert!(matches!(answer, Err(StoreError::LockWait(_))), "{answer:?}");
}

/// It would wait for a connection and a row again, perhaps past its deadline.
#[tokio::test(start_paused = true)]
async fn operation_left_out_too_late_is_refused_as_overloaded() {
    let scene = Scene::new();
    let order = scene.buy("a+b").await;
    let locked = scene.buy_all(["c+d", LOCKED]).await.pop().expect("a buyer");
    assert_eq!(scene.end_calls(0).await, ["[a+b]", "[c+d]"]);
    // Stuck transactions make room.
    sleep(WAIT_LIMIT / 4).await;
    assert_eq!(scene.end_calls(0).await, ["[locked]"]);
    sleep(WAIT_LIMIT / 2).await;
    scene.end_calls(3).await;
    assert_queued(locked).await;
    assert_sold([order]).await;
}

#[tokio::test(start_paused = true)]
async fn batch_has_at_most_max_batch_lines() {
    let scene = Scene::new();
    let mut buyers = vec![scene.buy("a").await];
    buyers.extend(scene.buy_all(["a"; MAX_BATCH + 1]).await);
    assert_eq!(scene.end_calls(0).await, ["1 a"]);
    assert_eq!(scene.end_calls(1).await, ["4 a"]);
    assert_eq!(scene.end_calls(1).await, ["1 a"]);
    scene.end_calls(1).await;
    assert_sold(buyers).await;
}

#[tokio::test(start_paused = true)]
async fn stuck_transactions_make_room_for_others() {
    let (scene, mut buyers) = Scene::with_transactions().await;
    buyers.extend(scene.buy_all(["d", "e"]).await);
    assert!(scene.end_calls(0).await.is_empty());
    sleep(WAIT_LIMIT / 4).await;
    assert_eq!(scene.end_calls(0).await, ["[d, e]"]);
    scene.end_calls(3).await;
    assert_sold(buyers).await;
}

#[tokio::test(start_paused = true)]
async fn operations_behind_a_stuck_batch_are_given_up() {
    let scene = Scene::new();
    let stuck = scene.buy("a").await;
    let early = scene.buy("a").await;
    sleep(WAIT_LIMIT * 3 / 4).await;
    let late = scene.buy("a").await;
    sleep(WAIT_LIMIT / 2).await;
    assert_queued(early).await;
    assert_eq!(scene.end_calls(2).await, ["1 a", "1 a"]);
    assert_sold([stuck, late]).await;
}

#[tokio::test(start_paused = true)]
async fn operation_that_waits_for_the_limit_is_overloaded() {
    let scene = Scene::new();
    let mut buyers = vec![scene.buy("a").await];
    let behind = scene.buy("a").await;
    sleep(WAIT_LIMIT.saturating_sub(Duration::from_millis(1))).await;
    buyers.push(scene.buy("a").await);
    sleep(Duration::from_millis(1)).await;
    scene.end_calls(1).await;
    assert_queued(behind).await;
    scene.end_calls(1).await;
    assert_sold(buyers).await;
}

/// The next batch would wait just as long for the server.
#[tokio::test(start_paused = true)]
async fn unavailable_server_ends_waits_of_half_the_limit() {
    let scene = Scene::new();
    let first = scene.buy(AWAY).await;
    let early = scene.buy(AWAY).await;
    sleep(WAIT_LIMIT / 2).await;
    let late = scene.buy(AWAY).await;
    assert_eq!(scene.end_calls(1).await, ["1 away", "1 away"]);
    for buyer in [first, early] {
        let answer = buyer.await.expect("no panic");
        assert!(
            matches!(answer, Err(StoreError::Unavailable(_))),
            "{answer:?}"
        );
    }
    assert!(!late.is_finished());
}

#[tokio::test(start_paused = true)]
async fn caller_who_leaves_cancels_nothing() {
    let scene = Scene::new();
    let first = scene.buy("a").await;
    let waits = scene.buy("a").await;
    let last = scene.buy("a").await;
    first.abort();
    waits.abort();
    assert_eq!(scene.end_calls(1).await, ["1 a", "2 a"]);
    scene.end_calls(1).await;
    assert_sold([last]).await;
}

/// The transaction may have committed, so the batch is not made again as if nothing had been sent.
#[tokio::test(start_paused = true)]
async fn batch_without_an_answer_has_an_unknown_outcome() {
    let scene = Scene::new();
    let broken = scene.buy("a+broken").await;
    assert_eq!(scene.end_calls(1).await, ["[a+broken]"]);
    assert_unknown(broken).await;
    // Its levels and its slot are free again.
    let buyers = scene.buy_all(["a+b", "c+d", BROKEN]).await;
    assert_eq!(scene.end_calls(3).await, ["[a+b]", "[c+d]", "1 broken"]);
    assert_sold(buyers).await;
}

#[tokio::test(start_paused = true)]
async fn aborted_task_frees_its_levels_for_those_that_wait() {
    let scene = Scene::new();
    let first = scene.buy("a+b").await;
    let next = scene.buy_all(["a", "b"]).await;
    scene.abort_last();
    settle().await;
    assert_unknown(first).await;
    assert_eq!(scene.end_calls(1).await, ["[a+b]", "[a, b]"]);
    assert_sold(next).await;
}
