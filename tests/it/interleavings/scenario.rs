//! A few buyers of a few units: how their world is built, and what must hold when they are done.

use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use async_trait::async_trait;
use stocklock::metrics::Metrics;
use stocklock::retry::{RetryPolicy, Sleep};
use stocklock::stock::{
    Adjustment, Caller, Deducted, Deduction, Idempotency, IdempotencyKey, LevelChange, OperationId,
    Precondition, Quantity, Reason, RequestHash, Sku, StockError, Warehouse,
};
use stocklock::strategy::{LocalMutexes, Locks, Protection, Safeguards, Strategy, Tier};

use crate::support::explore::{Decisions, Explorer, Task, World, yield_once};
use crate::support::memory_store::{Guard, MemoryStore};
use crate::support::model_lock::ModelLock;

/// The most schedules of one scenario; all together are to take seconds.
const BOUND: u64 = 200_000;

/// Longer than anything that runs here, so that no clock decides anything.
const WAIT_LIMIT: Duration = Duration::from_hours(1);

/// One who wants one unit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Buyer {
    pub(super) sku: &'static str,
    pub(super) key: Option<&'static str>,
}

/// Who buys what under which strategy, and what may go wrong.
#[derive(Debug)]
pub(super) struct Scenario {
    pub(super) strategy: Strategy,
    /// Units in stock of every SKU that somebody wants.
    pub(super) stock: i64,
    pub(super) buyers: Vec<Buyer>,
    /// How many processes the buyers are spread over: each has its own mutexes.
    pub(super) processes: usize,
    /// How many connections may be lost in COMMIT.
    pub(super) faults: u32,
    pub(super) max_attempts: u32,
    /// How many leases of the lock may end early.
    pub(super) losses: u32,
    /// What a write under the lock is conditional on, while the guard is on.
    pub(super) guard: Guard,
    pub(super) safeguards: Safeguards,
}

/// Which schedules ended how.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) schedules: u64,
    /// More was sold than there was.
    pub(super) oversold: u64,
    /// Counter and ledger disagree.
    pub(super) drifted: u64,
    /// Somebody gave up.
    pub(super) contended: u64,
    /// Somebody was left in doubt.
    pub(super) unknown: u64,
}

impl Tally {
    /// Every schedule sold what there was to sell, and settled everything.
    pub(super) fn assert_clean(&self) {
        let clean = Self {
            schedules: self.schedules,
            ..Self::default()
        };
        assert_eq!(*self, clean);
    }
}

/// A buyer's operation, and the answer to it.
pub(super) type Answer = (OperationId, Result<Deducted, StockError>);

impl Scenario {
    /// `buyers` who want one unit each of the same SKU, in one process, and nothing goes wrong.
    pub(super) fn new(strategy: Strategy, stock: i64, buyers: usize) -> Self {
        let buyer = Buyer {
            sku: "1001",
            key: None,
        };
        Self {
            strategy,
            stock,
            buyers: vec![buyer; buyers],
            processes: 1,
            faults: 0,
            // A deduction turns stale at most once for each other buyer and once for itself in
            // doubt, so that with these attempts nobody gives up.
            max_attempts: 6,
            losses: 0,
            guard: Guard::VersionAndFence,
            safeguards: Safeguards::default(),
        }
    }

    /// Runs every schedule, and counts how they ended.
    pub(super) fn explore(&self) -> Tally {
        self.explore_with(|_, _| Ok(()))
    }

    /// As [`Scenario::explore`], with something more to hold at the end of each.
    pub(super) fn explore_with(
        &self,
        mut more: impl FnMut(&MemoryStore, &[Answer]) -> anyhow::Result<()>,
    ) -> Tally {
        let mut tally = Tally::default();
        let explored = Explorer::up_to(BOUND).explore(
            |decisions| self.world(decisions),
            |store, answers| {
                self.check(store, answers, &mut tally)?;
                more(store, answers)
            },
        );
        tally.schedules = explored.unwrap_or_else(|failure| panic!("{self:?}: {failure}"));
        tally
    }

    fn world(&self, decisions: &Decisions) -> World<MemoryStore, Answer> {
        let store = MemoryStore::new(decisions, self.faults).guarded_by(self.guard);
        let lock = ModelLock::new(decisions, self.losses);
        let mut skus: Vec<_> = self.buyers.iter().map(|buyer| buyer.sku).collect();
        skus.dedup();
        for name in skus {
            store.stock(&sku(name), self.stock);
        }
        let mutexes: Vec<_> = (0..self.processes)
            .map(|_| Arc::new(LocalMutexes::new()))
            .collect();
        let tasks = self.buyers.iter().enumerate().map(|(number, buyer)| {
            let mutexes = Arc::clone(&mutexes[number % self.processes]);
            self.task(buyer, store.clone(), mutexes, lock.clone())
        });
        let tasks = tasks.collect();
        World {
            state: store,
            tasks,
        }
    }

