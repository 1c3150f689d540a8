//! Tests of what shares a transaction, with a store whose calls end when the test lets them.

use async_trait::async_trait;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::sleep;

use super::*;
use crate::ports::{AttemptOutcome, LateAttempt, LedgerReader};
use crate::spawn::Detached;
use crate::stock::{Deduction, Idempotency, Movement, OperationId, StockLevel};
use queues::ALONE;

const WAIT_LIMIT: Duration = Duration::from_secs(2);

/// The maximum number of lines in a batch of this store.
const MAX_BATCH: usize = 4;

/// A level whose transaction panics.
const BROKEN: &str = "broken";

/// A level that each transaction of several levels misses, unless it waits.
const LOCKED: &str = "locked";

/// A level that is decided apart.
const SHORT: &str = "short";

/// A level of a database that is away.
const AWAY: &str = "away";

#[derive(Debug)]
struct Calls {
    /// One permit for each call that may end.
    ends: Semaphore,
    called: Mutex<Vec<String>>,
}

impl Calls {
    async fn call(&self, what: String) {
        self.called.lock().expect("no panic").push(what);
        let end = self.ends.acquire().await;
        end.expect("never closed").forget();
    }
}

fn sold(operation: &Operation) -> BatchAnswer {
    if has(operation, AWAY).is_some() {
        return Err(StoreError::Unavailable("it is away".into()));
    }
    Ok(AttemptOutcome::Deducted { remaining: 1 })
}

fn has(operation: &Operation, sku: &str) -> Option<usize> {
    let mut lines = operation.lines.iter();
    lines.position(|line| line.sku.as_str() == sku)
}

fn text(operation: &Operation) -> String {
    let lines = operation.lines.iter();
    lines
        .map(|line| line.sku.as_str())
        .collect::<Vec<_>>()
        .join("+")
}

#[async_trait]
impl LedgerReader for Calls {
    async fn level(&self, _: &Sku, _: &Warehouse) -> Result<Option<StockLevel>, StoreError> {
        unreachable!("no batch reads a level through the port")
    }

    async fn recorded(
        &self,
        _: &Sku,
        _: OperationId,
        _: Option<&Idempotency>,
    ) -> Result<Option<Movement>, StoreError> {
        unreachable!("no batch reads the ledger through the port")
    }
}

#[async_trait]
impl OperationStore for Calls {
    async fn write(&self, _: &Operation) -> BatchAnswer {
        unreachable!("every operation is in a batch")
    }

    async fn operation(&self, _: OperationId) -> Result<Vec<Movement>, StoreError> {
        unreachable!("no batch reads the ledger through the port")
    }

    fn max_batch(&self) -> usize {
        MAX_BATCH
    }

    fn max_in_flight(&self) -> usize {
        2
    }

    async fn write_batch(&self, batch: &[Operation], _: bool) -> Vec<BatchAnswer> {
        self.call(format!("{} {}", batch.len(), batch[0].first().sku))
            .await;
        batch.iter().map(sold).collect()
    }

    async fn write_shared(&self, operations: &[Operation], briefly: bool) -> Vec<SharedAnswer> {
        let texts: Vec<_> = operations.iter().map(text).collect();
        let wait = if briefly { "waiting " } else { "" };
        self.call(format!("{wait}[{}]", texts.join(", "))).await;
        assert!(
            !operations.iter().any(|one| has(one, BROKEN).is_some()),
            "broken"
        );
        let answer = |operation: &Operation| match has(operation, LOCKED) {
            _ if briefly => SharedAnswer::Made(sold(operation)),
            Some(line) => SharedAnswer::Missed(line),
            None if has(operation, SHORT).is_some() => SharedAnswer::Apart,
            None => SharedAnswer::Made(sold(operation)),
        };
        operations.iter().map(answer).collect()
    }

    async fn wait_for_level(&self, sku: &Sku, _: &Warehouse) -> Result<(), StoreError> {
        self.call(format!("wait for {sku}")).await;
        Ok(())
    }

    async fn late_attempt(&self, _: &Operation, _: Expiry) -> Result<LateAttempt, StoreError> {
        unreachable!("no batch looks for late attempts")
    }
}

/// The tasks of the batches.
#[derive(Debug, Default)]
struct Tasks(Mutex<Vec<JoinHandle<()>>>);

