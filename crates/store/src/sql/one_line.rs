//! A change of one line whose row is locked: two statements with plain parameters, and COMMIT.
//!
//! The statement that writes any plan takes the same row as JSON or arrays. Measured on one hot SKU, as
//! `for-update` at 16 connections, that is 0.6 times as fast on MariaDB and 0.9 times on PostgreSQL.

use tokio::time::Instant;

use super::dialect::Dialect;
use super::errors::{Inserted, before_commit, inserted};
use super::ledger_row::LedgerRow;
use super::pool::Transaction;
use super::statement::{Statement, values};
use super::statements::{INSERT_COLUMNS, INSERT_PARAMETERS, NEXT_PARAMETERS, Words};
use super::write::Written;
use crate::{Result, StoreError};
use stocklock_core::plan::Plan;

/// SKU, warehouse, units to add, the new backorder limit or NULL.
const CHANGE_LEVEL: &str = "UPDATE stock SET on_hand = on_hand + $3,
        backorder_limit = coalesce($4, backorder_limit), version = version + 1
    WHERE sku = $1 AND warehouse = $2";

/// Writes a plan that has one movement, and commits.
///
/// # Errors
/// [`StoreError::Aborted`] if the attempt has expired.
pub(super) async fn write<D: Dialect>(
    mut tx: Transaction<D>,
    plan: &Plan<'_>,
    (row, deadline): (&LedgerRow, Instant),
) -> Result<Written> {
    let limit = plan.levels.first().and_then(|level| level.backorder_limit);
    let change = values![row.sku.as_str(), row.warehouse.as_str(), row.delta, limit];
    let changed = tx.execute(CHANGE_LEVEL, &change).await;
    if changed.map_err(before_commit)? != 1 {
        // The row is locked, so only a trigger can have left it out.
        tx.roll_back().await;
        return Err(StoreError::Bug("the level was not written".into()));
    }
    Ok(match tx.record_and_commit(row, deadline).await? {
        Inserted::New => Written::Levels(vec![(0, row.available_after)]),
        Inserted::Duplicate => Written::Duplicate,
    })
}

impl<D: Dialect> Transaction<D> {
    /// Records a movement in the transaction that wrote its level, and commits both. Rolls back if
    /// the ledger already has the operation.
    ///
    /// # Errors
    /// [`StoreError::Aborted`] if the message arrived too late for the caller's `deadline`.
    pub(super) async fn record_and_commit(
        mut self,
        row: &LedgerRow,
        deadline: Instant,
    ) -> Result<Inserted> {
        let [available, level_version, reverses, returned, expiry] = &*NEXT_PARAMETERS;
        let Words { now, no_table, .. } = D::WORDS;
        let statement = Statement::built(format!(
            "INSERT INTO movement ({}, reverses, returned)
            SELECT {}, {available}, {level_version}, {reverses}, {returned}{no_table}
            WHERE {now} < {expiry}",
            *INSERT_COLUMNS, *INSERT_PARAMETERS
        ));
        let expires_at = self.expiry(deadline).at;
        let others = values![
            row.available_after,
            row.level_version,
            row.reverses,
            row.returned,
            expires_at,
        ];
        let values = [&row.known()[..], &others].concat();
        let answer = self.execute(statement, &values).await;
        let is_late = matches!(answer, Ok(0));
        let waits_for_its_key = !D::EMBEDDED && D::WORDS.begin_read_uncommitted.is_none();
        let recorded = inserted(answer, waits_for_its_key && row.idempotency_key.is_some())?;
        if is_late {
            self.roll_back().await;
            return Err(StoreError::Aborted("the last message was too late".into()));
        }
        match recorded {
            Inserted::New => self.commit().await?,
            Inserted::Duplicate => self.roll_back().await,
        }
        Ok(recorded)
    }
}
