//! Setting and adjusting levels: computed here from levels that were read, and written if they are
//! still the same.

use super::scripts::Answer;
use super::write::Wanted;
use super::{RedisStore, failure};
use crate::level_change::{MAX_UNITS, plan_level};
use crate::sql::ledger_row::LedgerRow;
use crate::{ChangeOutcome, StoreError};
use stocklock_core::stock::{Adjustment, Idempotency, LevelChange, StockLevel, Warehouse};

impl RedisStore {
    /// Sets a level that exists. `warehouses` are all that the SKU has.
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

    /// Adds to or takes from a level.
    pub(crate) async fn adjust(
        &self,
        adjustment: &Adjustment,
    ) -> Result<ChangeOutcome, StoreError> {
        let Adjustment { sku, warehouse, .. } = adjustment;
        let Some(read) = self.level(sku, warehouse).await? else {
            return Ok(ChangeOutcome::UnknownSku);
        };
        let level = StockLevel {
            on_hand: read.on_hand + adjustment.delta,
            version: read.version + 1,
            ..read.clone()
        };
        if level.on_hand.abs() > MAX_UNITS {
            return Ok(ChangeOutcome::TooLarge);
        }
        if level.available() < 0 {
            return Ok(ChangeOutcome::BelowLimit {
                available: read.available(),
            });
        }
        let row = LedgerRow::from_adjustment(adjustment, &level);
        let key = adjustment.idempotency.as_ref();
        self.write_level(level, &[read], &row, key).await
    }

    /// Writes `level`, recorded by `row`, if all of `read` are still as they were.
    async fn write_level(
        &self,
        level: StockLevel,
        read: &[StockLevel],
        row: &LedgerRow,
        key: Option<&Idempotency>,
    ) -> Result<ChangeOutcome, StoreError> {
        let place = (&level.sku, &level.warehouse);
        let step = self.step(place, row, key).await?;
        let mut wanted = Wanted::new(level.on_hand, Some(level.backorder_limit));
        let keys = self.keys().await?;
        for read in read {
            let key = keys.of(&read.sku).level(&read.warehouse);
            wanted.unchanged(key, read.version);
        }
        Ok(match self.write(&step, place.0, key, &wanted).await? {
            Answer::Written { version, .. } => ChangeOutcome::Done {
                level: StockLevel { version, ..level },
                created: false,
            },
            Answer::Duplicate => ChangeOutcome::Duplicate,
            // Lost since, or changed: to be read again.
            Answer::Absent | Answer::Stale | Answer::Fenced => ChangeOutcome::Conflict,
            // The versions say that what was read suffices.
            answer @ (Answer::Short { .. } | Answer::Unsure) => {
                return Err(failure::bad_answer(answer));
            }
            Answer::Full => return Err(StoreError::JournalFull),
        })
    }
}
