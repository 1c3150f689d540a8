//! Builds a model world with a few buyers and a few units, and checks the end of each schedule.

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use anyhow::ensure;
use async_trait::async_trait;
use stocklock_core::deduct::{Counters, RetryPolicy, Scheduler, Sleep};
use stocklock_core::model::{
    Decisions, Failure, Faults, MemoryStore, ModelCounter, ModelLock, Task, World, WriteCondition,
    mortal, yield_once,
};
use stocklock_core::ports::{AttemptOutcome, Lock, NoMetrics, OperationStore};
use stocklock_core::stock::{Deducted, OperationId, StockError, Warehouse};
use stocklock_core::strategy::{
    Available, DeductionContext, DeductionRun, Dependency, LocalMutexes, Locks, Safeguards,
    Strategy, Tier,
};

use super::answers::{check_answers, explorer, is_full_size};
use super::requests::{SKU, adjustment, deduction, sku};

/// Longer than any run, so that no time limit is ever reached.
pub(super) const WAIT_LIMIT: Duration = Duration::from_hours(1);

/// The strategy, the stock, the buyers of one unit each, and the faults that may happen.
#[derive(Debug)]
pub(super) struct Scenario {
    pub(super) strategy: Strategy,
    /// Units in stock of each SKU that a buyer wants.
    pub(super) stock: i64,
    /// The SKU that each buyer wants.
    pub(super) buyers: Vec<&'static str>,
    /// The idempotency key of all buyers.
    pub(super) key: Option<&'static str>,
    /// Number of processes that the buyers are spread over. Each process has its own mutexes.
    pub(super) processes: usize,
    /// The faults of the database that may happen.
    pub(super) faults: Faults,
    /// Number of requests to the lock server that may fail.
    pub(super) outages: u32,
    /// Counters that may vanish, and loads of counters that may be late. Without late loads, the
    /// counters exist at first.
    pub(super) lost_counters: u32,
    pub(super) late_loads: u32,
    /// Number of buyers whose process may die.
    pub(super) deaths: u32,
    /// Whether a lock may go to any of its waiters.
    pub(super) any_order: bool,
    /// Whether another task adds one unit of [`SKU`] at any step.
    pub(super) restocked: bool,
    /// Whether a write checks that its attempt has not expired.
    pub(super) checks_expiry: bool,
    pub(super) max_attempts: u32,
    /// Number of leases that may end early.
    pub(super) losses: u32,
    /// The condition of a write under the lock; unused if `safeguards.guard` is off.
    pub(super) condition: WriteCondition,
    /// The local check is off unless a test turns it on, because it makes fewer schedules oversell.
    pub(super) safeguards: Safeguards,
}

/// Number of schedules by their end.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) schedules: u64,
    /// More units were sold than were in stock.
    pub(super) oversold: u64,
    /// The level differs from the sum of its movements.
    pub(super) drifted: u64,
    /// A buyer was refused because all attempts met a conflict.
    pub(super) contended: u64,
    /// A buyer got an unknown outcome, or none because its process died.
    pub(super) unknown: u64,
    /// A buyer was refused because a server was away.
    pub(super) unavailable: u64,
}

/// A buyer's operation and its result.
pub(super) type Answer = (OperationId, Result<Deducted, StockError>);

impl Scenario {
    /// `buyers` of the same SKU, in one process, without faults.
    pub(super) fn new(strategy: Strategy, stock: i64, buyers: usize) -> Self {
        Self {
            strategy,
            stock,
            buyers: vec![SKU; buyers],
            key: None,
            processes: 1,
            faults: Faults::default(),
            outages: 0,
            lost_counters: 0,
            late_loads: 0,
            deaths: 0,
            any_order: false,
            restocked: false,
            checks_expiry: true,
            // Enough for every buyer: each other buyer causes at most one conflict. So does an
            // earlier attempt of the same buyer whose outcome is unknown.
            max_attempts: 6,
            losses: 0,
            condition: WriteCondition::VersionAndFence,
            safeguards: Safeguards {
                guard: true,
                check: false,
            },
        }
    }

    /// One COMMIT may lose its connection.
    pub(super) fn with_fault(self) -> Self {
        let faults = Faults {
            commits: 1,
            ..self.faults
        };
        Self { faults, ..self }
    }

    /// One message may arrive late, and another task adds one unit at any step.
    pub(super) fn with_late_message(self) -> Self {
        Self {
            faults: Faults {
                late_messages: 1,
                ..self.faults
            },
            restocked: true,
            ..self
        }
    }

    /// One statement may fail, after or before one COMMIT whose connection is lost. The lock server
    /// may be away once. Locks go to any waiter.
    pub(super) fn with_faults_at_every_step(mut self) -> Self {
        self = self.with_fault();
        self.faults.statements = 1;
        let outages = u32::from(self.strategy.tier() == Tier::Guarded);
        Self {
            outages,
            any_order: true,
            ..self
        }
    }

