//! Batches of deductions on the model: the same statements in the same order as the SQL stores.

use super::ports::{NEVER, sale};
use super::store::{Entry, MemoryStore, Row, key};
use super::transaction::Transaction;
use crate::ports::{
    BatchAnswer, BatchAttempt, BatchPlan, BatchStore, DeductionStore as _, Expiry,
    LedgerReader as _, SqlMethod, StoreError,
};
use crate::stock::{Deduction, Movement, StockLevel};

/// The level after a batch, and its movements.
#[derive(Debug, Clone)]
struct BatchWrite {
    after: StockLevel,
    /// The version that was read.
    version: i64,
    sales: Vec<Entry>,
}

impl BatchWrite {
    /// `None` without sales.
    fn new(plan: &BatchPlan<'_>, read: Option<StockLevel>) -> Option<Self> {
        let read = read?;
        let mut after = read.clone();
        let sales = plan.sales.iter().map(|planned| {
            after.on_hand = planned.after.on_hand;
            after.version = planned.after.version;
            sale(planned.deduction, &after)
        });
        let sales: Vec<Entry> = sales.collect();
        let version = read.version;
        (!sales.is_empty()).then_some(Self {
            after,
            version,
            sales,
        })
    }
}

impl BatchStore for MemoryStore {
    async fn attempt(&self, batch: &[Deduction], lock: bool) -> Result<BatchAttempt, StoreError> {
        let (sku, warehouse) = (&batch[0].sku, &batch[0].warehouse);
        let mut tx = Transaction::begin(self);
        let level = if lock {
            let locked = tx.select_for_update((sku, warehouse)).await?;
            locked.map(|row| row.level)
        } else {
            self.level(sku, warehouse).await?
        };
        let recorded = self.recorded_among(batch).await?;
        let plan = BatchPlan::new(level.clone(), &recorded, batch);
        let Some(write) = BatchWrite::new(&plan, level) else {
            return Ok(BatchAttempt::Answered(plan.committed()));
        };
        let expiry = self.expiry();
        if lock {
            let written = self.write(tx, write, NEVER).await;
            return Ok(attempted(plan, written, Expiry::passed()));
        }
        if self.message_is_late() {
            let store = self.clone();
            self.decisions.spawn(Box::pin(async move {
                store.pause("a late message arrives").await;
                let tx = Transaction::begin(&store);
                // There is no client that could receive the answer.
                let _ = store.write(tx, write, expiry.at).await;
            }));
            let unknown = StoreError::outcome_unknown("lost with the message");
            return Ok(BatchAttempt::Answered(
                plan.failed(unknown.expiring(expiry)),
            ));
        }
        let written = self.write(tx, write, expiry.at).await;
        Ok(attempted(plan, written, expiry))
    }

    async fn alone(&self, deduction: &Deduction) -> BatchAnswer {
        self.deduct_in_sql(deduction, SqlMethod::Guarded).await
    }
}

/// What the end of a write means for the batch.
fn attempted(
    plan: BatchPlan<'_>,
    written: Result<Option<BatchAttempt>, StoreError>,
    expiry: Expiry,
) -> BatchAttempt {
    match written {
        Ok(Some(refused)) => refused,
        Ok(None) => BatchAttempt::Answered(plan.committed()),
        Err(error) => BatchAttempt::Answered(plan.failed(error.expiring(expiry))),
    }
}

impl MemoryStore {
    /// The movements that the ledger has of the operations and keys.
    async fn recorded_among(&self, batch: &[Deduction]) -> Result<Vec<Movement>, StoreError> {
        self.step("SELECT from the ledger").await?;
        let is_wanted = |entry: &Entry| {
            batch.iter().any(|one| {
                let same_key = entry.key.is_some() && entry.key == key(one.idempotency.as_ref());
                same_key || entry.movement.operation == one.operation
            })
        };
        let tables = self.tables();
        let found = tables.ledger.iter().filter(|entry| is_wanted(entry));
        Ok(found.map(|entry| entry.movement.clone()).collect())
    }

    /// Writes the level and its movements, and commits. Returns why it did not.
    async fn write(
        &self,
        mut tx: Transaction,
        write: BatchWrite,
        expires_at: i64,
    ) -> Result<Option<BatchAttempt>, StoreError> {
        let BatchWrite {
            after,
            version,
            sales,
        } = write;
        let place = (&after.sku, &after.warehouse);
        let is_same = |row: &Row| row.level.version == version;
        let set = |row: &mut Row| {
            row.level.on_hand = after.on_hand;
            // The update itself adds one.
            row.level.version = after.version - 1;
        };
        if tx.update(place, is_same, set, expires_at).await?.is_none() {
            return Ok(Some(BatchAttempt::Conflict));
        }
        for sale in sales {
            if !tx.insert(sale).await? {
                return Ok(Some(BatchAttempt::Duplicate));
            }
        }
        tx.commit().await?;
        Ok(None)
    }
}
