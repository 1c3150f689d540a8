//! The transactions that write, each written once for all dialects.
//!
//! Every flow either commits a level together with its movement, or changes nothing.

use async_trait::async_trait;

use super::SqlStore;
use super::conditional_write::{ConditionalWrite, WriteOutcome};
use super::dialect::{Dialect, values};
use super::errors::{Inserted, before_commit, conflict_if_duplicate, inserted};
use super::ledger_row::LedgerRow;
use super::level_change::{plan, plan_adjustment};
use super::pool::Transaction;
use super::rows::{self, LevelRow};
use crate::StoreError;
use stocklock_core::ports::{
    AttemptOutcome, ChangeOutcome, Condition, DeductionStore, LedgerReader, LevelStore, RedisMethod,
};
use stocklock_core::stock::{
    Adjustment, Deduction, Durability, Fence, LevelChange, Sku, StockLevel, Warehouse,
};

#[async_trait]
impl<D: Dialect> DeductionStore for SqlStore<D> {
    async fn deduct_if_available(
        &self,
        deduction: &Deduction,
    ) -> Result<AttemptOutcome, StoreError> {
        let write = ConditionalWrite::if_available(deduction);
        match self.conditional_write(&write).await? {
            Some(outcome) => Ok(outcome),
            None => self.refusal(deduction).await,
        }
    }

    async fn deduct_under_row_lock(
        &self,
        deduction: &Deduction,
    ) -> Result<AttemptOutcome, StoreError> {
        let place = (&deduction.sku, &deduction.warehouse);
        let units = deduction.quantity.units();
        let decide = |level| {
            let remaining = AttemptOutcome::decide(level, units)?;
            let mut row = LedgerRow::from_deduction(deduction, None);
            row.available_after = remaining;
            Ok((row, deducted(remaining)))
        };
        self.under_row_lock(place, AttemptOutcome::Duplicate, decide)
            .await
    }

    async fn write_back(
        &self,
        deduction: &Deduction,
        read: &StockLevel,
        condition: Condition<'_>,
    ) -> Result<AttemptOutcome, StoreError> {
        let write = ConditionalWrite::from_read(deduction, read, condition);
        match (self.conditional_write(&write).await?, condition) {
            (Some(outcome), _) => Ok(outcome),
            (None, Condition::None) => self.refusal(deduction).await,
            (None, Condition::Version) => Ok(AttemptOutcome::Conflict),
            (None, Condition::Fence(fence)) => self.fenced_refusal(deduction, fence).await,
        }
    }

    /// Refuses: SQL-home stock is not in Redis.
    async fn deduct_in_redis(
        &self,
        deduction: &Deduction,
        _: RedisMethod,
    ) -> Result<AttemptOutcome, StoreError> {
        let level = self.level(&deduction.sku, &deduction.warehouse).await?;
        Ok(level.map_or(AttemptOutcome::UnknownSku, |level| {
            AttemptOutcome::WrongHome(level.home)
        }))
    }
}

#[async_trait]
impl<D: Dialect> LevelStore for SqlStore<D> {
    async fn set_level(&self, change: &LevelChange) -> Result<ChangeOutcome, StoreError> {
        self.write(async {
            let mut tx = self.begin(D::STATEMENTS.begin_set_level).await?;
            let sku = values![change.sku.as_str()];
            if let Some(lock_sku) = D::STATEMENTS.lock_sku {
                let locked = tx.execute(lock_sku, &sku).await;
                locked.map_err(before_commit)?;
            }
            let existing = tx.fetch(D::STATEMENTS.levels_of_sku_locked, &sku).await;
            let existing = rows::levels(existing.map_err(before_commit)?)?;
            let planned = match plan(change, &existing) {
                Ok(planned) => planned,
                Err(refused) => {
                    tx.roll_back().await;
                    return Ok(refused);
                }
            };
            let (level, created) = (planned.level, planned.created);
            let columns = values![
                level.sku.as_str(),
                level.warehouse.as_str(),
                level.on_hand,
                level.backorder_limit,
                level.version,
                level.home.as_str(),
            ];
            let written = if created {
                tx.execute(D::STATEMENTS.insert_level, &columns).await
            } else {
                tx.execute(D::STATEMENTS.update_level, &columns[..5]).await
            };
            written.map_err(conflict_if_duplicate)?;
            let row = LedgerRow::from_level_change(change, planned.before, &level);
            Ok(match self.record_and_commit(tx, &row).await? {
                Inserted::New => ChangeOutcome::Done { level, created },
                Inserted::Duplicate => ChangeOutcome::Duplicate,
            })
        })
        .await
    }

