//! Applies a batch of journal entries to SQL in one transaction.
//!
//! The number of statements does not depend on how many levels, movements or keys the batch has, up to
//! [`ROWS_PER_LIST`](super::dialect::ROWS_PER_LIST) of each. The levels are locked first, so that no
//! other transaction records the same movements or numbers, and written last.

use std::collections::{HashMap, HashSet};

use uuid::Uuid;

use super::dialect::{Dialect, values};
use super::errors::{before_commit, conflict_if_duplicate};
use super::ledger_row::LedgerRow;
use super::pool::Transaction;
use super::rows::{MIRROR_COLUMNS, MirrorRow};
use crate::Result;
use crate::journal::{JournalEntry, last_of_each_level};
use stocklock_core::stock::{Home, Sku, StockLevel, Warehouse};

const RECORDED: &str =
    "SELECT operation_id FROM movement WHERE line = 0 AND operation_id IN ($list)";

const KNOWN_KEYS: &str = "SELECT caller, idempotency_key, sku FROM movement
    WHERE (caller, idempotency_key) IN ($list)";

/// The columns of a level that an entry changes, in the order of [`update_mirrors`].
const UPDATED: [&str; 7] = [
    "on_hand",
    "held",
    "backorder_limit",
    "version",
    "journal_millis",
    "journal_number",
    "ledger_version",
];

type Mirrors = HashMap<(Sku, Warehouse), MirrorRow>;

/// Whether a batch first looks for movements and keys that the ledger has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    /// It looks for them, and records the others.
    Look,
    /// It records all. If the ledger has one of them, the batch fails with [`StoreError::Aborted`].
    ///
    /// [`StoreError::Aborted`]: crate::StoreError::Aborted
    Refuse,
}

/// Records the movements that the ledger does not have, and updates the levels to the last of their
/// entries. The caller commits. Returns how many of the entries the ledger had already.
pub(super) async fn apply<D: Dialect>(
    tx: &mut Transaction<D>,
    entries: &[&JournalEntry],
    known: Known,
) -> Result<usize> {
    let last = last_of_each_level(entries);
    let mut mirrors = lock_mirrors(tx, &last).await?;
    // After the levels are locked: no other consumer records these movements from now on.
    let recorded = match known {
        Known::Look => {
            let movements = entries.iter().flat_map(|entry| &entry.movements);
            recorded_among(tx, movements.map(|row| row.operation_id)).await?
        }
        Known::Refuse => HashSet::new(),
    };
    let mut rows = new_movements(entries, &recorded);
    match known {
        Known::Look => {
            let known = known_keys(tx, &rows).await?;
            drop_keys(&mut rows, &known.into_keys().collect());
        }
        Known::Refuse => drop_keys(&mut rows, &HashSet::new()),
    }
    number(&mut rows, &mut mirrors);
    let inserted = D::insert_entries(tx, &rows).await;
    // The next attempt looks for it, and finds it.
    inserted.map_err(conflict_if_duplicate)?;
    update_mirrors(tx, &mirrors, &last).await?;
    let is_recorded = |row: &LedgerRow| recorded.contains(&row.operation_id);
    let repeated = entries.iter();
    let repeated = repeated.filter(|entry| entry.movements.iter().any(is_recorded));
    Ok(repeated.count())
}

