//! A store whose calls end when the test lets them.

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::ports::{
    AttemptOutcome, BatchAnswer, Expiry, LateAttempt, LedgerReader, OperationStore, SharedAnswer,
    StoreError,
};
use crate::stock::{Idempotency, Movement, Operation, OperationId, Sku, StockLevel, Warehouse};

/// The maximum number of lines in a batch of this store.
pub(super) const MAX_BATCH: usize = 4;

/// A level whose transaction panics.
pub(super) const BROKEN: &str = "broken";

/// A level that each transaction of several levels misses, unless it waits.
pub(super) const LOCKED: &str = "locked";

/// A level that is decided apart.
pub(super) const SHORT: &str = "short";

/// A level of a database that is away.
pub(super) const AWAY: &str = "away";

#[derive(Debug)]
pub(super) struct Calls {
    /// One permit for each call that may end.
    pub(super) ends: Semaphore,
    pub(super) called: Mutex<Vec<String>>,
}

impl Calls {
    async fn call(&self, what: String) {
        self.called.lock().push(what);
        let end = self.ends.acquire().await;
        end.expect("never closed").forget();
    }
}

fn sold(operation: &Operation) -> BatchAnswer {
    if has(operation, AWAY).is_some() {
        return Err(StoreError::Unavailable("it is away".into()));
    }
    Ok(AttemptOutcome::Deducted { remaining: 1 })
}

fn has(operation: &Operation, sku: &str) -> Option<usize> {
    let mut lines = operation.lines.iter();
    lines.position(|line| line.sku.as_str() == sku)
}

fn text(operation: &Operation) -> String {
    let lines = operation.lines.iter();
    lines
        .map(|line| line.sku.as_str())
        .collect::<Vec<_>>()
        .join("+")
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
        unreachable!("every operation is in a batch")
    }

    async fn operation(&self, _: OperationId) -> Result<Vec<Movement>, StoreError> {
        unreachable!("no batch reads the ledger through the port")
    }

    fn max_batch(&self) -> usize {
        MAX_BATCH
    }

    fn max_in_flight(&self) -> usize {
        2
    }

    async fn write_batch(&self, batch: &[Operation], _: bool) -> Vec<BatchAnswer> {
        self.call(format!("{} {}", batch.len(), batch[0].first().sku))
            .await;
        batch.iter().map(sold).collect()
    }

    async fn write_shared(&self, operations: &[Operation], briefly: bool) -> Vec<SharedAnswer> {
        let texts: Vec<_> = operations.iter().map(text).collect();
        let wait = if briefly { "waiting " } else { "" };
        self.call(format!("{wait}[{}]", texts.join(", "))).await;
        assert!(
            !operations.iter().any(|one| has(one, BROKEN).is_some()),
            "broken"
        );
        let answer = |operation: &Operation| match has(operation, LOCKED) {
            _ if briefly => SharedAnswer::Made(sold(operation)),
            Some(line) => SharedAnswer::Missed(line),
            None if has(operation, SHORT).is_some() => SharedAnswer::Apart,
            None => SharedAnswer::Made(sold(operation)),
        };
        operations.iter().map(answer).collect()
    }

    async fn wait_for_level(&self, sku: &Sku, _: &Warehouse) -> Result<(), StoreError> {
        self.call(format!("wait for {sku}")).await;
        Ok(())
    }

    async fn late_attempt(&self, _: &Operation, _: Expiry) -> Result<LateAttempt, StoreError> {
        unreachable!("no batch looks for late attempts")
    }
}
