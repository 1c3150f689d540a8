//! The core's ports, and the deductions that need no plan.

use std::slice;

use async_trait::async_trait;

use super::SqlStore;
use super::conditional_write::ConditionalWrite;
use super::dialect::Dialect;
use super::errors::conflict_if_duplicate;
use super::ledger_row::LedgerRow;
use super::operations::select;
use super::pool::{PooledConnection, Transaction};
use super::reads::identity;
use super::snapshot::places;
use super::statement::values;
use crate::{Result, StoreError};
use stocklock_core::ports::{
    AttemptOutcome, BatchAnswer, Condition, DeductionStore, Expiry, LateAttempt, LedgerReader as _,
    OperationStore, ReadLevel, SharedAnswer, write_batch, write_shared,
};
use stocklock_core::stock::{
    Fence, Movement, Operation, OperationFilter, OperationId, Sku, Warehouse,
};

#[async_trait]
impl<D: Dialect> OperationStore for SqlStore<D> {
    async fn write(&self, operation: &Operation) -> Result<AttemptOutcome> {
        self.write_one(operation).await
    }

    async fn operation(&self, operation: OperationId) -> Result<Vec<Movement>> {
        let of = OperationFilter::Id(operation);
        let (statement, values) = select::<D>(&of);
        self.select_movements(&self.readers, statement, &values)
            .await
    }

    fn max_batch(&self) -> usize {
        D::MAX_BATCH
    }

    fn max_in_flight(&self) -> usize {
        // A server works on one transaction while it commits another. SQLite has one writer.
        if D::EMBEDDED { 1 } else { 2 }
    }

    async fn write_batch(&self, operations: &[Operation], read_first: bool) -> Vec<BatchAnswer> {
        write_batch(self, operations, read_first).await
    }

    async fn write_shared(&self, operations: &[Operation], briefly: bool) -> Vec<SharedAnswer> {
        write_shared(self, operations, briefly).await
    }

    async fn wait_for_level(&self, sku: &Sku, warehouse: &Warehouse) -> Result<()> {
        self.wait_for_row(sku, warehouse).await
    }

    async fn late_attempt(&self, operation: &Operation, expiry: Expiry) -> Result<LateAttempt> {
        self.write_row(&operation.first().sku, |connection| async move {
            let mut tx = connection.begin(D::texts().begin.as_str()).await?;
            let clock: Vec<(i64,)> = tx.rows(&D::texts().clock, &[]).await?;
            // The servers round to whole milliseconds.
            let late_attempt = if clock.iter().all(|(now,)| *now > expiry.at) {
                for (sku, warehouse) in places(slice::from_ref(operation)) {
                    write_without_change(&mut tx, sku, warehouse).await?;
                }
                let identity = identity(operation.id, operation.idempotency.as_ref());
                let mut found = tx.rows(&D::texts().recorded, &identity).await?;
                found.pop().map(|LedgerRow(movement)| movement).into()
            } else {
                LateAttempt::Alive
            };
            // If an attempt at another node commits first, this fails.
            tx.commit().await?;
            Ok(late_attempt)
        })
        .await
    }
}

/// Writes a level so that it stays as it is, or is still missing. Of this transaction and an attempt at another node of
/// a Galera cluster, only one can commit then; `FOR UPDATE` locks at one node only. The node of the attempt may have a
/// level that this one does not have yet. So a level that is missing here is created and deleted again.
async fn write_without_change<D: Dialect>(
    tx: &mut Transaction<D>,
    sku: &Sku,
    warehouse: &Warehouse,
) -> Result<()> {
    let texts = D::texts();
    let place = values![sku.as_str(), warehouse.as_str()];
    let [there, back] = [1, -1].map(|step| values![sku.as_str(), warehouse.as_str(), step]);
    let stepped = tx.change(&texts.step_version, &there).await?;
    let (undo, values) = if stepped > 0 {
        (&texts.step_version, &back[..])
    } else {
        let created = tx.execute(&texts.create_level, &place).await;
        created.map_err(conflict_if_duplicate)?;
        (&texts.delete_level, &place[..])
    };
    if tx.change(undo, values).await? != 1 {
        return Err(StoreError::Bug("the level was changed".into()));
    }
    Ok(())
}