impl Spawn for Tasks {
    fn spawn(&self, task: Detached) {
        self.0.lock().expect("no panic").push(tokio::spawn(task));
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
            scheduler: Scheduler::new(store, &policy, Arc::clone(&tasks) as _),
            calls,
            tasks,
        }
    }

    /// [`ALONE`] batches of one level in flight.
    async fn with_batches_alone() -> (Self, Vec<Buyer>) {
        let scene = Self::new();
        let mut buyers = Vec::new();
        for sku in ["w", "x", "y", "z"] {
            buyers.push(scene.buy(sku).await);
        }
        assert_eq!(scene.end_calls(0).await, FIRST);
        (scene, buyers)
    }

    /// A buyer of these SKUs, who waits.
    async fn buy(&self, skus: &str) -> Buyer {
        let lines = skus.split('+').map(|sku| {
            let one = Operation::from(Deduction::sample(sku));
            one.lines.into_iter().next().expect("a line")
        });
        let operation = Operation {
            lines: lines.collect(),
            ..Deduction::sample("a").into()
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

    /// Lets calls end. Returns those that have been made since the last time.
    async fn end_calls(&self, number: usize) -> Vec<String> {
        self.calls.ends.add_permits(number);
        settle().await;
        std::mem::take(&mut *self.calls.called.lock().expect("no panic"))
    }
}

/// The calls of [`ALONE`] batches, which no other batch shares.
const FIRST: [&str; ALONE] = ["1 w", "1 x", "1 y", "1 z"];

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

#[tokio::test(start_paused = true)]
async fn levels_share_a_transaction_if_many_are_in_flight() {
    let (scene, mut buyers) = Scene::with_batches_alone().await;
    // Two transactions. The others gather.
    buyers.extend(scene.buy_all(["b", "c", "d", "e", "d", "f"]).await);
    assert_eq!(scene.end_calls(0).await, ["[b]", "[c]"]);
    assert_eq!(scene.end_calls(ALONE + 2).await, ["[d, e, d, f]"]);
    scene.end_calls(1).await;
    assert_sold(buyers).await;
}

#[tokio::test(start_paused = true)]
async fn order_shares_a_transaction_with_deductions() {
    let scene = Scene::new();
    let mut buyers = vec![scene.buy("a+b").await];
    buyers.extend(scene.buy_all(["a", "b+c", "c"]).await);
    // `c` waits for the order before it.
    assert_eq!(scene.end_calls(0).await, ["[a+b]"]);
    assert_eq!(scene.end_calls(1).await, ["[a, b+c, c]"]);
    scene.end_calls(1).await;
    assert_sold(buyers).await;
}

#[tokio::test(start_paused = true)]
async fn level_that_is_left_out_is_made_alone() {
    let (scene, mut buyers) = Scene::with_batches_alone().await;
    buyers.extend(scene.buy_all(["b", "c", "d", LOCKED, SHORT]).await);
    assert_eq!(scene.end_calls(0).await, ["[b]", "[c]"]);
    assert_eq!(scene.end_calls(ALONE + 2).await, ["[d, locked, short]"]);
    // The slot is free, and the levels are not.
    buyers.extend(scene.buy_all([LOCKED, "d"]).await);
    assert_eq!(scene.end_calls(1).await, ["1 locked", "1 short", "1 d"]);
    assert_eq!(scene.end_calls(3).await, ["1 locked"]);
    scene.end_calls(1).await;
    assert_sold(buyers).await;
}

#[tokio::test(start_paused = true)]
async fn order_waits_for_the_row_that_it_missed_without_a_claim() {
    let scene = Scene::new();
    let order = scene.buy("a+locked").await;
    assert_eq!(scene.end_calls(1).await, ["[a+locked]", "wait for locked"]);
    // Its other level is free.
    let mut buyers = scene.buy_all(["a", "locked", "a"]).await;
    assert_eq!(scene.end_calls(0).await, ["1 a"]);
    // Before the younger ones.
    assert_eq!(scene.end_calls(2).await, ["[a+locked, locked, a]"]);
    assert_eq!(scene.end_calls(1).await, ["1 locked"]);
    // After two misses, it waits with the rows that it has.
    buyers.push(scene.buy("a").await);
    assert_eq!(scene.end_calls(1).await, ["1 a", "waiting [a+locked]"]);
    scene.end_calls(2).await;
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
async fn level_that_is_left_out_too_late_is_overloaded() {
    let (scene, first) = Scene::with_batches_alone().await;
    let locked = scene.buy(LOCKED).await;
    sleep(WAIT_LIMIT / 2).await;
    assert_eq!(scene.end_calls(ALONE + 1).await, ["[locked]"]);
    assert_queued(locked).await;
    assert_sold(first).await;
}

#[tokio::test(start_paused = true)]
async fn batch_has_at_most_as_many_as_the_store_takes() {
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
    let (scene, mut buyers) = Scene::with_batches_alone().await;
    buyers.extend(scene.buy_all(["b", "c", "d", "e"]).await);
    assert_eq!(scene.end_calls(0).await, ["[b]", "[c]"]);
    sleep(WAIT_LIMIT / 4).await;
    assert_eq!(scene.end_calls(0).await, ["[d, e]"]);
    scene.end_calls(ALONE + 3).await;
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
    let (scene, mut buyers) = Scene::with_batches_alone().await;
    buyers.extend(scene.buy_all(["a"]).await);
    let behind = scene.buy("a").await;
    sleep(WAIT_LIMIT - Duration::from_millis(1)).await;
    let late = scene.buy("a").await;
    sleep(Duration::from_millis(1)).await;
    scene.end_calls(ALONE + 1).await;
    assert_queued(behind).await;
    scene.end_calls(1).await;
    buyers.push(late);
    assert_sold(buyers).await;
}

/// The next batch would wait for the server as long.
#[tokio::test(start_paused = true)]
async fn error_of_the_server_is_shared_by_those_that_wait() {
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
    let (scene, mut buyers) = Scene::with_batches_alone().await;
    let broken = scene.buy(BROKEN).await;
    assert_eq!(scene.end_calls(ALONE + 1).await, ["[broken]"]);
    assert_unknown(broken).await;
    // Neither its level nor its slot is lost.
    buyers.extend(scene.buy_all(["a+b", "c+d"]).await);
    let broken = scene.buy(BROKEN).await;
    assert_eq!(scene.end_calls(3).await, ["[a+b]", "[c+d]", "1 broken"]);
    buyers.push(broken);
    assert_sold(buyers).await;
}

#[tokio::test(start_paused = true)]
async fn aborted_task_frees_its_levels_for_those_that_wait() {
    let scene = Scene::new();
    let first = scene.buy("a+b").await;
    let next = scene.buy_all(["a", "b"]).await;
    scene.tasks.0.lock().expect("no panic")[0].abort();
    settle().await;
    assert_unknown(first).await;
    assert_eq!(scene.end_calls(1).await, ["[a+b]", "[a, b]"]);
    assert_sold(next).await;
}
