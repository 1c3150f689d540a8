//! Tests of which levels share a transaction, with a store whose calls end when the test lets them.

use std::sync::Mutex;

use async_trait::async_trait;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, sleep};

use super::*;
use crate::batching::TokioSpawn;
use crate::ports::{Condition, LateAttempt, LedgerReader, RedisMethod, SqlMethod};
use crate::stock::{Durability, Idempotency, Movement, OperationId, Quantity, Remarks, StockLevel};

const WAIT_LIMIT: Duration = Duration::from_secs(2);

/// A level whose transaction fails in a way that nobody foresaw.
const BROKEN: &str = "broken";

/// A level of which this store never writes anything together with others.
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

fn sold(batch: &[Deduction]) -> Vec<BatchAnswer> {
    let answer = |_| {
        Ok(AttemptOutcome::Deducted {
            remaining: 1,
            durability: Durability::Committed,
        })
    };
    batch.iter().map(answer).collect()
}

fn text(batch: &[Deduction]) -> String {
    format!("{} {}", batch.len(), batch[0].sku)
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
impl DeductionStore for Calls {
    async fn deduct_in_sql(&self, _: &Deduction, _: SqlMethod) -> BatchAnswer {
        unreachable!("every deduction is in a batch")
    }

    async fn deduct_all(&self, batch: &[Deduction], _: bool) -> Vec<BatchAnswer> {
        self.call(text(batch)).await;
        sold(batch)
    }

    async fn deduct_merged(&self, batches: &[Vec<Deduction>]) -> Vec<Option<Vec<BatchAnswer>>> {
        let texts: Vec<_> = batches.iter().map(|batch| text(batch)).collect();
        self.call(format!("[{}]", texts.join(", "))).await;
        assert!(!texts.iter().any(|text| text.ends_with(BROKEN)), "broken");
        let answers =
            |batch: &Vec<Deduction>| (batch[0].sku.as_str() != LOCKED).then(|| sold(batch));
        batches.iter().map(answers).collect()
    }

    async fn write_back(&self, _: &Deduction, _: &StockLevel, _: Condition<'_>) -> BatchAnswer {
        unreachable!("no batch is written back")
    }

    async fn deduct_in_redis(&self, _: &Deduction, _: RedisMethod) -> BatchAnswer {
        unreachable!("no batch is in Redis")
    }

    async fn late_attempt(&self, _: &Deduction, _: Expiry) -> Result<LateAttempt, StoreError> {
        unreachable!("no batch looks for late attempts")
    }
}

fn deduction(sku: &str) -> Deduction {
    Deduction {
        operation: OperationId::mint(),
        sku: Sku::parse(sku).expect("a valid SKU"),
        warehouse: Warehouse::default(),
        quantity: Quantity::ONE,
        idempotency: None,
        remarks: Remarks::default(),
        strategy: "group-commit",
        deadline: Instant::now() + Duration::from_secs(5),
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
        let store: Arc<dyn DeductionStore> = Arc::clone(&calls) as _;
        let queue = Arc::new(GroupQueue::new(store, &policy, Arc::new(TokioSpawn)));
        Self { queue, calls }
    }

    /// Buyers of one unit each, who have entered the queue.
    async fn buy(&self, number: usize, sku: &str) -> Vec<JoinHandle<BatchAnswer>> {
        let buyer = |_| {
            let (queue, order) = (Arc::clone(&self.queue), deduction(sku));
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
async fn levels_share_a_transaction_while_others_are_in_flight() {
    let scene = Scene::new();
    let mut buyers = Vec::new();
    for sku in ["a", "b", "c", "d", "e", "d"] {
        buyers.push(scene.buy(1, sku).await);
    }
    // One by itself, and two transactions. The others gather.
    assert_eq!(scene.end_calls(0).await, ["1 a", "[1 b]", "[1 c]"]);
    buyers.push(scene.buy(2, "f").await);
    // The second buyer of `d` came while the batch of the first one waited.
    assert_eq!(scene.end_calls(3).await, ["[1 d, 1 e, 2 f]"]);
    assert_eq!(scene.end_calls(1).await, ["[1 d]"]);
    scene.end_calls(1).await;
    assert_sold(buyers).await;
    // Nothing is in flight.
    let alone = scene.buy(1, "g").await;
    assert_eq!(scene.end_calls(1).await, ["1 g"]);
    assert_sold([alone]).await;
}

#[tokio::test(start_paused = true)]
async fn level_that_is_left_out_is_made_by_itself() {
    let scene = Scene::new();
    let mut buyers = Vec::new();
    for sku in ["a", "b", "c", "d", LOCKED] {
        buyers.push(scene.buy(1, sku).await);
    }
    assert_eq!(scene.end_calls(0).await, ["1 a", "[1 b]", "[1 c]"]);
    assert_eq!(scene.end_calls(3).await, ["[1 d, 1 locked]"]);
    assert_eq!(scene.end_calls(1).await, ["1 locked"]);
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
    let batch = |number| vec![deduction("a"); number];
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
async fn batch_behind_stuck_transactions_is_made_by_itself() {
    let scene = Scene::new();
    let mut stuck = Vec::new();
    for sku in ["a", "b", "c"] {
        stuck.push(scene.buy(1, sku).await);
    }
    scene.end_calls(0).await;
    let behind = scene.buy(1, "d").await;
    sleep(WAIT_LIMIT / 2).await;
    settle().await;
    assert_eq!(scene.end_calls(0).await, ["1 d"]);
    scene.end_calls(4).await;
    assert_sold(stuck).await;
    assert_sold([behind]).await;
}

/// The transaction may have committed, so the batch is not made again as if nothing had been sent.
#[tokio::test(start_paused = true)]
async fn batch_in_an_aborted_transaction_has_an_unknown_outcome() {
    let scene = Scene::new();
    let first = scene.buy(1, "a").await;
    let broken = scene.buy(1, BROKEN).await;
    assert_eq!(scene.end_calls(2).await, ["1 a", "[1 broken]"]);
    for buyer in broken {
        let answer = buyer.await.expect("no panic");
        assert!(
            matches!(answer, Err(StoreError::OutcomeUnknown(..))),
            "{answer:?}"
        );
    }
    assert_sold([first]).await;
}
