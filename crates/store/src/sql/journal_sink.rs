//! SQL as the ledger of stock whose home is Redis.
//!
//! SQL keeps the movements, and a mirror of each level as the last applied journal entry left it.

use std::collections::HashSet;

use async_trait::async_trait;
use uuid::Uuid;

use super::SqlStore;
use super::dialect::{Dialect, Statement, values};
use super::errors::{Inserted, before_commit, conflict_if_duplicate, inserted};
use super::ledger_row::LedgerRow;
use super::pool::Transaction;
use super::rows::{AuditRow, MirrorRow};
use super::statements::{self, INSERT_COLUMNS, INSERT_PARAMETERS, LEVEL_COLUMNS, NEXT_PARAMETERS};
use crate::journal::{EntryId, JournalEntry, last_of_each_level};
use crate::{Result, StoreError};
use stocklock_core::stock::{Audit, Sku, StockLevel, Warehouse};

/// How many operations one statement looks up.
const OPERATIONS_PER_LOOKUP: usize = 500;

/// How many statements the bound of [`JournalSink::ledger_up_to`] allows for at most.
const MAX_LOOKUPS: u32 = 20;

/// Ends a condition on movements: those up to a journal entry, and those from no entry.
const UP_TO: &str = " AND NOT coalesce(journal_millis > $2
            OR journal_millis = $2 AND journal_number > $3, false)";

const LAST_ENTRY: &str = "SELECT journal_millis, journal_number FROM movement
    WHERE sku = $1 AND journal_millis IS NOT NULL
    ORDER BY journal_millis DESC, journal_number DESC LIMIT 1";

/// Changes nothing if the row is from a later entry.
const UPDATE_MIRROR: &str = "UPDATE stock
    SET on_hand = $3, held = $4, backorder_limit = $5, version = $6,
        journal_millis = $7, journal_number = $8
    WHERE sku = $1 AND warehouse = $2 AND home = 'redis'
        AND (journal_millis < $7 OR journal_millis = $7 AND journal_number < $8)";

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
    /// the ledger has. The levels in the sums are the mirrors'.
    async fn ledger_up_to(
        &self,
        sku: &Sku,
        last: EntryId,
        operations: &[Uuid],
    ) -> Result<(Vec<Audit>, HashSet<Uuid>)>;

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
            "SELECT {LEVEL_COLUMNS}, journal_millis, journal_number
            FROM stock WHERE sku = $1 AND warehouse = $2"
        ));
        let place = values![sku.as_str(), warehouse.as_str()];
        let pool = self.lookups().for_sku(sku);
        let mut found: Vec<MirrorRow> = self.select(&pool, statement, &place).await?;
        Ok(found.pop().map(|row| (row.level, row.entry)))
    }

    async fn apply_entries(&self, entries: &[&JournalEntry]) -> Result<()> {
        self.write(async {
            let mut tx = self.writers.begin(D::WORDS.begin).await?;
            update_mirrors(&mut tx, entries).await?;
            let rows: Vec<_> = entries.iter().flat_map(|entry| &entry.movements).collect();
            let answer = D::insert_entries(&mut tx, &rows).await;
            if inserted(answer, false)? == Inserted::Duplicate {
                // Some are recorded already. Which ones is decided row by row.
                tx.roll_back().await;
                tx = self.writers.begin(D::WORDS.begin).await?;
                update_mirrors(&mut tx, entries).await?;
                for row in rows {
                    let answer = insert_entry(&mut tx, row).await;
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
    ) -> Result<(Vec<Audit>, HashSet<Uuid>)> {
        let lookups = operations.len().div_ceil(OPERATIONS_PER_LOOKUP);
        let statements = u32::try_from(lookups + 1).map_or(MAX_LOOKUPS, |n| n.min(MAX_LOOKUPS));
        let reading = async {
            let pool = self.ledger_readers.for_sku(sku);
            let mut tx = pool.begin(D::WORDS.begin_snapshot).await?;
            let up_to = values![sku.as_str(), last.millis, last.number];
            let statement = statements::audit(&D::WORDS, UP_TO);
            let sums = tx.fetch(statement, &up_to).await;
            let sums: Vec<AuditRow> = sums.map_err(before_commit)?;
            let mut recorded = HashSet::new();
            for operations in operations.chunks(OPERATIONS_PER_LOOKUP) {
                recorded.extend(recorded_among(&mut tx, operations).await?);
            }
            tx.roll_back().await;
            Ok((sums.into_iter().map(Audit::from).collect(), recorded))
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

/// Updates each mirror to the last of its entries. Rows are locked in (SKU, warehouse) order.
async fn update_mirrors<D: Dialect>(
    tx: &mut Transaction<D>,
    entries: &[&JournalEntry],
) -> Result<()> {
    for entry in last_of_each_level(entries) {
        let (sku, warehouse) = entry.place();
        let columns = values![
            sku,
            warehouse,
            entry.on_hand,
            entry.held,
            entry.backorder_limit,
            entry.version,
            entry.id.millis,
            entry.id.number,
        ];
        let updated = tx.execute(UPDATE_MIRROR, &columns).await;
        updated.map_err(before_commit)?;
    }
    Ok(())
}

/// Inserts a movement unless its operation is recorded. If another operation has the key, the
/// movement is recorded without it. It becomes a conflict if another transaction is recording the
/// same operation or key at this moment; the next attempt sees that row.
pub(crate) async fn insert_entry<D: Dialect>(
    tx: &mut Transaction<D>,
    row: &LedgerRow,
) -> sqlx::Result<()> {
    let [available, millis, number, ..] = &*NEXT_PARAMETERS;
    // The parameter of the key is $10.
    let known = INSERT_PARAMETERS.replace(
        "$10",
        "CASE WHEN EXISTS (
                SELECT 1 FROM movement WHERE caller = $9 AND idempotency_key = $10
            ) THEN NULL ELSE $10 END",
    );
    let statement = Statement::built(format!(
        "INSERT INTO movement ({columns}, created_at, journal_millis, journal_number)
        SELECT {known}, {available}, {entry_time}, {millis}, {number}{no_table}
        WHERE NOT EXISTS (SELECT 1 FROM movement WHERE operation_id = $1 AND line = 0)",
        columns = *INSERT_COLUMNS,
        entry_time = D::WORDS.entry_time.replace("$millis", millis),
        no_table = D::WORDS.no_table,
    ));
    tx.execute(statement, &row.values()).await.map(drop)
}
