//! Runs deductions, each in a task of its own, and counts them.

use std::sync::Arc;

use tokio::time::Instant;

use crate::metrics::Metrics;
use crate::operations::Operations;
use crate::retry::RetryPolicy;
use crate::stock::{
    Deducted, Deduction, Idempotency, OperationId, Quantity, Sku, StockError, Warehouse,
};
use crate::store::StockStore;

use super::{LocalMutexes, Locks, Protection, Safeguards, Services, Strategy};

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
    /// What a lock strategy does about a lock that was lost.
    pub safeguards: Safeguards,
}

/// Runs deductions against one store.
#[derive(Debug)]
pub struct Deductor {
    store: Arc<dyn StockStore>,
    mutexes: LocalMutexes,
    locks: Locks,
    policy: RetryPolicy,
    operations: Operations,
    metrics: Arc<Metrics>,
}

impl Deductor {
    /// A deductor whose deductions count among `operations`.
    #[must_use]
    pub fn new(
        store: Arc<dyn StockStore>,
        locks: Locks,
        policy: RetryPolicy,
        operations: Operations,
        metrics: Arc<Metrics>,
    ) -> Self {
        let mutexes = LocalMutexes::new();
        Self {
            store,
            mutexes,
            locks,
            policy,
            operations,
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
    /// Dropping the future does not stop the deduction: it runs in a task of its own, which is
    /// waited for at shutdown.
    pub async fn deduct(
        self: &Arc<Self>,
        strategy: Strategy,
        order: DeductOrder,
    ) -> Result<Deducted, StockError> {
        let started = Instant::now();
        let slot = self.operations.admit().inspect_err(|error| {
            self.metrics
                .deduction(strategy.name(), error.code(), started.elapsed());
        })?;
        // On the heap from the start: it is large, and would be copied on the way into its task.
        let run = Box::pin(Arc::clone(self).run(strategy, order));
        self.operations.run(slot, run).await
    }

    /// The services that a strategy may use here.
    #[must_use]
    pub fn services(&self) -> Services {
        self.locks.services()
    }

    async fn run(
        self: Arc<Self>,
        strategy: Strategy,
        order: DeductOrder,
    ) -> Result<Deducted, StockError> {
        let started = Instant::now();
        let DeductOrder {
            sku,
            warehouse,
            quantity,
            idempotency,
            safeguards,
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
            locks: &self.locks,
            safeguards,
            policy: &self.policy,
            metrics: &self.metrics,
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