#[async_trait]
impl<D: Dialect> DeductionStore for SqlStore<D> {
    async fn deduct(&self, deduction: &Operation) -> Result<AttemptOutcome> {
        self.deduct_guarded(deduction).await
    }

    async fn write_back(
        &self,
        deduction: &Operation,
        read: ReadLevel,
        condition: Condition<'_>,
    ) -> Result<AttemptOutcome> {
        let write = ConditionalWrite::from_read(deduction, read, condition);
        match (self.conditional_write(deduction, write).await?, condition) {
            (Some(outcome), _) => Ok(outcome),
            (None, Condition::None) => self.refusal(deduction).await,
            (None, Condition::Version) => Ok(AttemptOutcome::Conflict),
            (None, Condition::Fence(fence)) => self.fenced_refusal(deduction, fence).await,
        }
    }
}

impl<D: Dialect> SqlStore<D> {
    /// Makes a write that locks a row of this SKU. If it meets a locked row on a connection that does not
    /// wait, it is made again on one that does.
    pub(super) async fn write_row<T, F>(
        &self,
        sku: &Sku,
        write: impl Fn(PooledConnection<D>) -> F + Send,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send,
    {
        self.on_row(sku, move |connection| self.write(write(connection)))
            .await
    }

    /// The same for an attempt that has its own bounds.
    pub(super) async fn on_row<T, F>(
        &self,
        sku: &Sku,
        attempt: impl Fn(PooledConnection<D>) -> F + Send,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send,
    {
        let mut connections = self.writers.for_row(sku);
        loop {
            let connection = connections.acquire().await?;
            match attempt(connection).await {
                Err(error) if connections.again(&error) => {}
                ended => return ended,
            }
        }
    }

    /// Makes one operation. A deduction of one line is one guarded write.
    pub(super) async fn deduct_guarded(&self, operation: &Operation) -> Result<AttemptOutcome> {
        if operation.as_deduction().is_none() {
            return self.write_one(operation).await;
        }
        let write = ConditionalWrite::if_available(operation);
        match self.conditional_write(operation, write).await? {
            Some(outcome) => Ok(outcome),
            None => self.refusal(operation).await,
        }
    }

    /// `None` if the condition does not hold.
    async fn conditional_write(
        &self,
        operation: &Operation,
        mut write: ConditionalWrite<'_>,
    ) -> Result<Option<AttemptOutcome>> {
        let (sku, _) = operation.level();
        let mut connections = self.writers.for_row(sku);
        loop {
            let connection = connections.acquire().await?;
            let written = self
                .write(D::conditional_write(connection, &mut write))
                .await;
            self.changed.remember(operation.levels());
            match written {
                Err(error) if connections.again(&error) => {}
                written => {
                    let written = self.find_keys_in_flight(written, sku, [operation]).await;
                    return written.map_err(|error| write.failed(error));
                }
            }
        }
    }

    /// Why SQL refused to take the units, by the level as it is now.
    async fn refusal(&self, deduction: &Operation) -> Result<AttemptOutcome> {
        let (sku, warehouse) = deduction.level();
        let level = self.level(sku, warehouse).await?;
        Ok(AttemptOutcome::refused(level.as_ref(), deduction.units()))
    }

    /// Why a write on condition of `fence` was refused, by the fence that the row has now.
    async fn fenced_refusal(&self, deduction: &Operation, fence: &Fence) -> Result<AttemptOutcome> {
        let (sku, warehouse) = deduction.level();
        let place = values![sku.as_str(), warehouse.as_str()];
        let pool = self.lookups().for_sku(sku);
        let last = self.select(&pool, &D::texts().fence, &place).await?.pop();
        Ok(AttemptOutcome::write_refused(last, fence))
    }
}