/// Records the movements that the ledger does not have, and adds their units to the levels as SQL has them: the
/// entries were written by a Redis that did not have these levels.
///
/// An order that another Redis has sold since, under the same key, is not recorded: its first outcome was unknown.
pub(super) async fn merge<D: Dialect>(
    tx: &mut Transaction<D>,
    entries: &[&JournalEntry],
) -> Result<()> {
    let last = last_of_each_level(entries);
    let mut mirrors = lock_mirrors(tx, &last).await?;
    let movements = entries.iter().flat_map(|entry| &entry.movements);
    let recorded = recorded_among(tx, movements.map(|row| row.operation_id)).await?;
    let mut rows = new_movements(entries, &recorded);
    let known = known_keys(tx, &rows).await?;
    rows.retain(|row| {
        let key = row.idempotency_key.as_deref().unwrap_or_default();
        let sku = known.get(&(row.caller.to_string(), key.to_owned()));
        sku.is_none_or(|sku| sku != row.sku.as_str())
    });
    drop_keys(&mut rows, &known.into_keys().collect());
    number(&mut rows, &mut mirrors);
    let inserted = D::insert_entries(tx, &rows).await;
    inserted.map_err(conflict_if_duplicate)?;
    let mut units = HashMap::new();
    for row in &rows {
        *units.entry(place(row)).or_default() += row.delta;
    }
    for entry in &last {
        let place = place(&entry.movements[0]);
        if let Some(mirror) = mirrors.get_mut(&place) {
            let units = units.get(&place).copied().unwrap_or(0);
            *mirror = merged(mirror, entry, units);
        }
    }
    update_mirrors(tx, &mirrors, &last).await
}

/// Adds units to a level, and gives it a version that no Redis has in an entry. The rest is from the later entry.
fn merged(mirror: &MirrorRow, entry: &JournalEntry, units: i64) -> MirrorRow {
    let mut merged = updated(mirror, entry);
    let level = &mut merged.level;
    // Both may have sold the same units. The audit shows it.
    level.on_hand = (mirror.level.on_hand + units).max(level.held - level.backorder_limit);
    level.version = mirror.level.version.max(entry.version) + 1;
    merged
}

/// Gives the movements their places in the ledgers of their levels.
fn number(rows: &mut [LedgerRow], mirrors: &mut Mirrors) {
    for of_level in rows.chunk_by_mut(|a, b| a.sku == b.sku && a.warehouse == b.warehouse) {
        let Some(mirror) = mirrors.get_mut(&place(&of_level[0])) else {
            continue;
        };
        for row in of_level {
            let number = mirror.ledger_version.unwrap_or(0) + 1;
            mirror.ledger_version = Some(number);
            row.level_version = Some(number);
        }
    }
}

/// Which of the operations are recorded.
pub(super) async fn recorded_among<D: Dialect>(
    tx: &mut Transaction<D>,
    operations: impl Iterator<Item = Uuid>,
) -> Result<HashSet<Uuid>> {
    let operations: Vec<_> = operations.map(|id| vec![id.into()]).collect();
    let found = tx.fetch_list(RECORDED, &operations).await;
    let found: Vec<(Uuid,)> = found.map_err(before_commit)?;
    Ok(found.into_iter().map(|(id,)| id).collect())
}

fn place(row: &LedgerRow) -> (Sku, Warehouse) {
    (row.sku.clone(), row.warehouse.clone())
}

/// Locks the levels of the entries in (SKU, warehouse) order. `last` has one entry for each level, in
/// that order.
async fn lock_mirrors<D: Dialect>(
    tx: &mut Transaction<D>,
    last: &[&JournalEntry],
) -> Result<Mirrors> {
    let statement = format!(
        "SELECT {MIRROR_COLUMNS} FROM stock WHERE home = 'redis' AND (sku, warehouse) IN ($list)
        ORDER BY sku, warehouse{}",
        D::WORDS.lock_rows
    );
    let places = last.iter().map(|entry| {
        let (sku, warehouse) = entry.place();
        values![sku, warehouse].to_vec()
    });
    let found = tx.fetch_list(&statement, &places.collect::<Vec<_>>()).await;
    let found: Vec<MirrorRow> = found.map_err(before_commit)?;
    let with_place = |mirror: MirrorRow| {
        let StockLevel { sku, warehouse, .. } = mirror.level.clone();
        ((sku, warehouse), mirror)
    };
    Ok(found.into_iter().map(with_place).collect())
}