    async fn adjust(&self, adjustment: &Adjustment) -> Result<ChangeOutcome, StoreError> {
        let place = (&adjustment.sku, &adjustment.warehouse);
        let decide = |level| {
            let level = plan_adjustment(adjustment, level)?;
            let row = LedgerRow::from_adjustment(adjustment, &level);
            let created = false;
            Ok((row, ChangeOutcome::Done { level, created }))
        };
        self.under_row_lock(place, ChangeOutcome::Duplicate, decide)
            .await
    }
}

impl<D: Dialect> SqlStore<D> {
    /// Locks one level and lets `decide` compute its movement. Writes both and returns what `decide`
    /// returned with the movement, or `duplicate` if the ledger already has the operation.
    async fn under_row_lock<T: Send>(
        &self,
        (sku, warehouse): (&Sku, &Warehouse),
        duplicate: T,
        decide: impl FnOnce(Option<StockLevel>) -> Result<(LedgerRow, T), T> + Send,
    ) -> Result<T, StoreError> {
        self.write(async {
            let mut tx = self.begin(D::STATEMENTS.begin).await?;
            let place = values![sku.as_str(), warehouse.as_str()];
            let found = tx.fetch(D::STATEMENTS.level_locked, &place).await;
            let mut found: Vec<LevelRow> = found.map_err(before_commit)?;
            let level = found.pop().map(rows::level).transpose()?;
            let (row, outcome) = match decide(level) {
                Ok(decided) => decided,
                Err(refused) => {
                    tx.roll_back().await;
                    return Ok(refused);
                }
            };
            let change = values![sku.as_str(), warehouse.as_str(), row.delta];
            let changed = tx.execute(D::STATEMENTS.change_on_hand, &change).await;
            changed.map_err(before_commit)?;
            Ok(match self.record_and_commit(tx, &row).await? {
                Inserted::New => outcome,
                Inserted::Duplicate => duplicate,
            })
        })
        .await
    }

    /// Records a movement in the transaction that wrote its level, and commits both. Rolls back if
    /// the ledger already has the operation.
    async fn record_and_commit(
        &self,
        mut tx: Transaction<D>,
        row: &LedgerRow,
    ) -> Result<Inserted, StoreError> {
        let recorded = tx.record(row).await?;
        match recorded {
            Inserted::New => tx.commit().await?,
            Inserted::Duplicate => tx.roll_back().await,
        }
        Ok(recorded)
    }

    /// `None` if the condition does not hold.
    async fn conditional_write(
        &self,
        write: &ConditionalWrite<'_>,
    ) -> Result<Option<AttemptOutcome>, StoreError> {
        let written = self.write(D::conditional_write(&self.writers, write));
        Ok(match written.await? {
            WriteOutcome::Written { available } => Some(deducted(available)),
            WriteOutcome::Duplicate => Some(AttemptOutcome::Duplicate),
            WriteOutcome::Refused => None,
        })
    }

    /// Why SQL refused to take the units, by the level as it is now.
    async fn refusal(&self, deduction: &Deduction) -> Result<AttemptOutcome, StoreError> {
        let level = self.level(&deduction.sku, &deduction.warehouse).await?;
        Ok(AttemptOutcome::refused(level, deduction.quantity.units()))
    }

    /// Why a write on condition of `fence` was refused, by the fence that the row has now.
    async fn fenced_refusal(
        &self,
        deduction: &Deduction,
        fence: &Fence,
    ) -> Result<AttemptOutcome, StoreError> {
        let place = values![deduction.sku.as_str(), deduction.warehouse.as_str()];
        let last = self.select(D::STATEMENTS.fence, &place).await?.pop();
        Ok(AttemptOutcome::write_refused(last, fence))
    }
}

impl<D: Dialect> Transaction<D> {
    /// Inserts a movement.
    pub(super) async fn record(&mut self, row: &LedgerRow) -> Result<Inserted, StoreError> {
        let mut columns = row.values().to_vec();
        columns.extend(values![row.available_after]);
        let answer = self.execute(D::STATEMENTS.insert_movement, &columns).await;
        inserted(answer, !D::EMBEDDED && row.idempotency_key.is_some())
    }
}

fn deducted(remaining: i64) -> AttemptOutcome {
    AttemptOutcome::Deducted {
        remaining,
        durability: Durability::Committed,
    }
}
