//! Tests of which levels share a transaction, with a store whose calls end when the test lets them.

use std::sync::Mutex;

use async_trait::async_trait;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::sleep;

use super::*;
use crate::batching::TokioSpawn;
use crate::plan::PlanAnswers;
use crate::ports::{LateAttempt, LedgerReader};
use crate::stock::{Idempotency, Movement, OperationId, StockLevel};

const WAIT_LIMIT: Duration = Duration::from_secs(2);

/// The maximum number of deductions in a batch of this store.
const MAX_BATCH: usize = 4;

/// A level whose transaction panics.
const BROKEN: &str = "broken";

/// A level that this store leaves out of each transaction.
const LOCKED: &str = "locked";

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

fn sold(batch: &[Operation]) -> Vec<BatchAnswer> {
    let answer = |_| Ok(AttemptOutcome::Deducted { remaining: 1 });
    batch.iter().map(answer).collect()
}

fn text(batch: &[Operation]) -> String {
    format!("{} {}", batch.len(), batch[0].first().sku)
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
        unreachable!("every deduction is in a batch")
    }

    async fn operation(&self, _: OperationId) -> Result<Vec<Movement>, StoreError> {
        unreachable!("no batch reads the ledger through the port")
    }

    fn max_batch(&self) -> usize {
        MAX_BATCH
    }

    async fn write_batch(&self, batch: &[Operation], _: bool) -> Vec<BatchAnswer> {
        self.call(text(batch)).await;
        sold(batch)
    }

    async fn write_levels(&self, operations: &[&Operation]) -> PlanAnswers {
        let operations: Vec<_> = operations.iter().copied().cloned().collect();
        let same = |one: &Operation, next: &Operation| one.first().sku == next.first().sku;
        let batches: Vec<_> = operations.chunk_by(same).collect();
        let texts: Vec<_> = batches.iter().map(|batch| text(batch)).collect();
        self.call(format!("[{}]", texts.join(", "))).await;
        assert!(!texts.iter().any(|text| text.ends_with(BROKEN)), "broken");
        let answers = |batch: &&[Operation]| {
            let is_free = batch[0].first().sku.as_str() != LOCKED;
            let sold = sold(batch).into_iter();
            sold.map(|one| is_free.then_some(one)).collect::<Vec<_>>()
        };
        batches.iter().flat_map(answers).collect()
    }

    async fn late_attempt(&self, _: &Operation, _: Expiry) -> Result<LateAttempt, StoreError> {
        unreachable!("no batch looks for late attempts")
    }
}

struct Scene {
    queue: Arc<GroupQueue>,
    calls: Arc<Calls>,
}

impl Scene {
    fn new() -> Self {
        let calls = Arc::new(Calls {
            ends: Semaphore::new(0),
            called: Mutex::default(),
        });
        let policy = RetryPolicy::new(1, WAIT_LIMIT, WAIT_LIMIT);
        let store: Arc<dyn OperationStore> = Arc::clone(&calls) as _;
        let queue = Arc::new(GroupQueue::new(store, &policy, Arc::new(TokioSpawn)));
        Self { queue, calls }
    }

    /// [`ALONE`] batches in flight.
    async fn with_batches_alone() -> (Self, Vec<Vec<JoinHandle<BatchAnswer>>>) {
        let scene = Self::new();
        let mut buyers = Vec::new();
        for sku in ["w", "x", "y", "z"] {
            buyers.push(scene.buy(1, sku).await);
        }
        assert_eq!(scene.end_calls(0).await, FIRST);
        (scene, buyers)
    }

