//! What a plan is decided on: levels, recorded movements, returns.
//!
//! Plain, or with the levels locked in the order of their names. The rest is read by later statements of the
//! same transaction: they must see what was committed while the first one waited for a row.

use std::collections::BTreeSet;

use super::dialect::{Dialect, Statement, values};
use super::errors::before_commit;
use super::ledger_row::LedgerRow;
use super::pool::PooledConnection;
use super::reads::movements;
use super::rows;
use super::statements;
use super::write::{Hex, json};
use crate::Result;
use stocklock_core::plan::Snapshot;
use stocklock_core::stock::{Change, Line, Movement, Operation, OperationId, Sku, StockLevel};

/// Reads what a plan of the operations needs. `locks`: the rows are locked until the end of the transaction.
pub(super) async fn snapshot<D: Dialect>(
    connection: &mut PooledConnection<D>,
    operations: &[Operation],
    locks: bool,
) -> Result<Snapshot> {
    let lines = || operations.iter().flat_map(|operation| &operation.lines);
    let mut snapshot = Snapshot::default();
    let is_set = |line: &&Line| matches!(line.change, Change::Set(_));
    let set: BTreeSet<_> = lines().filter(is_set).map(|line| &line.sku).collect();
    let places: BTreeSet<_> = lines().map(|line| (&line.sku, &line.warehouse)).collect();
    let mut read = None;
    for (sku, warehouse) in places {
        if !set.contains(sku) {
            let lock = if locks { D::WORDS.lock_rows } else { "" };
            let place = values![sku.as_str(), warehouse.as_str()];
            let found = connection.fetch(statements::level(lock), &place).await;
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
    for line in lines() {
        if let Change::Return(one) = line.change {
            let units = returned_units(connection, one.sale).await?;
            snapshot.returned.insert(one.sale, units);
        }
    }
    Ok(snapshot)
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

/// Reads how many units of a sale have come back. Its level, which each return locks first, keeps others out.
async fn returned_units<D: Dialect>(
    connection: &mut PooledConnection<D>,
    sale: OperationId,
) -> Result<i64> {
    let sum = Statement::built(format!(
        "SELECT cast(coalesce(sum(returned), 0) AS {}) FROM movement WHERE reverses = $1",
        D::WORDS.integer
    ));
    let returned = connection.fetch(sum, &values![sale.0]).await;
    let returned: Vec<(i64,)> = returned.map_err(before_commit)?;
    Ok(returned.iter().map(|(units,)| units).sum())
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
        let condition = "movement.operation_id = wanted.bytes AND movement.line = 0";
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
