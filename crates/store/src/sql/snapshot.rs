//! What a plan is decided on: levels, recorded movements, returns.
//!
//! Plain, or with the levels locked in the order of their names, so that no transactions wait for each other.
//! The rest is read by later statements of the same transaction: they must see what was committed while the
//! first one waited for a row.

use std::collections::BTreeSet;
use std::time::Duration;

use super::dialect::Dialect;
use super::errors::{before_commit, stopped_waiting};
use super::holds::read_holds;
use super::ledger_row;
use super::pool::PooledConnection;
use super::rows;
use super::statement::{Statement, values};
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
    /// The same. Only the level is read.
    OpenLines,
    /// Not at all: those that are locked are left out.
    Free,
    /// At most 100 ms, because others wait for those that are locked already. After [`BRIEF`] not at all.
    Brief,
}

/// How long a snapshot may wait for rows while it has locked others, besides the wait for one more.
const BRIEF: Duration = Duration::from_millis(100);

/// A snapshot, without the levels whose rows are locked by other transactions.
#[derive(Debug, Default)]
pub(super) struct Reading<'a> {
    pub(super) snapshot: Snapshot,
    missed: BTreeSet<(&'a Sku, &'a Warehouse)>,
}

impl Reading<'_> {
    /// The place of a level of the operation whose row is locked by another transaction.
    pub(super) fn missed_level(&self, operation: &Operation) -> Option<usize> {
        let mut levels = operation.levels();
        levels.position(|level| self.missed.contains(&level))
    }
}

/// SKU and warehouse of every level that the operations name, in the order in which they are locked.
pub(super) fn places(operations: &[Operation]) -> BTreeSet<(&Sku, &Warehouse)> {
    operations.iter().flat_map(Operation::levels).collect()
}

/// Reads what a plan of the operations needs.
pub(super) async fn snapshot<'a, D: Dialect>(
    connection: &mut PooledConnection<D>,
    operations: &'a [Operation],
    locks: RowLocks,
) -> Result<Reading<'a>> {
    let lines = || operations.iter().flat_map(|operation| &operation.lines);
    let mut reading = Reading::default();
    if locks == RowLocks::Free {
        lock_free_levels(connection, places(operations), &mut reading).await?;
        read_rest(connection, operations, &mut reading.snapshot).await?;
        return Ok(reading);
    }
    let snapshot = &mut reading.snapshot;
    let is_set = |line: &&Line| matches!(line.change, Change::Set(_));
    let set: BTreeSet<_> = lines().filter(is_set).map(|line| &line.sku).collect();
    let (mut read, since) = (None, Instant::now());
    for (sku, warehouse) in places(operations) {
        if !set.contains(sku) {
            let statement = match locks {
                RowLocks::None => &D::texts().level,
                RowLocks::Waiting | RowLocks::OpenLines => &D::texts().level_locked,
                RowLocks::Brief if since.elapsed() < BRIEF => &D::texts().level_locked_soon,
                RowLocks::Free | RowLocks::Brief => &D::texts().level_locked_now,
            };
            let place = values![sku.as_str(), warehouse.as_str()];
            let found = connection.fetch(statement, &place).await;
            let is_brief = locks == RowLocks::Brief;
            if is_brief && matches!(&found, Err(error) if stopped_waiting(error)) {
                // The statement may have ended the transaction.
                reading.missed.insert((sku, warehouse));
                return Ok(reading);
            }
            let levels = rows::levels(found.map_err(before_commit)?);
            snapshot.levels.extend(levels);
        } else if read != Some(sku) {
            read = Some(sku);
            let lock_sku = &D::texts().lock_sku;
            if !lock_sku.is_empty() {
                connection.change(lock_sku, &values![sku.as_str()]).await?;
            }
            snapshot.levels.extend(lock_levels(connection, sku).await?);
        }
    }
    if locks == RowLocks::OpenLines {
        snapshot.now = connection.server_time();
        snapshot.assume_open(operations);
    } else {
        read_rest(connection, operations, snapshot).await?;
    }
    Ok(reading)
}