    /// Buyers of one unit each, who have entered the queue.
    async fn buy(&self, number: usize, sku: &str) -> Vec<JoinHandle<BatchAnswer>> {
        let buyer = |_| {
            let (queue, order) = (Arc::clone(&self.queue), Deduction::sample(sku));
            tokio::spawn(async move { queue.deduct(&order).await })
        };
        let buyers = (0..number).map(buyer).collect();
        settle().await;
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

async fn assert_sold(buyers: impl IntoIterator<Item = Vec<JoinHandle<BatchAnswer>>>) {
    for buyer in buyers.into_iter().flatten() {
        let answer = buyer.await.expect("no panic");
        assert!(
            matches!(answer, Ok(AttemptOutcome::Deducted { .. })),
            "{answer:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn levels_share_a_transaction_if_many_are_in_flight() {
    let (scene, mut buyers) = Scene::with_batches_alone().await;
    for sku in ["b", "c", "d", "e", "d"] {
        buyers.push(scene.buy(1, sku).await);
    }
    // Two transactions. The others gather.
    assert_eq!(scene.end_calls(0).await, ["[1 b]", "[1 c]"]);
    buyers.push(scene.buy(2, "f").await);
    // The second buyer of `d` came while the batch of the first one waited.
    assert_eq!(scene.end_calls(ALONE + 2).await, ["[1 d, 1 e, 2 f]"]);
    assert_eq!(scene.end_calls(1).await, ["1 d"]);
    scene.end_calls(1).await;
    assert_sold(buyers).await;
}

#[tokio::test(start_paused = true)]
async fn level_that_is_left_out_is_made_alone() {
    let (scene, mut buyers) = Scene::with_batches_alone().await;
    for sku in ["b", "c", "d", LOCKED] {
        buyers.push(scene.buy(1, sku).await);
    }
    assert_eq!(scene.end_calls(0).await, ["[1 b]", "[1 c]"]);
    assert_eq!(scene.end_calls(ALONE + 2).await, ["[1 d, 1 locked]"]);
    assert_eq!(scene.end_calls(1).await, ["1 locked"]);
    scene.end_calls(1).await;
    assert_sold(buyers).await;
}

/// It would wait for a connection and a row again, perhaps past its deadline.
#[tokio::test(start_paused = true)]
async fn level_that_is_left_out_too_late_is_overloaded() {
    let (scene, first) = Scene::with_batches_alone().await;
    let locked = scene.buy(1, LOCKED).await;
    sleep(WAIT_LIMIT / 2).await;
    assert_eq!(scene.end_calls(ALONE + 1).await, ["[1 locked]"]);
    for buyer in locked {
        let answer = buyer.await.expect("no panic");
        assert!(matches!(answer, Err(StoreError::Queued)), "{answer:?}");
    }
    assert_sold(first).await;
}

#[tokio::test(start_paused = true)]
async fn batch_has_at_most_as_many_as_the_store_takes() {
    let scene = Scene::new();
    let mut buyers = vec![scene.buy(1, "a").await];
    buyers.push(scene.buy(MAX_BATCH + 1, "a").await);
    assert_eq!(scene.end_calls(0).await, ["1 a"]);
    assert_eq!(scene.end_calls(1).await, ["4 a"]);
    assert_eq!(scene.end_calls(1).await, ["1 a"]);
    scene.end_calls(1).await;
    assert_sold(buyers).await;
}

#[test]
fn transaction_has_at_most_256_deductions_and_128_levels() {
    let scene = Scene::new();
    let merged = Merged {
        store: Arc::clone(&scene.calls) as _,
        sleep: RetryPolicy::new(1, WAIT_LIMIT, WAIT_LIMIT).sleep,
        patience: WAIT_LIMIT,
    };
    let batch = |number| vec![Operation::from(Deduction::sample("a")); number];
    for (waiting, expected) in [
        (vec![batch(1); 200], 128),
        (vec![batch(100), batch(156), batch(1)], 2),
        (vec![batch(100), batch(157), batch(1)], 1),
        (vec![batch(256), batch(1)], 1),
    ] {
        assert_eq!(merged.batch_size(waiting.iter()), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn batch_behind_stuck_transactions_is_made_alone() {
    let (scene, mut buyers) = Scene::with_batches_alone().await;
    for sku in ["b", "c", "d"] {
        buyers.push(scene.buy(1, sku).await);
    }
    assert_eq!(scene.end_calls(0).await, ["[1 b]", "[1 c]"]);
    sleep(WAIT_LIMIT / 4).await;
    assert_eq!(scene.end_calls(0).await, ["1 d"]);
    scene.end_calls(ALONE + 3).await;
    assert_sold(buyers).await;
}

/// Transactions that end late do not give up what the next one can take.
#[tokio::test(start_paused = true)]
async fn batches_behind_slow_transactions_share_the_next_one() {
    let (scene, mut buyers) = Scene::with_batches_alone().await;
    buyers.push(scene.buy(1, "b").await);
    sleep(WAIT_LIMIT / 9).await;
    buyers.push(scene.buy(1, "c").await);
    for sku in ["d", "e"] {
        buyers.push(scene.buy(1, sku).await);
    }
    sleep(WAIT_LIMIT / 9).await;
    assert_eq!(
        scene.end_calls(ALONE + 2).await,
        ["[1 b]", "[1 c]", "[1 d, 1 e]"]
    );
    scene.end_calls(1).await;
    assert_sold(buyers).await;
}

/// The transaction may have committed, so the batch is not made again as if nothing had been sent.
#[tokio::test(start_paused = true)]
async fn batch_without_an_answer_has_an_unknown_outcome() {
    let (scene, first) = Scene::with_batches_alone().await;
    let broken = scene.buy(1, BROKEN).await;
    assert_eq!(scene.end_calls(ALONE + 1).await, ["[1 broken]"]);
    for buyer in broken {
        let answer = buyer.await.expect("no panic");
        assert!(
            matches!(answer, Err(StoreError::OutcomeUnknown(..))),
            "{answer:?}"
        );
    }
    assert_sold(first).await;
}
