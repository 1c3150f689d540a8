//! Runs deductions: bounded in number and time, each in a task of its own.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::metrics::Metrics;
use crate::retry::RetryPolicy;
use crate::settle::detached;
use crate::stock::{
    Deducted, Deduction, Idempotency, OperationId, Quantity, Sku, StockError, Warehouse,
};
use crate::store::StockStore;

use super::{LocalMutexes, Protection, Strategy};

/// What the caller asks for.
#[derive(Debug, Clone)]
pub struct DeductOrder {
    /// What.
    pub sku: Sku,
    /// From where.
    pub warehouse: Warehouse,
    /// How many units.
    pub quantity: Quantity,
    /// The caller's key, when one was sent.
    pub idempotency: Option<Idempotency>,
}

/// The bounds of one replica's deductions.
#[derive(Debug, Clone)]
pub struct DeductorLimits {
    /// The most deductions under way at once; more are refused as overloaded.
    pub max_in_flight: usize,
    /// The longest that a caller waits for an answer.
    pub deadline: Duration,
}

/// Runs deductions against one store.
#[derive(Debug)]
pub struct Deductor {
    store: Arc<dyn StockStore>,
    mutexes: LocalMutexes,
    policy: RetryPolicy,
    limits: DeductorLimits,
    in_flight: Arc<Semaphore>,
    tasks: TaskTracker,
    metrics: Arc<Metrics>,
}

impl Deductor {
    /// A deductor with nothing under way. `tasks` is where its tasks are tracked for shutdown.
    #[must_use]
    pub fn new(
        store: Arc<dyn StockStore>,
        policy: RetryPolicy,
        limits: DeductorLimits,
        tasks: TaskTracker,
        metrics: Arc<Metrics>,
    ) -> Self {
        let in_flight = Arc::new(Semaphore::new(limits.max_in_flight));
        let mutexes = LocalMutexes::new();
        Self {
            store,
            mutexes,
            policy,
            limits,
            in_flight,
            tasks,
            metrics,
        }
    }

    /// Deducts under `strategy`, and answers at the deadline at the latest.
    ///
    /// # Errors
    /// As [`Protection::deduct`]; [`StockError::Overloaded`] when too many are under way;
    /// [`StockError::OutcomeUnknown`] when the deadline passes first.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the deduction: it runs in a task of its own, which the
    /// tracker waits for at shutdown.
    pub async fn deduct(
        self: &Arc<Self>,
        strategy: Strategy,
        order: DeductOrder,
    ) -> Result<Deducted, StockError> {
        let started = Instant::now();
        let permit = self.admit().inspect_err(|error| {
            self.metrics
                .deduction(strategy.name(), error.code(), started.elapsed());
        })?;
        let run = Arc::clone(self).run(strategy, order, permit);
        detached(&self.tasks, self.limits.deadline, run).await
    }

    fn admit(&self) -> Result<OwnedSemaphorePermit, StockError> {
        Arc::clone(&self.in_flight)
            .try_acquire_owned()
            .map_err(|_| StockError::Overloaded {
                what: "this replica has as many deductions under way as MAX_IN_FLIGHT allows",
            })
    }

    async fn run(
        self: Arc<Self>,
        strategy: Strategy,
        order: DeductOrder,
        _permit: OwnedSemaphorePermit,
    ) -> Result<Deducted, StockError> {
        let started = Instant::now();
        let DeductOrder {
            sku,
            warehouse,
            quantity,
            idempotency,
        } = order;
        let operation = OperationId::mint();
        let strategy_name = strategy.name();
        let deduction = Deduction {
            operation,
            sku,
            warehouse,
            quantity,
            idempotency,
            strategy: strategy_name,
        };
        let protection = Protection {
            store: &*self.store,
            mutexes: &self.mutexes,
            policy: &self.policy,
        };
        let result = protection.deduct(strategy, &deduction).await;
        // Counted here, so that a sale whose buyer has left counts as well.
        self.metrics
            .deduction(strategy_name, outcome(&result), started.elapsed());
        result
    }
}

/// The outcome's label in the metrics.
fn outcome(result: &Result<Deducted, StockError>) -> &'static str {
    match result {
        Ok(deducted) if deducted.replayed => "replayed",
        Ok(_) => "deducted",
        Err(error) => error.code(),
    }
}
