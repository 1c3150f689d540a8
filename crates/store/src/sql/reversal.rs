//! The return of a sale's units.
//!
//! Guarantees: no more units come back than were sold. The locks are taken in the order of every
//! write: the level first, then rows of the ledger.

use super::dialect::{Dialect, Statement, values};
use super::errors::{Inserted, before_commit};
use super::flows::CHANGE_ON_HAND;
use super::ledger_row::LedgerRow;
use super::{SqlStore, rows, statements};
use crate::Result;
use stocklock_core::ports::{PlannedReturn, ReversalOutcome};
use stocklock_core::stock::{Movement, Reversal};

impl<D: Dialect> SqlStore<D> {
    /// Takes units of `sale` back.
    pub(super) async fn take_back(
        &self,
        reversal: &Reversal,
        sale: &Movement,
    ) -> Result<ReversalOutcome> {
        self.write_row(&sale.sku, |connection| async move {
            let is_prompt = connection.is_prompt();
            let mut tx = connection.begin(D::WORDS.begin).await?;
            let (sku, warehouse) = (sale.sku.as_str(), sale.warehouse.as_str());
            let level = statements::level(D::WORDS.lock_rows);
            let level = tx.fetch(level, &values![sku, warehouse]).await;
            let level = rows::levels(level.map_err(before_commit)?).pop();
            let id = values![sale.operation.0];
            let locked = tx.execute(lock_sale::<D>(), &id).await;
            locked.map_err(before_commit)?;
            // A statement of its own: it must see what was committed while this one waited.
            let returned = tx.fetch(returned_units::<D>(), &id).await;
            let returned: Vec<(i64,)> = returned.map_err(before_commit)?;
            let returned = returned.iter().map(|(units,)| units).sum();
            let planned = match PlannedReturn::new(reversal, sale, returned, level) {
                Ok(planned) => planned,
                Err(refused) => {
                    tx.roll_back().await;
                    return Ok(refused);
                }
            };
            let change = values![sku, warehouse, planned.restocked];
            let changed = tx.execute(CHANGE_ON_HAND, &change).await;
            changed.map_err(before_commit)?;
            let row = LedgerRow::from_reversal(reversal, &planned);
            let recorded = tx.record_and_commit(&row, reversal.deadline).await;
            let recorded = self.find_key_in_flight(recorded, &row, is_prompt).await;
            Ok(match recorded? {
                Inserted::New => ReversalOutcome::Done(planned),
                Inserted::Duplicate => ReversalOutcome::Duplicate,
            })
        })
        .await
    }
}

/// Locks the movement of a sale: its id.
fn lock_sale<D: Dialect>() -> Statement {
    Statement::built(format!(
        "SELECT line FROM movement WHERE operation_id = $1 AND line = 0{}",
        D::WORDS.lock_rows
    ))
}

/// Reads how many units of a sale have come back: its id.
fn returned_units<D: Dialect>() -> Statement {
    Statement::built(format!(
        "SELECT cast(coalesce(sum(returned), 0) AS {}) FROM movement WHERE reverses = $1",
        D::WORDS.integer
    ))
}