    /// A third buyer with `EXPLORE=full`, which takes minutes.
    pub(super) fn at_full_size(mut self) -> Self {
        if is_full_size() {
            self.buyers.push(SKU);
        }
        self
    }

    /// Runs every schedule and counts how they ended.
    pub(super) fn explore(&self) -> Tally {
        self.explore_with(|_, _| Ok(()))
    }

    /// Like [`Scenario::explore`], with an additional check at the end of each schedule.
    pub(super) fn explore_with(
        &self,
        mut check: impl FnMut(&MemoryStore, &[Answer]) -> anyhow::Result<()>,
    ) -> Tally {
        let explored = self.try_explore(&mut check);
        explored.unwrap_or_else(|failure| panic!("{self:?}: {failure}"))
    }

    /// The same; returns the first schedule that breaks what every strategy guarantees.
    pub(super) fn try_explore(
        &self,
        mut check: impl FnMut(&MemoryStore, &[Answer]) -> anyhow::Result<()>,
    ) -> Result<Tally, Failure> {
        let mut tally = Tally::default();
        tally.schedules = explorer().explore(
            |decisions| self.world(decisions),
            |store, answers| {
                self.check(store, answers, &mut tally)?;
                check(store, answers)
            },
        )?;
        Ok(tally)
    }

    /// The empty database.
    pub(super) fn store(&self, decisions: &Decisions) -> MemoryStore {
        let store = MemoryStore::new(decisions)
            .with_faults(self.faults)
            .with_any_order(self.any_order)
            .with_condition(self.condition);
        if self.checks_expiry {
            store
        } else {
            store.without_expiry_check()
        }
    }

    /// Redis without counters.
    pub(super) fn counter(&self, decisions: &Decisions) -> ModelCounter {
        ModelCounter::new(decisions, self.lost_counters, self.late_loads, self.outages)
    }

    fn world(&self, decisions: &Decisions) -> World<MemoryStore, Answer> {
        let state = self.store(decisions);
        let mut skus = self.buyers.clone();
        skus.dedup();
        let counter = self.counter(decisions);
        for name in skus {
            state.stock(&sku(name), self.stock);
            if self.late_loads == 0 {
                counter.create(&sku(name), &Warehouse::default(), self.stock);
            }
        }
        let contexts = self.contexts(decisions, &state, &counter);
        let buyers = self.buyers.iter().zip(contexts.iter().cycle());
        let deaths = Arc::new(AtomicU32::new(self.deaths));
        let tasks = buyers.map(|(sku, context)| {
            let (task, operation) = self.task(sku, Arc::clone(context));
            let task = mortal(decisions.clone(), Arc::clone(&deaths), task);
            Box::pin(async move { (operation, task.await.unwrap_or_else(died)) }) as Task<_>
        });
        let tasks = tasks.collect();
        if self.restocked {
            let store = state.clone();
            decisions.spawn(Box::pin(async move {
                let added = store.write(&adjustment(1)).await;
                let added = added.expect("no faults");
                assert!(matches!(added, AttemptOutcome::Changed(_)), "{added:?}");
            }));
        }
        World { state, tasks }
    }

    /// What the strategies of each process work with.
    pub(super) fn contexts(
        &self,
        decisions: &Decisions,
        store: &MemoryStore,
        counter: &ModelCounter,
    ) -> Vec<Arc<DeductionContext>> {
        let mut lock = ModelLock::new(decisions, self.losses).with_outages(self.outages);
        if self.any_order {
            lock = lock.with_any_order();
        }
        if self.strategy == Strategy::Redlock {
            lock = lock.without_tokens();
        }
        let lock: Arc<dyn Lock> = Arc::new(lock);
        let locks = (self.strategy.tier() == Tier::Guarded).then_some((self.strategy, lock));
        let locks = Locks::new(locks);
        let servers = [
            Dependency::Redis,
            Dependency::RedisMasters,
            Dependency::Zookeeper,
        ];
        let pause_is_step = self.strategy == Strategy::LocalMutex;
        (0..self.processes)
            .map(|_| {
                (
                    Arc::new(store.clone()),
                    policy(self.max_attempts, pause_is_step),
                )
            })
            .map(|(store, policy)| DeductionContext {
                scheduler: scheduler(decisions, &store, &policy),
                store,
                mutexes: self.mutexes(),
                counters: Some(Arc::new(Counters::new(Arc::new(counter.clone())))),
                locks: locks.clone(),
                available: Available::new(servers),
                policy,
                metrics: Arc::new(NoMetrics),
            })
            .map(Arc::new)
            .collect()
    }

