//! SQL as the ledger of stock whose home is Redis.
//!
//! SQL keeps the movements, and a mirror of each level as the last applied journal entry left it.

use std::collections::{HashMap, HashSet};

use async_trait::async_trait;
use uuid::Uuid;

use super::dialect::{Dialect, Statement, Value, values};
use super::errors::{Inserted, before_commit, conflict_if_duplicate, inserted};
use super::ledger_row::LedgerRow;
use super::pool::Transaction;
use super::rows::{MIRROR_COLUMNS, MirrorRow};
use super::statements::{INSERT_COLUMNS, INSERT_PARAMETERS, NEXT_PARAMETERS};
use super::{SqlStore, audit};
use crate::journal::{EntryId, JournalEntry, last_of_each_level};
use crate::{Result, StoreError};
use stocklock_core::stock::{Audit, Sku, StockLevel, Warehouse};

/// How many operations one statement looks up.
const OPERATIONS_PER_LOOKUP: usize = 500;

/// How many statements the bound of [`JournalSink::ledger_up_to`] allows for at most.
const MAX_LOOKUPS: u32 = 20;

/// A mirror is from the latest entry that was applied to its level.
const LAST_ENTRY: &str = "SELECT journal_millis, journal_number FROM stock WHERE sku = $1
    ORDER BY journal_millis DESC, journal_number DESC LIMIT 1";

const UPDATE_MIRROR: &str = "UPDATE stock
    SET on_hand = $3, held = $4, backorder_limit = $5, version = $6,
        journal_millis = $7, journal_number = $8, ledger_version = $9
    WHERE sku = $1 AND warehouse = $2 AND home = 'redis'";

/// Applies journal entries to SQL, and reads what was applied.
#[async_trait]
pub(crate) trait JournalSink: Send + Sync {
    /// The identity of this ledger, created with its schema.
    async fn ledger_id(&self) -> Result<String>;

    /// Reads one level and the journal entry that it comes from. That is zero if no entry has changed
    /// the level.
    async fn mirrored(
        &self,
        sku: &Sku,
        warehouse: &Warehouse,
    ) -> Result<Option<(StockLevel, EntryId)>>;

    /// Records each movement of the entries once, even if it is applied repeatedly, and updates the
    /// mirrors. All in one transaction.
    async fn apply_entries(&self, entries: &[&JournalEntry]) -> Result<()>;

    /// Reads two things from one snapshot: the sums per warehouse over the SKU's movements up to the
    /// entry `last` and over those that did not come from the journal, and which of the operations
    /// the ledger has. The levels in the sums are the mirrors'. `None` if a checkpoint contains later
    /// movements: then a later `last` is needed.
    async fn ledger_up_to(
        &self,
        sku: &Sku,
        last: EntryId,
        operations: &[Uuid],
    ) -> Result<Option<(Vec<Audit>, HashSet<Uuid>)>>;

    /// The latest journal entry among the SKU's movements.
    async fn last_recorded(&self, sku: &Sku) -> Result<EntryId>;
}

#[async_trait]
impl<D: Dialect> JournalSink for SqlStore<D> {
    async fn ledger_id(&self) -> Result<String> {
        let found = self.select(self.lookups(), "SELECT id FROM ledger", &[]);
        let mut found: Vec<(String,)> = found.await?;
        let id = found.pop().map(|(id,)| id);
        id.ok_or_else(|| StoreError::Bug("the table `ledger` has no row".into()))
    }

    async fn mirrored(
        &self,
        sku: &Sku,
        warehouse: &Warehouse,
    ) -> Result<Option<(StockLevel, EntryId)>> {
        let statement = Statement::built(format!(
            "SELECT {MIRROR_COLUMNS} FROM stock WHERE sku = $1 AND warehouse = $2"
        ));
        let place = values![sku.as_str(), warehouse.as_str()];
        let pool = self.lookups().for_sku(sku);
        let mut found: Vec<MirrorRow> = self.select(&pool, statement, &place).await?;
        Ok(found.pop().map(|row| (row.level, row.entry)))
    }