/// The movements of the entries that are not recorded, in the order of the entries.
pub(crate) fn new_movements(entries: &[&JournalEntry], recorded: &HashSet<Uuid>) -> Vec<LedgerRow> {
    let mut entries = entries.to_vec();
    entries.sort_by_key(|entry| entry.id);
    let mut known = recorded.clone();
    let count = entries.iter().map(|entry| entry.movements.len()).sum();
    known.reserve(count);
    let rows = entries.iter().flat_map(|entry| &entry.movements);
    let rows = rows.filter(|row| known.insert(row.operation_id));
    let mut new = Vec::with_capacity(count);
    new.extend(rows.cloned());
    new
}

/// The keys of these movements that other movements have, each with its caller, and the SKU of its movement.
async fn known_keys<D: Dialect>(
    tx: &mut Transaction<D>,
    rows: &[LedgerRow],
) -> Result<HashMap<(String, String), String>> {
    let keys = rows.iter().filter_map(|row| {
        let key = row.idempotency_key.as_deref()?;
        Some(values![&*row.caller, key].to_vec())
    });
    let found = tx.fetch_list(KNOWN_KEYS, &keys.collect::<Vec<_>>()).await;
    let found: Vec<(String, String, String)> = found.map_err(before_commit)?;
    let with_sku = |(caller, key, sku)| ((caller, key), sku);
    Ok(found.into_iter().map(with_sku).collect())
}

/// Removes the keys that are known, or that an earlier one of the rows has. Each has a caller. In SQL a key is unique
/// per caller, in Redis per caller and SKU.
pub(crate) fn drop_keys(rows: &mut [LedgerRow], known: &HashSet<(String, String)>) {
    let mut seen: HashSet<(&str, &str)> = HashSet::with_capacity(known.len() + rows.len());
    seen.extend(known.iter().map(|(caller, key)| (&**caller, &**key)));
    let repeated: Vec<usize> = (0..rows.len())
        .filter(|&number| {
            let row = &rows[number];
            let key = row.idempotency_key.as_deref();
            key.is_some_and(|key| !seen.insert((&row.caller, key)))
        })
        .collect();
    for number in repeated {
        rows[number].idempotency_key = None;
    }
}

/// Updates each level to its entry in `last`, unless the level is from a later one, and to its
/// `ledger_version`.
async fn update_mirrors<D: Dialect>(
    tx: &mut Transaction<D>,
    mirrors: &Mirrors,
    last: &[&JournalEntry],
) -> Result<()> {
    let assignments = UPDATED.map(|column| {
        let value = D::WORDS.upserted.replace("$column", column);
        format!("{column} = {value}")
    });
    let statement = format!(
        "INSERT INTO stock (sku, warehouse, home, {}) {} {}",
        UPDATED.join(", "),
        D::WORDS.upsert_levels,
        assignments.join(", "),
    );
    let levels = last.iter().filter_map(|entry| {
        let mirror = updated(mirrors.get(&place(&entry.movements[0]))?, entry);
        let (sku, warehouse) = entry.place();
        let row = values![
            sku,
            warehouse,
            Home::Redis.as_str(),
            mirror.level.on_hand,
            mirror.level.held,
            mirror.level.backorder_limit,
            mirror.level.version,
            mirror.entry.millis,
            mirror.entry.number,
            mirror.ledger_version,
        ];
        Some(row.to_vec())
    });
    let levels: Vec<_> = levels.collect();
    let rows: Vec<(i64,)> = tx
        .fetch_list(&statement, &levels)
        .await
        .map_err(before_commit)?;
    debug_assert!(rows.is_empty(), "the statement returns no rows");
    Ok(())
}

/// The level after the entry, unless it is from a later one.
pub(crate) fn updated(mirror: &MirrorRow, entry: &JournalEntry) -> MirrorRow {
    let mut mirror = mirror.clone();
    if entry.id > mirror.entry {
        mirror.level.on_hand = entry.on_hand;
        mirror.level.held = entry.held;
        mirror.level.backorder_limit = entry.backorder_limit;
        mirror.level.version = entry.version;
        mirror.entry = entry.id;
    }
    mirror
}
