//! Batches of deductions on the model: the same statements in the same order as the SQL stores.

use super::ports::{NEVER, sale};
use super::store::{Entry, MemoryStore, Row, key};
use super::transaction::Transaction;
use crate::ports::{
    BatchAnswer, BatchAttempt, BatchGuard, BatchPlan, BatchStore, DeductionStore as _, Expiry,
    LedgerReader as _, SqlMethod, StoreError,
};
use crate::stock::{Deduction, Movement};

/// The sales of a batch, each with the units up to it.
#[derive(Debug, Clone)]
struct BatchWrite {
    sales: Vec<(Deduction, i64)>,
    /// The version that the level must have.
    version: Option<i64>,
}

impl BatchWrite {
    /// `None` without sales.
    fn new(plan: &BatchPlan<'_>) -> Option<Self> {
        let sales = plan.sales.iter();
        let sales: Vec<_> = sales
            .map(|sale| (sale.deduction.clone(), sale.units))
            .collect();
        let version = plan.read.as_ref().map(|level| level.version);
        (!sales.is_empty()).then_some(Self { sales, version })
    }
}

impl BatchStore for MemoryStore {
    async fn attempt(
        &self,
        batch: &[Deduction],
        guard: BatchGuard,
    ) -> Result<BatchAttempt, StoreError> {
        let (sku, warehouse) = (&batch[0].sku, &batch[0].warehouse);
        let mut tx = Transaction::begin(self);
        let level = match guard {
            BatchGuard::Available => None,
            BatchGuard::Version => self.level(sku, warehouse).await?,
            BatchGuard::RowLock => {
                let locked = tx.select_for_update((sku, warehouse)).await?;
                locked.map(|row| row.level)
            }
        };
        let plan = if guard == BatchGuard::Available {
            BatchPlan::unread(batch)
        } else {
            BatchPlan::new(level, &self.recorded_among(batch).await?, batch)
        };
        let Some(write) = BatchWrite::new(&plan) else {
            return Ok(BatchAttempt::Answered(plan.without_sales()));
        };
        let expiry = self.expiry();
        if guard == BatchGuard::RowLock {
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
        self.deduct(deduction, SqlMethod::Guarded).await
    }

    async fn write_merged(
        &self,
        plans: &[&BatchPlan<'_>],
    ) -> Result<Option<Vec<Option<i64>>>, StoreError> {
        let writes: Vec<_> = plans
            .iter()
            .filter_map(|plan| BatchWrite::new(plan))
            .collect();
        let expiry = self.expiry();
        if self.message_is_late() {
            let store = self.clone();
            self.decisions.spawn(Box::pin(async move {
                store.pause("a late message arrives").await;
                // There is no client that could receive the answer.
                let _ = store.write_free(writes, expiry.at).await;
            }));
            let unknown = StoreError::outcome_unknown("lost with the message");
            return Err(unknown.expiring(expiry));
        }
        let written = self.write_free(writes, expiry.at).await;
        written.map_err(|error| error.expiring(expiry))
    }

    async fn recorded_sales(&self, plans: &[&BatchPlan<'_>]) -> Result<Vec<Movement>, StoreError> {
        let sales = plans.iter().flat_map(|plan| &plan.sales);
        let sales: Vec<_> = sales.map(|sale| sale.deduction.clone()).collect();
        self.recorded_among(&sales).await
    }
}

/// What the end of a write means for the batch.
fn attempted(
    plan: BatchPlan<'_>,
    written: Result<Result<i64, BatchAttempt>, StoreError>,
    expiry: Expiry,
) -> BatchAttempt {
    match written {
        Ok(Ok(available)) => BatchAttempt::Answered(plan.committed(available)),
        Ok(Err(refused)) => refused,
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

    /// Writes the levels that no transaction has locked, and commits. None of them if the ledger has a sale.
    async fn write_free(
        &self,
        writes: Vec<BatchWrite>,
        expires_at: i64,
    ) -> Result<Option<Vec<Option<i64>>>, StoreError> {
        let mut tx = Transaction::begin(self);
        let mut written = Vec::new();
        self.step("SELECT FOR UPDATE SKIP LOCKED").await?;
        for write in writes {
            let (first, _) = &write.sales[0];
            let is_free = tx.try_lock_row((&first.sku, &first.warehouse));
            let put = if is_free {
                self.put_batch(&mut tx, write, expires_at).await?
            } else {
                Err(BatchAttempt::Conflict)
            };
            written.push(match put {
                Ok(available) => Some(available),
                Err(BatchAttempt::Duplicate) => return Ok(None),
                Err(_) => None,
            });
        }
        if written.iter().flatten().count() > 1 {
            self.decisions.note("several levels in one transaction");
        }
        tx.commit().await?;
        Ok(Some(written))
    }

    /// Writes the level and its movements, and commits. Returns how many units are available then, or why
    /// nothing was written.
    async fn write(
        &self,
        mut tx: Transaction,
        write: BatchWrite,
        expires_at: i64,
    ) -> Result<Result<i64, BatchAttempt>, StoreError> {
        let available = match self.put_batch(&mut tx, write, expires_at).await? {
            Ok(available) => available,
            Err(refused) => return Ok(Err(refused)),
        };
        tx.commit().await?;
        Ok(Ok(available))
    }

    /// [`MemoryStore::write`] without the commit.
    async fn put_batch(
        &self,
        tx: &mut Transaction,
        write: BatchWrite,
        expires_at: i64,
    ) -> Result<Result<i64, BatchAttempt>, StoreError> {
        let BatchWrite { sales, version } = write;
        let ([(first, _), ..], [.., (_, units)]) = (&sales[..], &sales[..]) else {
            unreachable!("a write has sales")
        };
        let holds = |row: &Row| {
            version.is_none_or(|version| row.level.version == version)
                && row.level.available() >= *units
        };
        let movements = i64::try_from(sales.len()).expect("a short list");
        let set = |row: &mut Row| {
            row.level.on_hand -= units;
            // The update itself adds one.
            row.level.version += movements - 1;
        };
        let place = (&first.sku, &first.warehouse);
        let Some(after) = tx.update(place, holds, set, expires_at).await? else {
            if self.tables().clock >= expires_at {
                self.decisions.note("a batch has expired");
            }
            return Ok(Err(BatchAttempt::Conflict));
        };
        let after = after.level;
        for ((deduction, sold), number) in sales.iter().zip(1..) {
            let mut level = after.clone();
            level.on_hand += units - sold;
            level.version += number - movements;
            if !tx.insert(sale(deduction, &level)).await? {
                return Ok(Err(BatchAttempt::Duplicate));
            }
        }
        Ok(Ok(after.available()))
    }
}