    async fn apply_entries(&self, entries: &[&JournalEntry]) -> Result<()> {
        if entries.is_empty() {
            return Ok(());
        }
        self.write(async {
            let mut tx = self.writers.begin(D::WORDS.begin).await?;
            // SQLite inserts row by row, without an error for a duplicate.
            let known = if D::EMBEDDED {
                Known::LookUp
            } else {
                Known::None
            };
            let rows = update_mirrors(&mut tx, entries, known).await?;
            let answer = D::insert_entries(&mut tx, &rows.iter().collect::<Vec<_>>()).await;
            if inserted(answer, false)? == Inserted::Duplicate {
                // Some are recorded already, or their keys are.
                tx.roll_back().await;
                tx = self.writers.begin(D::WORDS.begin).await?;
                for row in update_mirrors(&mut tx, entries, Known::LookUp).await? {
                    let answer = insert_entry(&mut tx, &row).await;
                    answer.map_err(conflict_if_duplicate)?;
                }
            }
            tx.commit().await
        })
        .await
    }

    async fn ledger_up_to(
        &self,
        sku: &Sku,
        last: EntryId,
        operations: &[Uuid],
    ) -> Result<Option<(Vec<Audit>, HashSet<Uuid>)>> {
        let lookups = operations.len().div_ceil(OPERATIONS_PER_LOOKUP);
        let statements = u32::try_from(lookups).map_or(MAX_LOOKUPS, |n| n.min(MAX_LOOKUPS));
        let statements = statements + audit::STATEMENTS;
        let reading = async {
            let pool = self.ledger_readers.for_sku(sku);
            let mut tx = pool.begin(D::WORDS.begin_snapshot).await?;
            let Some(sums) = audit::audit(&mut tx, sku, Some(last)).await? else {
                tx.roll_back().await;
                return Ok(None);
            };
            let mut recorded = HashSet::new();
            for operations in operations.chunks(OPERATIONS_PER_LOOKUP) {
                recorded.extend(recorded_among(&mut tx, operations).await?);
            }
            tx.roll_back().await;
            Ok(Some((sums, recorded)))
        };
        self.read(statements, reading).await
    }

    async fn last_recorded(&self, sku: &Sku) -> Result<EntryId> {
        let pool = self.ledger_readers.for_sku(sku);
        let found = self.select(&pool, LAST_ENTRY, &values![sku.as_str()]).await;
        Ok(found?.pop().unwrap_or_default())
    }
}

/// Which of the operations are recorded.
async fn recorded_among<D: Dialect>(
    tx: &mut Transaction<D>,
    operations: &[Uuid],
) -> Result<Vec<Uuid>> {
    let list: Vec<String> = (1..=operations.len()).map(|n| format!("${n}")).collect();
    let list = list.join(", ");
    let statement = Statement {
        // The text depends on the number of operations.
        persistent: false,
        ..Statement::built(format!(
            "SELECT operation_id FROM movement WHERE line = 0 AND operation_id IN ({list})"
        ))
    };
    let values: Vec<_> = operations.iter().map(|id| (*id).into()).collect();
    let found: Vec<(Uuid,)> = tx.fetch(statement, &values).await.map_err(before_commit)?;
    Ok(found.into_iter().map(|(id,)| id).collect())
}

/// Which movements of a batch may be recorded already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    /// Probably none.
    None,
    /// Those that the ledger has.
    LookUp,
}

/// Locks the levels of the entries, in (SKU, warehouse) order. Numbers the movements that are new, and
/// updates each mirror to the last of its entries. Returns those movements.
async fn update_mirrors<D: Dialect>(
    tx: &mut Transaction<D>,
    entries: &[&JournalEntry],
    known: Known,
) -> Result<Vec<LedgerRow>> {
    let last = last_of_each_level(entries);
    let mut mirrors = lock_mirrors(tx, &last).await?;
    let mut entries = entries.to_vec();
    entries.sort_by_key(|entry| entry.id);
    let movements = entries.iter().flat_map(|entry| &entry.movements);
    let mut rows: Vec<LedgerRow> = movements.cloned().collect();
    let mut recorded = HashSet::new();
    if known == Known::LookUp {
        // After the rows are locked: no other consumer records these movements from now on.
        let operations: Vec<Uuid> = rows.iter().map(|row| row.operation_id).collect();
        for operations in operations.chunks(OPERATIONS_PER_LOOKUP) {
            recorded.extend(recorded_among(tx, operations).await?);
        }
    }
    rows.retain(|row| recorded.insert(row.operation_id));
    for row in &mut rows {
        if let Some(mirror) = mirrors.get_mut(&place(row)) {
            let number = mirror.ledger_version.unwrap_or(0) + 1;
            mirror.ledger_version = Some(number);
            row.level_version = Some(number);
        }
    }
    for entry in last {
        if let Some(mirror) = mirrors.get(&place(&entry.movements[0])) {
            update_mirror(tx, mirror, entry).await?;
        }
    }
    Ok(rows)
}

