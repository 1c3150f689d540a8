//! Refusals of levels that have units: none is older than it may be.

use std::future::ready;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use stocklock_core::deduct::{Counters, Deductor, Scheduler, WritePool};
use stocklock_core::level_service::LevelService;
use stocklock_core::model::{Decisions, MemoryStore, ModelCounter};
use stocklock_core::ports::{AttemptOutcome, CachedLevels, NoMetrics, OperationStore as _};
use stocklock_core::spawn::TokioSpawn;
use stocklock_core::stock::{How, Operation, Shard, Sku, StockError, Warehouse};
use stocklock_core::strategy::{
    Available, DeductionContext, DeductionRun, Dependency, Locks, Safeguards, Strategy,
};
use tokio::time::{Instant, advance};

use super::holds::{end, hold, operation};
use super::requests::{SKU, deduction, sku};
use super::scenario::{WAIT_LIMIT, policy};

const MS: Duration = Duration::from_millis(1);

#[derive(Debug)]
struct NoCache;

impl CachedLevels for NoCache {
    fn forget(&self, _sku: &Sku) {}
}

/// One replica, on a store whose only unit is held, with a hold that is due.
struct Replica {
    store: MemoryStore,
    scheduler: Arc<Scheduler>,
    levels: LevelService,
    hold: Operation,
}

impl Replica {
    async fn new() -> Self {
        let replica = Self::empty();
        let store = &replica.store;
        store.stock(&sku(SKU), 1);
        store.write(&replica.hold).await.expect("it is held");
        store.pass_time().await;
        store.pass_time().await;
        replica
    }

    /// Without a level.
    fn empty() -> Self {
        let store = MemoryStore::new(&Decisions::default());
        let (shared, policy) = (Arc::new(store.clone()), policy(6, false));
        let (spawn, metrics) = (Arc::new(TokioSpawn), Arc::new(NoMetrics));
        let scheduler = Scheduler::new(shared.clone(), &policy, spawn, metrics.clone());
        let levels = LevelService::new(
            shared,
            policy,
            WritePool::new(8, Shard::WHOLE),
            Arc::clone(&scheduler),
            Arc::new(NoCache),
            None,
            metrics,
        );
        Self {
            store,
            scheduler,
            levels,
            hold: operation("hold", [hold(1, Some(1))]),
        }
    }

    fn context(&self) -> DeductionContext {
        let counter = ModelCounter::new(&Decisions::default(), 0, 0, 0);
        DeductionContext {
            store: Arc::new(self.store.clone()),
            scheduler: Arc::clone(&self.scheduler),
            mutexes: Arc::default(),
            counters: Some(Arc::new(Counters::new(Arc::new(counter)))),
            locks: Locks::default(),
            available: Available::new([Dependency::Redis]),
            policy: policy(6, false),
            metrics: Arc::new(NoMetrics),
        }
    }

    /// Makes one attempt, which finds no unit. Returns when it began.
    async fn is_short(&self) -> Instant {
        let since = Instant::now();
        let attempt = deduction(&sku(SKU), None, Strategy::GroupCommit);
        let short = self
            .scheduler
            .attempt(attempt)
            .await
            .expect("it is refused");
        assert_eq!(short, AttemptOutcome::Insufficient { available: 0 });
        since
    }

    /// Another replica ends the hold.
    async fn end_hold(&self, how: How) {
        let ended = operation("end", [end(self.hold.id, how, None)]);
        self.store.write(&ended).await.expect("it has ended");
        advance(MS).await;
    }

    /// Whether another attempt is made after one that began at `since`.
    async fn reclaim(&self, since: Instant) -> bool {
        let level = (sku(SKU), Warehouse::default());
        let times = (since, Instant::now() + WAIT_LIMIT);
        self.levels
            .reclaim(level, 1, times)
            .await
            .expect("no fault")
    }
}

#[tokio::test(start_paused = true)]
async fn units_that_come_back_during_a_look_up_are_sold() {
    let replica = Replica::new().await;
    let first = replica.is_short().await;
    advance(MS).await;
    let mut look_up = pin!(replica.reclaim(first));
    tokio::select! {
        biased;
        _ = &mut look_up => panic!("it has read"),
        // It has started, and has read nothing yet.
        () = ready(()) => {}
    }
    advance(MS).await;
    let second = replica.is_short().await;
    replica.end_hold(How::Expire).await;
    assert!(look_up.await);
    assert!(replica.reclaim(second).await);
    advance(MS).await;
    assert!(!replica.reclaim(Instant::now()).await, "it has no end");
}

#[tokio::test(start_paused = true)]
async fn unit_of_a_due_hold_that_is_released_is_sold() {
    let replica = Replica::new().await;
    let since = replica.is_short().await;
    replica.end_hold(How::Release).await;
    assert!(replica.reclaim(since).await);
}

/// The memory of levels that are sold out refuses nothing before someone has looked for due holds.
#[tokio::test(start_paused = true)]
async fn unit_of_a_due_hold_is_sold_after_a_batch_was_refused() {
    let replica = Replica::new().await;
    replica.is_short().await;
    let writes = WritePool::new(8, Shard::WHOLE);
    let deductor = Arc::new(Deductor::new(
        replica.context(),
        writes,
        replica.levels.clone(),
    ));
    let sale = deduction(&sku(SKU), None, Strategy::GroupCommit);
    let sold = deductor.deduct(Strategy::GroupCommit, sale, Safeguards::default());
    assert_eq!(sold.await.expect("it is sold").remaining, 0);
}

/// A deduction waits for the load of a counter that another one has started. The level was created just before it came.
#[tokio::test(start_paused = true)]
async fn sku_that_is_created_during_a_load_is_sold() {
    let sale = || deduction(&sku(SKU), None, Strategy::RedisLua);
    for steps in 0..100 {
        let replica = Replica::empty();
        let (context, sales) = (replica.context(), [sale(), sale()]);
        let buy = async |sale| {
            let safeguards = Safeguards::default();
            let run = DeductionRun::new(&context, Strategy::RedisLua, sale, safeguards);
            run.run().await
        };
        let (mut first, mut second) = (pin!(buy(&sales[0])), pin!(buy(&sales[1])));
        if let Some(refused) = polled(&mut first, steps).await {
            assert!(matches!(refused, Err(StockError::UnknownSku)));
            return;
        }
        replica.store.stock(&sku(SKU), 2);
        // It asks the counter, and waits for the load.
        assert!(polled(&mut second, 5).await.is_none());
        let (_, second) = tokio::join!(first, second);
        assert!(second.is_ok(), "after {steps} steps: {second:?}");
    }
    panic!("it is not refused");
}

/// Polls a future so many times, or until it ends.
async fn polled<T>(future: &mut Pin<&mut impl Future<Output = T>>, times: usize) -> Option<T> {
    for _ in 0..times {
        tokio::select! {
            biased;
            ended = &mut *future => return Some(ended),
            () = ready(()) => {}
        }
    }
    None
}
