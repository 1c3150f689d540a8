//! Runs deductions, each in its own task, and counts them.

use std::sync::Arc;

use tokio::time::Instant;

use super::WritePool;
use crate::level_service::{LevelService, missing};
use crate::stock::{Deducted, Operation, StockError};
use crate::strategy::{DeductionContext, DeductionRun, Safeguards, Strategy};

/// Runs deductions against one store.
#[derive(Debug)]
pub struct Deductor {
    context: DeductionContext,
    writes: WritePool,
    levels: LevelService,
}

impl Deductor {
    /// A deductor whose deductions count as writes of `writes`. `levels` ends due holds whose units are needed.
    #[must_use]
    pub fn new(context: DeductionContext, writes: WritePool, levels: LevelService) -> Self {
        Self {
            context,
            writes,
            levels,
        }
    }

    /// Makes a deduction of one level under `strategy`. Answers at the deduction's deadline at the latest.
    ///
    /// # Errors
    /// As [`DeductionRun::run`]; [`StockError::Insufficient`] from memory if the level was just sold out;
    /// [`StockError::WrongShard`]; [`StockError::Overloaded`] if too many writes run;
    /// [`StockError::OutcomeUnknown`] if the deadline passes first.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the deduction: it runs in its own task, and shutdown waits
    /// for it.
    pub async fn deduct(
        self: &Arc<Self>,
        strategy: Strategy,
        deduction: Operation,
        safeguards: Safeguards,
    ) -> Result<Deducted, StockError> {
        let started = Instant::now();
        let refusal = strategy.known_refusal(&self.context, &deduction);
        let level = || deduction.owned_level();
        let admitted = match refusal.filter(|_| self.levels.has_no_unit_from_holds(&level())) {
            Some(refusal) => Err(refusal),
            None => self.writes.admit(deduction.level().0, []),
        };
        let slot = admitted.inspect_err(|error| {
            let metrics = &self.context.metrics;
            metrics.deduction(strategy.name(), error.code(), started.elapsed());
        })?;
        let deadline = deduction.deadline;
        // Boxed before it is spawned: the future is large, and spawning would copy it.
        let run = Box::pin(Arc::clone(self).run(strategy, deduction, safeguards));
        self.writes.run(slot, deadline, run).await
    }

    async fn run(
        self: Arc<Self>,
        strategy: Strategy,
        deduction: Operation,
        safeguards: Safeguards,
    ) -> Result<Deducted, StockError> {
        let started = Instant::now();
        let result = loop {
            let since = Instant::now();
            let run = DeductionRun::new(&self.context, strategy, &deduction, safeguards);
            let result = run.run().await;
            let Some(units) = result.as_ref().err().and_then(missing) else {
                break result;
            };
            let level = deduction.owned_level();
            let times = (since, deduction.deadline);
            // Boxed, because it is rare, and its space would be reserved for each deduction.
            match Box::pin(self.levels.reclaim(level, units, times)).await {
                Ok(false) => break result,
                Ok(true) => {}
                Err(error) => break Err(error),
            }
        };
        // Counted in the task, so that a sale counts even if its client has disconnected.
        let metrics = &self.context.metrics;
        metrics.deduction(strategy.name(), outcome_label(&result), started.elapsed());
        result
    }
}

/// The outcome's label in the metrics.
fn outcome_label(result: &Result<Deducted, StockError>) -> &'static str {
    match result {
        Ok(deducted) if deducted.replayed => "replayed",
        Ok(_) => "deducted",
        Err(error) => error.code(),
    }
}
