//! Sets and adjusts levels: reads them, computes the new level, and writes it if the versions that
//! were read are still current.

use super::scripts::Answer;
use super::write::Wanted;
use super::{RedisStore, failure};
use crate::sql::ledger_row::LedgerRow;
use crate::sql::level_change::{adjusted, plan_level};
use crate::{ChangeOutcome, StoreError};
use stocklock_core::stock::{Adjustment, Idempotency, LevelChange, StockLevel, Warehouse};

impl RedisStore {
    /// Sets an existing level. `warehouses` are all warehouses of the SKU.
    pub(crate) async fn set_level(
        &self,
        change: &LevelChange,
        warehouses: &[Warehouse],
    ) -> Result<ChangeOutcome, StoreError> {
        let existing = self.levels_in(&change.sku, warehouses).await?;
        let planned = match plan_level(change, &existing) {
            Ok(planned) if planned.created => return Ok(ChangeOutcome::UnknownSku),
            Ok(planned) => planned,
            Err(refused) => return Ok(refused),
        };
        let row = LedgerRow::from_level_change(change, planned.before, &planned.level);
        self.write_level(planned.level, &existing, &row, None).await
    }

    /// Adds units to a level, or removes them.
    pub(crate) async fn adjust(
        &self,
        adjustment: &Adjustment,
    ) -> Result<ChangeOutcome, StoreError> {
        let Adjustment { sku, warehouse, .. } = adjustment;
        let Some(read) = self.level(sku, warehouse).await? else {
            return Ok(ChangeOutcome::UnknownSku);
        };
        let level = match adjusted(adjustment, &read) {
            Ok(level) => level,
            Err(refused) => return Ok(refused),
        };
        let row = LedgerRow::from_adjustment(adjustment, &level);
        let key = adjustment.idempotency.as_ref();
        self.write_level(level, &[read], &row, key).await
    }

    /// Writes `level` and its movement if all levels in `read` still have their versions.
    async fn write_level(
        &self,
        level: StockLevel,
        read: &[StockLevel],
        row: &LedgerRow,
        key: Option<&Idempotency>,
    ) -> Result<ChangeOutcome, StoreError> {
        let (sku, warehouse) = (&level.sku, &level.warehouse);
        let request = self.write_request((sku, warehouse), row, key).await?;
        let mut wanted = Wanted::new(level.on_hand, Some(level.backorder_limit));
        let keys = self.keys().await?;
        for read in read {
            let key = keys.for_sku(&read.sku).level(&read.warehouse);
            wanted.expect_version(key, read.version);
        }
        Ok(match self.write(&request, sku, key, &wanted).await? {
            Answer::Written { version, .. } => ChangeOutcome::Done {
                level: StockLevel { version, ..level },
                created: false,
            },
            Answer::Duplicate => ChangeOutcome::Duplicate,
            // The level was changed or lost since it was read: read it again.
            Answer::Absent | Answer::Conflict | Answer::Fenced => ChangeOutcome::Conflict,
            // The expected versions exclude too few units. `write` has checked the key in SQL.
            answer @ (Answer::Insufficient { .. } | Answer::KeyMayBeLost) => {
                return Err(failure::bad_answer(answer));
            }
            Answer::Full => return Err(StoreError::JournalFull),
        })
    }
}