/// Locks the levels that no other transaction has locked, and reads them.
async fn lock_free_levels<'a, D: Dialect>(
    connection: &mut PooledConnection<D>,
    places: BTreeSet<(&'a Sku, &'a Warehouse)>,
    reading: &mut Reading<'a>,
) -> Result<()> {
    let names = |(sku, warehouse): &(&'a Sku, &'a Warehouse)| (sku.as_str(), warehouse.as_str());
    let list = json(places.iter().map(names));
    let locked = connection
        .rows(&D::texts().wanted_levels_free, &values![&*list])
        .await?;
    let mut levels = rows::levels(locked);
    levels.sort_unstable_by(|a, b| (&a.sku, &a.warehouse).cmp(&(&b.sku, &b.warehouse)));
    let has = |levels: &[StockLevel], (sku, warehouse): (&Sku, &Warehouse)| {
        let order = |level: &StockLevel| (&level.sku, &level.warehouse).cmp(&(sku, warehouse));
        levels.binary_search_by(order).is_ok()
    };
    if levels.len() < places.len() && !D::EMBEDDED {
        // Those that are locked exist, as far as others can see.
        let list = json(places.iter().filter(|one| !has(&levels, **one)).map(names));
        let others = connection
            .rows(&D::texts().wanted_levels, &values![&*list])
            .await?;
        let mut others = rows::levels(others);
        others.sort_unstable_by(|a, b| (&a.sku, &a.warehouse).cmp(&(&b.sku, &b.warehouse)));
        let missed = places.into_iter().filter(|one| has(&others, *one));
        reading.missed.extend(missed);
    }
    reading.snapshot.levels = levels;
    Ok(())
}

/// Reads recorded movements and returns, after the levels.
async fn read_rest<D: Dialect>(
    connection: &mut PooledConnection<D>,
    operations: &[Operation],
    snapshot: &mut Snapshot,
) -> Result<()> {
    read_holds(connection, operations, snapshot).await?;
    let lines = operations.iter().flat_map(|operation| &operation.lines);
    // The index of the ledger decides about one operation.
    if operations.len() > 1 {
        let may_be_recorded = operations
            .iter()
            .filter(|one| !ends_open_lines(one, snapshot));
        snapshot.recorded = Some(recorded_among(connection, may_be_recorded).await?);
    }
    let sale = |line: &Line| match line.change {
        Change::Return(one) => Some(one.sale),
        _ => None,
    };
    let sales: BTreeSet<_> = lines.filter_map(sale).collect();
    for sale in sales {
        let returned = returned_units(connection, sale).await?.into_iter();
        let returned = returned.map(|(line, units)| ((sale, line), units));
        snapshot.returned.extend(returned);
    }
    Ok(())
}

/// Whether the operation has no key, and ends lines of holds that are all open: so it has not been made.
fn ends_open_lines(operation: &Operation, snapshot: &Snapshot) -> bool {
    let is_open = |line: &Line| match line.change {
        Change::End(end) => snapshot.holds.contains_key(&(end.hold, end.line)),
        _ => false,
    };
    operation.idempotency.is_none() && operation.lines.iter().all(is_open)
}

/// Locks the levels of a SKU, and reads them.
pub(super) async fn lock_levels<D: Dialect>(
    connection: &mut PooledConnection<D>,
    sku: &Sku,
) -> Result<Vec<StockLevel>> {
    let statement = &D::texts().levels_of_sku_locked;
    let found = connection.rows(statement, &values![sku.as_str()]).await?;
    Ok(rows::levels(found))
}

/// Reads how many units of each line of a sale have come back. Their levels, which each return locks first,
/// keep others out.
async fn returned_units<D: Dialect>(
    connection: &mut PooledConnection<D>,
    sale: OperationId,
) -> Result<Vec<(i64, i64)>> {
    connection
        .rows(&D::texts().returned, &values![sale.0])
        .await
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
        // Without a key, an operation has one line, but possibly several movements: its units may come from several
        // warehouses.
        let list = json(ids.into_iter());
        found.extend(wanted(connection, &D::texts().with_ids, &list).await?);
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
    wanted(connection, &D::texts().with_keys, &json(keys.iter())).await
}

/// The movements of a list.
async fn wanted<D: Dialect>(
    connection: &mut PooledConnection<D>,
    statement: &Statement,
    list: &str,
) -> Result<Vec<Movement>> {
    let rows = connection.rows(statement, &values![list]).await?;
    Ok(ledger_row::movements(rows))
}
