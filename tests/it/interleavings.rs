//! Every schedule of two or three deductions over the model database.
use std::sync::Arc;
use std::time::Duration;
use stocklock::retry::{RetryPolicy, Sleep};
use stocklock::stock::{Deducted, Deduction, Idempotency, OperationId, Quantity, Sku, StockError, Warehouse};
use stocklock::strategy::{LocalMutexes, Protection, Strategy};
use crate::support::explore::{Decisions, Explorer, World, yield_once, Task};
use crate::support::memory_store::MemoryStore;

const WAIT_LIMIT: Duration = Duration::from_hours(1);
#[derive(Debug)]
struct YieldingSleep;
#[async_trait::async_trait]
impl Sleep for YieldingSleep {
    async fn sleep(&self, duration: Duration) {
        if duration >= WAIT_LIMIT { std::future::pending::<()>().await; }
        yield_once().await;
    }
}
fn measure(strategy: Strategy, stock: i64, buyers: usize, processes: usize, faults: u32) {
    let started = tokio::time::Instant::now();
    let sku = Sku::parse("1001").unwrap();
    let (mut oversold, mut drift, mut contended) = (0u64, 0u64, 0u64);
    let n = Explorer::up_to(3_000_000).explore(|d: &Decisions| {
        let store = MemoryStore::new(d, faults);
        store.stock(&sku, stock);
        let mutexes: Vec<_> = (0..processes).map(|_| Arc::new(LocalMutexes::new())).collect();
        let tasks = (0..buyers).map(|b| {
            let store = store.clone();
            let mutexes = Arc::clone(&mutexes[b % processes]);
            let sku = sku.clone();
            Box::pin(async move {
                let policy = RetryPolicy { max_attempts: 6, wait_limit: WAIT_LIMIT, base_pause: Duration::ZERO, max_pause: Duration::ZERO, sleep: Arc::new(YieldingSleep) };
                let deduction = Deduction { operation: OperationId::mint(), sku, warehouse: Warehouse::default(), quantity: Quantity::ONE, idempotency: None::<Idempotency>, strategy: strategy.name() };
                Protection { store: &store, mutexes: &mutexes, policy: &policy }.deduct(strategy, &deduction).await
            }) as Task<Result<Deducted, StockError>>
        }).collect();
        World { state: store, tasks }
    }, |store, answers| {
        let a = &store.audit_now(&sku)[0];
        oversold += u64::from(a.oversold() > 0);
        drift += u64::from(a.drift() != 0);
        contended += u64::from(answers.iter().any(|a| matches!(a, Err(StockError::Contended{..}))));
        Ok(())
    }).unwrap_or_else(|f| panic!("{f}"));
    println!("{strategy} stock {stock} buyers {buyers} proc {processes} faults {faults}: {n} oversold {oversold} drift {drift} contended {contended} {:?}", started.elapsed());
}
#[test]
fn measure_all() {
    for (stock, buyers) in [(1, 2), (2, 2), (1,3),(2,3)] {
        for s in [Strategy::SingleSql, Strategy::ForUpdate, Strategy::NoLock, Strategy::Optimistic] { measure(s, stock, buyers, 1, 0); }
        measure(Strategy::LocalMutex, stock, buyers, 1, 0);
        measure(Strategy::LocalMutex, stock, buyers, 2, 0);
    }
    for s in [Strategy::SingleSql, Strategy::ForUpdate, Strategy::NoLock, Strategy::Optimistic] { measure(s, 1, 2, 1, 1); }
}
