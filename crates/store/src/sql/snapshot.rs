//! What a plan is decided on: levels, recorded movements, returns.
//!
//! Plain, or with the levels locked in the order of their names, so that no transactions wait for each other.
//! The rest is read by later statements of the same transaction: they must see what was committed while the
//! first one waited for a row.

use std::collections::BTreeSet;
use std::time::Duration;

use super::dialect::{Dialect, Statement, values};
use super::errors::{before_commit, stopped_waiting};
use super::holds::read_holds;
use super::ledger_row::LedgerRow;
use super::pool::PooledConnection;
use super::reads::movements;
use super::rows;
use super::statements;
use super::write::{Hex, json};
use crate::Result;
use stocklock_core::plan::Snapshot;
use stocklock_core::stock::{
    Change, Line, Movement, Operation, OperationId, Sku, StockLevel, Warehouse,
};
use tokio::time::Instant;

/// Whether the rows of a snapshot are locked until the end of the transaction, and how long for each of them
/// it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowLocks {
    /// They are not locked.
    None,
    /// As long as the session does.
    Waiting,
    /// Not at all.
    Free,
    /// At most 100 ms, because others wait for those that are locked already. After [`BRIEF`] not at all.
    Brief,
}

/// How long a snapshot may wait for rows while it has locked others, besides the wait for one more.
const BRIEF: Duration = Duration::from_millis(100);

/// A snapshot; or the level whose row was locked by another transaction for too long.
pub(super) enum Reading<'a> {
    Read(Snapshot),
    Missed(&'a Sku, &'a Warehouse),
}

/// SKU and warehouse of every level that the operations name, in the order in which they are locked.
pub(super) fn places(operations: &[Operation]) -> BTreeSet<(&Sku, &Warehouse)> {
    let lines = operations.iter().flat_map(|operation| &operation.lines);
    lines.map(|line| (&line.sku, &line.warehouse)).collect()
}

/// Reads what a plan of the operations needs.
pub(super) async fn snapshot<'a, D: Dialect>(
    connection: &mut PooledConnection<D>,
    operations: &'a [Operation],
    locks: RowLocks,
) -> Result<Reading<'a>> {
    let lines = || operations.iter().flat_map(|operation| &operation.lines);
    let mut snapshot = Snapshot::default();
    let is_set = |line: &&Line| matches!(line.change, Change::Set(_));
    let set: BTreeSet<_> = lines().filter(is_set).map(|line| &line.sku).collect();
    let (mut read, since) = (None, Instant::now());
    for (sku, warehouse) in places(operations) {
        if !set.contains(sku) {
            let statement = match locks {
                RowLocks::None => statements::level(""),
                RowLocks::Waiting => statements::level(D::WORDS.lock_rows),
                RowLocks::Brief if since.elapsed() < BRIEF => statements::level_soon(&D::WORDS),
                RowLocks::Free | RowLocks::Brief => statements::level(D::WORDS.lock_free_rows),
            };
            let place = values![sku.as_str(), warehouse.as_str()];
            let found = connection.fetch(statement, &place).await;
            let may_miss = matches!(locks, RowLocks::Free | RowLocks::Brief);
            if may_miss && matches!(&found, Err(error) if stopped_waiting(error)) {
                return Ok(Reading::Missed(sku, warehouse));
            }
            let levels = rows::levels(found.map_err(before_commit)?);
            snapshot.levels.extend(levels);
        } else if read != Some(sku) {
            read = Some(sku);
            if let Some(lock_sku) = D::WORDS.lock_sku {
                let locked = connection.execute(lock_sku, &values![sku.as_str()]).await;
                locked.map_err(before_commit)?;
            }
            snapshot.levels.extend(lock_levels(connection, sku).await?);
        }
    }
    // The index of the ledger decides about one operation.
    if operations.len() > 1 {
        snapshot.recorded = Some(recorded_among(connection, operations).await?);
    }
    let sale = |line: &Line| match line.change {
        Change::Return(one) => Some(one.sale),
        _ => None,
    };
    let sales: BTreeSet<_> = lines().filter_map(sale).collect();
    for sale in sales {
        let returned = returned_units(connection, sale).await?.into_iter();
        let returned = returned.map(|(line, units)| ((sale, line), units));
        snapshot.returned.extend(returned);
    }
    read_holds(connection, operations, &mut snapshot).await?;
    Ok(Reading::Read(snapshot))
}

/// Locks the levels of a SKU, and reads them.
pub(super) async fn lock_levels<D: Dialect>(
    connection: &mut PooledConnection<D>,
    sku: &Sku,
) -> Result<Vec<StockLevel>> {
    let statement = statements::levels_of_sku(D::WORDS.lock_rows);
    let found = connection.fetch(statement, &values![sku.as_str()]).await;
    Ok(rows::levels(found.map_err(before_commit)?))
}

/// Reads how many units of each line of a sale have come back. Their levels, which each return locks first,
/// keep others out.
async fn returned_units<D: Dialect>(
    connection: &mut PooledConnection<D>,
    sale: OperationId,
) -> Result<Vec<(i64, i64)>> {
    let sums = Statement::built(format!(
        "SELECT cast(line AS {0}), cast(coalesce(sum(returned), 0) AS {0}) FROM movement
            WHERE reverses = $1 GROUP BY line",
        D::WORDS.integer
    ));
    let returned = connection.fetch(sums, &values![sale.0]).await;
    returned.map_err(before_commit)
}

/// The movements with the keys of the operations, or with their ids if they have no key. One look-up of
/// each is enough: an operation is always recorded with its key.
pub(super) async fn recorded_among<'a, D: Dialect>(
    connection: &mut PooledConnection<D>,
    operations: impl IntoIterator<Item = &'a Operation>,
) -> Result<Vec<Movement>> {
    let (mut keys, mut ids) = (Vec::new(), Vec::new());
    for operation in operations {
        match &operation.idempotency {
            Some(one) => keys.push((one.caller.as_str(), one.key.as_str())),
            None => ids.push((Hex(operation.id.0.as_bytes()),)),
        }
    }
    let mut found = with_keys(connection, &keys).await?;
    if !ids.is_empty() {
        // An operation without a key has one line.
        let condition = "movement.operation_id = wanted.bytes";
        let list = json(ids.into_iter());
        found.extend(wanted(connection, &list, condition).await?);
    }
    Ok(found)
}

/// The movements with these keys of these callers.
pub(super) async fn with_keys<D: Dialect>(
    connection: &mut PooledConnection<D>,
    keys: &[(&str, &str)],
) -> Result<Vec<Movement>> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let condition = "movement.caller = wanted.text_1 AND movement.idempotency_key = wanted.text_2";
    wanted(connection, &json(keys.iter()), condition).await
}

/// The movements for which the condition holds with a row of the list.
async fn wanted<D: Dialect>(
    connection: &mut PooledConnection<D>,
    list: &str,
    condition: &str,
) -> Result<Vec<Movement>> {
    let from = format!("{} JOIN movement ON {condition}", D::WORDS.wanted);
    let statement = Statement {
        // PostgreSQL would keep a plan that reads the whole ledger, made when that was short.
        persistent: D::WORDS.plans_for_any_size,
        ..movements::<D>(&from)
    };
    let rows = connection.fetch(statement, &values![list]).await;
    let rows: Vec<LedgerRow> = rows.map_err(before_commit)?;
    rows.into_iter().map(LedgerRow::movement).collect()
}