    /// The mutexes of one process. Strategies without a mutex share one set, because to make 256
    /// mutexes for each schedule takes an eighth of the run time.
    fn mutexes(&self) -> Arc<LocalMutexes> {
        static UNUSED: LazyLock<Arc<LocalMutexes>> = LazyLock::new(Arc::default);
        match self.strategy {
            Strategy::LocalMutex => Arc::default(),
            _ => Arc::clone(&UNUSED),
        }
    }

    /// Whether the arrival of a buyer is a step of the schedule. It must be one for the mutex and for
    /// the batches, whose queues keep the order of arrival. A store needs no such step: each of its statements
    /// is a step.
    fn arrival_is_step(&self) -> bool {
        matches!(self.strategy, Strategy::LocalMutex | Strategy::GroupCommit)
    }

    /// The task of one buyer. It runs the same code as the `Deductor` does for a request.
    fn task(
        &self,
        name: &str,
        context: Arc<DeductionContext>,
    ) -> (Task<Result<Deducted, StockError>>, OperationId) {
        let (strategy, safeguards) = (self.strategy, self.safeguards);
        let is_step = self.arrival_is_step();
        let order = deduction(&sku(name), self.key, strategy);
        let operation = order.id;
        let task = Box::pin(async move {
            if is_step {
                yield_once().await;
            }
            let run = DeductionRun::new(&context, strategy, &order, safeguards);
            run.run().await
        });
        (task, operation)
    }

    /// Checks what every strategy guarantees, and counts what unsafe strategies may break.
    fn check(
        &self,
        store: &MemoryStore,
        answers: &[Answer],
        tally: &mut Tally,
    ) -> anyhow::Result<()> {
        let sold = store.deductions_now();
        check_answers(store, answers)?;
        let any = |code: &str| {
            let mut results = answers.iter().map(|(_, result)| result);
            results.any(|result| result.as_ref().is_err_and(|error| error.code() == code))
        };
        let (contended, unknown) = (any("contended"), any("outcome-unknown"));
        let unavailable = any("unavailable") || any("strategy-unavailable");
        tally.contended += u64::from(contended);
        tally.unknown += u64::from(unknown);
        tally.unavailable += u64::from(unavailable);
        let audit = store.audit_now(&sku(SKU));
        tally.oversold += u64::from(audit.oversold() > 0);
        tally.drifted += u64::from(audit.drift() != 0);
        let mut read: Vec<_> = sold.iter().filter_map(|one| one.read_version).collect();
        read.sort_unstable();
        let lost_update = read.windows(2).any(|pair| pair[0] == pair[1]);
        ensure!(
            lost_update == (audit.drift() != 0) || self.strategy == Strategy::RedisGetSet,
            "the level drifts if and only if two movements read the same version: {sold:?}"
        );
        // If every outcome is known and no update was lost, the buyers must get every unit in stock
        // that they want.
        // Buyers with the same key count as one buyer and are checked elsewhere.
        // A counter that is too low hides units.
        let hides = self.lost_counters + self.late_loads > 0;
        let failed = contended || unknown || unavailable || hides;
        if self.key.is_none() && !self.restocked && audit.drift() == 0 && !failed {
            let wanted = i64::try_from(self.buyers.len())?;
            ensure!(audit.sold == wanted.min(self.stock), "undersold: {audit:?}");
        }
        if self.strategy.tier() == Tier::Safe {
            ensure!(audit.consistent(), "{audit:?}");
        }
        Ok(())
    }
}

/// What a buyer knows whose process died.
pub(super) fn died() -> Result<Deducted, StockError> {
    let source = "the process died".into();
    Err(StockError::OutcomeUnknown { source })
}

/// The scheduler of one process.
pub(super) fn scheduler(
    decisions: &Decisions,
    store: &MemoryStore,
    policy: &RetryPolicy,
) -> Arc<Scheduler> {
    let (store, spawn) = (Arc::new(store.clone()), Arc::new(decisions.clone()));
    Scheduler::new(store, policy, spawn, Arc::new(NoMetrics))
}

/// A policy whose pauses take no time. `as_step`: each is a step of the schedule.
pub(super) fn policy(max_attempts: u32, as_step: bool) -> RetryPolicy {
    RetryPolicy {
        base_pause: Duration::ZERO,
        sleep: Arc::new(TimelessSleep(as_step)),
        ..RetryPolicy::new(max_attempts, WAIT_LIMIT, WAIT_LIMIT)
    }
}

/// A pause that takes no time. The field says whether it is a step of the schedule. It need not be
/// one if the next statement is a step, because other tasks can run there. A pause that is a part of
/// [`WAIT_LIMIT`] never ends, so neither the mutex nor a batch gives up.
#[derive(Debug)]
struct TimelessSleep(bool);

#[async_trait]
impl Sleep for TimelessSleep {
    async fn sleep(&self, duration: Duration) {
        if duration >= WAIT_LIMIT / 8 {
            std::future::pending::<()>().await;
        }
        if self.0 {
            yield_once().await;
        }
    }
}
