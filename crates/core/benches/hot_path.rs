//! What a deduction costs in this process: parsing it, `group-commit` without a database, and its answer.
//!
//! `make bench-core` runs it. Compare two builds on one quiet machine; the figures mean little alone.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use criterion::{Criterion, Throughput};
use stocklock_core::batching::TokioSpawn;
use stocklock_core::deduct::{DeductionContext, Deductor, GroupQueue, RetryPolicy, WritePool};
use stocklock_core::ports::{
    AttemptOutcome, BatchAnswer, Condition, DeductionStore, Expiry, LateAttempt, LedgerReader,
    Locks, NoMetrics, ReadLevel, SqlMethod, StoreError,
};
use stocklock_core::stock::{
    Caller, Deducted, Deduction, Idempotency, IdempotencyKey, Movement, OperationId, Quantity,
    Remarks, RequestHash, Sku, StockLevel, Warehouse,
};
use stocklock_core::strategy::{Available, Safeguards, Strategy};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Requests that are in progress at the same time.
const CLIENTS: u64 = 256;

/// A store without limits, whose answers take no time.
#[derive(Debug)]
struct Plenty;

const TAKEN: AttemptOutcome = AttemptOutcome::Deducted { remaining: 1 };

#[async_trait]
impl LedgerReader for Plenty {
    async fn level(&self, _: &Sku, _: &Warehouse) -> Result<Option<StockLevel>, StoreError> {
        Ok(None)
    }

    async fn recorded(
        &self,
        _: &Sku,
        _: OperationId,
        _: Option<&Idempotency>,
    ) -> Result<Option<Movement>, StoreError> {
        Ok(None)
    }
}

#[async_trait]
impl DeductionStore for Plenty {
    async fn deduct(&self, _: &Deduction, _: SqlMethod) -> BatchAnswer {
        Ok(TAKEN)
    }

    fn max_batch(&self) -> usize {
        256
    }

    async fn deduct_all(&self, batch: &[Deduction], _: bool) -> Vec<BatchAnswer> {
        // The others arrive while the database works.
        tokio::task::yield_now().await;
        batch.iter().map(|_| Ok(TAKEN)).collect()
    }

    async fn deduct_merged(&self, batches: &[Vec<Deduction>]) -> Vec<Option<Vec<BatchAnswer>>> {
        batches.iter().map(|_| None).collect()
    }

    async fn write_back(&self, _: &Deduction, _: ReadLevel, _: Condition<'_>) -> BatchAnswer {
        Ok(TAKEN)
    }

    async fn late_attempt(&self, _: &Deduction, _: Expiry) -> Result<LateAttempt, StoreError> {
        Ok(LateAttempt::Dead)
    }
}

fn deductor() -> Arc<Deductor> {
    let second = Duration::from_secs(1);
    let policy = RetryPolicy::new(1, second, second);
    let store: Arc<dyn DeductionStore> = Arc::new(Plenty);
    let context = DeductionContext {
        groups: GroupQueue::new(Arc::clone(&store), &policy, Arc::new(TokioSpawn)),
        store,
        mutexes: Arc::default(),
        counters: None,
        locks: Locks::default(),
        available: Available::default(),
        policy,
        metrics: Arc::new(NoMetrics),
    };
    Arc::new(Deductor::new(context, WritePool::new(8192)))
}

/// A deduction from the texts of a request.
fn parse(sku: &str, key: &str) -> Deduction {
    let sku = Sku::parse(sku).expect("a valid SKU");
    let (warehouse, quantity) = (Warehouse::default(), Quantity::ONE);
    let hash = RequestHash::of_deduction(&sku, &warehouse, quantity, None);
    Deduction {
        operation: OperationId::mint(),
        sku,
        warehouse,
        quantity,
        idempotency: Some(Idempotency {
            caller: Caller::anonymous(),
            key: IdempotencyKey::parse(key).expect("a valid key"),
            hash,
        }),
        remarks: Remarks::default(),
        strategy: Strategy::GroupCommit.name(),
        deadline: Instant::now() + Duration::from_secs(5),
    }
}

async fn deduct(deductor: Arc<Deductor>) -> Deducted {
    let deduction = parse("sku-1001", "3f0c6d5e-1a");
    let deducting = deductor.deduct(Strategy::GroupCommit, deduction, Safeguards::default());
    deducting.await.expect("plenty in stock")
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let runtime = Runtime::new().expect("a runtime");
    let deductor = deductor();
    criterion.bench_function("parse a deduction", |bencher| {
        bencher.iter(|| parse(black_box("sku-1001"), black_box("3f0c6d5e-1a")));
    });
    let answer = runtime.block_on(deduct(Arc::clone(&deductor)));
    criterion.bench_function("write an answer", |bencher| {
        bencher.iter(|| serde_json::to_vec(black_box(&answer)));
    });
    let mut group = criterion.benchmark_group("group-commit");
    group.throughput(Throughput::Elements(CLIENTS));
    group.bench_function("256 clients", |bencher| {
        let deductions = || (0..CLIENTS).map(|_| deduct(Arc::clone(&deductor)));
        let all = async || deductions().collect::<JoinSet<_>>().join_all().await;
        bencher.iter(|| runtime.block_on(all()));
    });
    group.finish();
    criterion.final_summary();
}