    /// What the `Deductor` would run for this buyer.
    fn task(
        &self,
        buyer: &Buyer,
        store: MemoryStore,
        mutexes: Arc<LocalMutexes>,
        lock: ModelLock,
    ) -> Task<Answer> {
        let strategy = self.strategy;
        // Who comes to the mutex when matters: it keeps a queue. To a store it does not, for
        // every statement is a step of its own.
        let is_step = strategy == Strategy::LocalMutex;
        let policy = RetryPolicy {
            base_pause: Duration::ZERO,
            sleep: Arc::new(TimelessSleep { is_step }),
            ..RetryPolicy::new(self.max_attempts, WAIT_LIMIT, WAIT_LIMIT)
        };
        let safeguards = self.safeguards;
        let order = deduction(&sku(buyer.sku), Quantity::ONE, buyer.key, strategy);
        Box::pin(async move {
            if is_step {
                yield_once().await;
            }
            let protection = Protection {
                store: &store,
                mutexes: &mutexes,
                locks: &Locks::of(Arc::new(lock)),
                safeguards,
                policy: &policy,
                metrics: &Metrics::new(),
            };
            let result = protection.deduct(strategy, &order).await;
            (order.operation, result)
        })
    }

    /// What holds under every strategy, safe or not; what does not is counted.
    fn check(
        &self,
        store: &MemoryStore,
        answers: &[Answer],
        tally: &mut Tally,
    ) -> anyhow::Result<()> {
        let sold = store.deductions_now();
        let movements = |operation| sold.iter().filter(|one| one.operation == operation).count();
        for (operation, result) in answers {
            let own = movements(*operation);
            match result {
                Ok(answer) => {
                    let of_answer = movements(answer.operation);
                    ensure!(of_answer == 1, "{of_answer} movements for {answer:?}");
                    ensure!(own == usize::from(!answer.replayed), "not so: {answer:?}");
                }
                Err(StockError::OutcomeUnknown { .. }) => ensure!(own <= 1, "sold {own} times"),
                Err(error) => ensure!(own == 0, "refused by `{error}`, but sold"),
            }
        }
        let is = |code: &str| {
            let mut errors = answers
                .iter()
                .filter_map(|(_, result)| result.as_ref().err());
            errors.any(|error| error.code() == code)
        };
        tally.contended += u64::from(is("contended"));
        tally.unknown += u64::from(is("outcome-unknown"));
        let audit = &store.audit_now(&sku("1001"))[0];
        tally.oversold += u64::from(audit.oversold() > 0);
        tally.drifted += u64::from(audit.drift() != 0);
        let mut read: Vec<_> = sold.iter().filter_map(|one| one.read_version).collect();
        read.sort_unstable();
        let lost_update = read.windows(2).any(|pair| pair[0] == pair[1]);
        ensure!(
            lost_update == (audit.drift() != 0),
            "two movements from one version, and only they, are a lost update: {sold:?}"
        );
        // Everybody was served or refused for good, in a strategy that can count: then what could
        // be sold was sold. (Buyers under one key are one.)
        let all_buy = self.buyers.iter().all(|buyer| buyer.key.is_none());
        if all_buy && audit.drift() == 0 && !is("contended") && !is("outcome-unknown") {
            let wanted = i64::try_from(self.buyers.len())?;
            ensure!(audit.sold == wanted.min(self.stock), "undersold: {audit:?}");
        }
        if self.strategy.tier() == Tier::Safe {
            ensure!(audit.consistent(), "{audit:?}");
        }
        Ok(())
    }
}

/// A pause has no length, and is a step only where what follows does not yield by itself: whatever
/// may happen in a pause may as well happen right before the next statement. The mutex's wait
/// limit never passes.
#[derive(Debug)]
struct TimelessSleep {
    is_step: bool,
}

#[async_trait]
impl Sleep for TimelessSleep {
    async fn sleep(&self, duration: Duration) {
        if duration >= WAIT_LIMIT {
            std::future::pending::<()>().await;
        }
        if self.is_step {
            yield_once().await;
        }
    }
}

pub(super) fn sku(name: &str) -> Sku {
    Sku::parse(name).expect("the tests' names are good")
}

pub(super) fn deduction(
    sku: &Sku,
    quantity: Quantity,
    key: Option<&str>,
    strategy: Strategy,
) -> Deduction {
    let warehouse = Warehouse::default();
    let idempotency = key.map(|key| Idempotency {
        caller: Caller::anonymous(),
        key: IdempotencyKey::parse(key).expect("the tests' keys are good"),
        hash: RequestHash::of_deduction(sku, &warehouse, quantity),
    });
    Deduction {
        operation: OperationId::mint(),
        sku: sku.clone(),
        warehouse,
        quantity,
        idempotency,
        strategy: strategy.name(),
    }
}

pub(super) fn level_change(
    sku: &Sku,
    on_hand: i64,
    precondition: Option<Precondition>,
) -> LevelChange {
    LevelChange {
        operation: OperationId::mint(),
        sku: sku.clone(),
        warehouse: Warehouse::default(),
        on_hand,
        backorder_limit: None,
        home: None,
        reason: None,
        precondition,
    }
}

pub(super) fn adjustment(sku: &Sku, delta: i64) -> Adjustment {
    Adjustment {
        operation: OperationId::mint(),
        sku: sku.clone(),
        warehouse: Warehouse::default(),
        delta,
        reason: Reason::parse("count").expect("a reason"),
        reference: None,
        idempotency: None,
    }
}