fn place(row: &LedgerRow) -> (Sku, Warehouse) {
    (row.sku.clone(), row.warehouse.clone())
}

/// Updates a mirror to `entry`, unless it is from a later one, and to its `ledger_version`.
async fn update_mirror<D: Dialect>(
    tx: &mut Transaction<D>,
    mirror: &MirrorRow,
    entry: &JournalEntry,
) -> Result<()> {
    let (sku, warehouse) = entry.place();
    let JournalEntry {
        id,
        on_hand,
        held,
        backorder_limit,
        version,
        ..
    } = *entry;
    let level = &mirror.level;
    let (id, on_hand, held, backorder_limit, version) = if id > mirror.entry {
        (id, on_hand, held, backorder_limit, version)
    } else {
        let StockLevel { on_hand, held, .. } = *level;
        (
            mirror.entry,
            on_hand,
            held,
            level.backorder_limit,
            level.version,
        )
    };
    let columns = values![
        sku,
        warehouse,
        on_hand,
        held,
        backorder_limit,
        version,
        id.millis,
        id.number,
        mirror.ledger_version,
    ];
    let updated = tx.execute(UPDATE_MIRROR, &columns).await;
    updated.map(drop).map_err(before_commit)
}

/// Locks the mirrors of the entries' levels. `last` has one entry for each level.
async fn lock_mirrors<D: Dialect>(
    tx: &mut Transaction<D>,
    last: &[&JournalEntry],
) -> Result<HashMap<(Sku, Warehouse), MirrorRow>> {
    // So that there are few texts, which the server keeps. The last level fills the rest.
    let number = last.len().next_power_of_two();
    let is_one = |n: usize| format!("sku = ${} AND warehouse = ${}", 2 * n + 1, 2 * n + 2);
    let is_any: Vec<String> = (0..number).map(is_one).collect();
    let statement = Statement::built(format!(
        "SELECT {MIRROR_COLUMNS} FROM stock WHERE home = 'redis' AND ({})
        ORDER BY sku, warehouse{}",
        is_any.join(" OR "),
        D::WORDS.lock_rows
    ));
    let filled = last.iter().chain(last.iter().last().into_iter().cycle());
    let places = filled.take(number).flat_map(|entry| {
        let (sku, warehouse) = entry.place();
        values![sku, warehouse]
    });
    let places: Vec<Value<'_>> = places.collect();
    let found: Vec<MirrorRow> = tx.fetch(statement, &places).await.map_err(before_commit)?;
    let with_place = |mirror: MirrorRow| {
        let StockLevel { sku, warehouse, .. } = mirror.level.clone();
        ((sku, warehouse), mirror)
    };
    Ok(found.into_iter().map(with_place).collect())
}

/// Inserts a movement unless its operation is recorded. If another operation has the key, the
/// movement is recorded without it. It becomes a conflict if another transaction is recording the
/// same operation or key at this moment; the next attempt sees that row.
pub(crate) async fn insert_entry<D: Dialect>(
    tx: &mut Transaction<D>,
    row: &LedgerRow,
) -> sqlx::Result<()> {
    let [available, level_version, millis, number, ..] = &*NEXT_PARAMETERS;
    // The parameter of the key is $10.
    let known = INSERT_PARAMETERS.replace(
        "$10",
        "CASE WHEN EXISTS (
                SELECT 1 FROM movement WHERE caller = $9 AND idempotency_key = $10
            ) THEN NULL ELSE $10 END",
    );
    let statement = Statement::built(format!(
        "INSERT INTO movement ({columns}, created_at, journal_millis, journal_number)
        SELECT {known}, {available}, {level_version}, {entry_time}, {millis}, {number}{no_table}
        WHERE NOT EXISTS (SELECT 1 FROM movement WHERE operation_id = $1 AND line = 0)",
        columns = *INSERT_COLUMNS,
        entry_time = D::WORDS.entry_time.replace("$millis", millis),
        no_table = D::WORDS.no_table,
    ));
    tx.execute(statement, &row.values()).await.map(drop)
}
