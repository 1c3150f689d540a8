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
use crate::StoreError;
use crate::journal::{self, EntryId, JournalEntry, last_of_each_level};
use stocklock_core::stock::{Audit, Sku, StockLevel, Warehouse};

/// How many operations one statement looks up.
const OPERATIONS_PER_LOOKUP: usize = 500;

/// How many statements the bound of [`JournalSink::ledger_up_to`] allows for at most.
const MAX_LOOKUPS: u32 = 20;

/// A level of Redis-home stock as SQL has it.
#[derive(Debug, Clone)]
pub(crate) struct Mirrored {
    pub(crate) level: StockLevel,
    /// The journal entry that the level comes from. Zero if no entry has changed it.
    pub(crate) entry: EntryId,
}

/// What the ledger has of one SKU up to a journal entry.
#[derive(Debug, Clone)]
pub(crate) struct LedgerUpTo {
    /// The sums per warehouse over all movements up to that entry, and over those that did not come
    /// from the journal. The level in it is the mirror's.
    pub(crate) sums: Vec<Audit>,
    /// Which of the given operations are recorded.
    pub(crate) recorded: HashSet<Uuid>,
}

/// Applies journal entries to SQL, and reads what was applied.
#[async_trait]
pub(crate) trait JournalSink: Send + Sync {
    /// The identity of this ledger, created with its schema.
    async fn ledger_id(&self) -> Result<String, StoreError>;

    /// Reads one level with the journal entry that it comes from.
    async fn mirrored(
        &self,
        sku: &Sku,
        warehouse: &Warehouse,
    ) -> Result<Option<Mirrored>, StoreError>;

    /// Records each movement of the entries once, even if it is applied repeatedly, and updates the
    /// mirrors. All in one transaction.
    async fn apply_entries(&self, entries: &[&JournalEntry]) -> Result<(), StoreError>;

    /// Reads the ledger of a SKU up to the entry `last`, and which of the operations it has. Both
    /// are of one snapshot.
    async fn ledger_up_to(
        &self,
        sku: &Sku,
        last: EntryId,
        operations: &[Uuid],
    ) -> Result<LedgerUpTo, StoreError>;

    /// The latest journal entry among the SKU's movements.
    async fn last_recorded(&self, sku: &Sku) -> Result<EntryId, StoreError>;
}

#[async_trait]
impl<D: Dialect> JournalSink for SqlStore<D> {
    async fn ledger_id(&self) -> Result<String, StoreError> {
        let mut found: Vec<(String,)> = self.select(D::STATEMENTS.ledger_id, &[]).await?;
        let id = found.pop().map(|(id,)| id);
        id.ok_or_else(|| StoreError::Bug("the table `ledger` has no row".into()))
    }

    async fn mirrored(
        &self,
        sku: &Sku,
        warehouse: &Warehouse,
    ) -> Result<Option<Mirrored>, StoreError> {
        let place = values![sku.as_str(), warehouse.as_str()];
        let mut found: Vec<MirrorRow> = self.select(D::STATEMENTS.mirror, &place).await?;
        found.pop().map(Mirrored::try_from).transpose()
    }

    async fn apply_entries(&self, entries: &[&JournalEntry]) -> Result<(), StoreError> {
        self.write(async {
            let mut tx = self.begin(D::STATEMENTS.begin).await?;
            update_mirrors(&mut tx, entries).await?;
            let rows = journal::movements(entries);
            if insert_new(&mut tx, &rows).await? == Inserted::Duplicate {
                // Some are recorded already. Which ones is decided row by row.
                tx.roll_back().await;
                tx = self.begin(D::STATEMENTS.begin).await?;
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
    ) -> Result<LedgerUpTo, StoreError> {
        let lookups = operations.len().div_ceil(OPERATIONS_PER_LOOKUP);
        let statements = u32::try_from(lookups + 1).map_or(MAX_LOOKUPS, |n| n.min(MAX_LOOKUPS));
        let reading = async {
            let mut tx = self.readers.begin(D::STATEMENTS.begin_snapshot).await?;
            let up_to = values![sku.as_str(), last.millis, last.number];
            let sums = tx.fetch(D::STATEMENTS.audit_up_to, &up_to).await;
            let sums: Vec<AuditRow> = sums.map_err(before_commit)?;
            let mut recorded = HashSet::new();
            for operations in operations.chunks(OPERATIONS_PER_LOOKUP) {
                recorded.extend(recorded_among(&mut tx, operations).await?);
            }
            tx.roll_back().await;
            let sums = sums.into_iter().map(Audit::from).collect();
            Ok(LedgerUpTo { sums, recorded })
        };
        self.read_statements(statements, reading).await
    }

    async fn last_recorded(&self, sku: &Sku) -> Result<EntryId, StoreError> {
        let statement = D::STATEMENTS.last_entry;
        let mut found = self.select(statement, &values![sku.as_str()]).await?;
        Ok(found.pop().unwrap_or_default())
    }
}

async fn recorded_among<D: Dialect>(
    tx: &mut Transaction<D>,
    operations: &[Uuid],
) -> Result<impl Iterator<Item = Uuid> + use<D>, StoreError> {
    let list: Vec<String> = (1..=operations.len()).map(|n| format!("${n}")).collect();
    let text = format!(
        "SELECT operation_id FROM movement WHERE line = 0 AND operation_id IN ({})",
        list.join(", ")
    );
    let values: Vec<_> = operations.iter().map(|id| (*id).into()).collect();
    let found = tx.fetch(Statement::built(text), &values).await;
    let found: Vec<(Uuid,)> = found.map_err(before_commit)?;
    Ok(found.into_iter().map(|(id,)| id))
}

/// Updates each mirror to the last of its entries. Rows are locked in (SKU, warehouse) order.
async fn update_mirrors<D: Dialect>(
    tx: &mut Transaction<D>,
    entries: &[&JournalEntry],
) -> Result<(), StoreError> {
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
        let updated = tx.execute(D::STATEMENTS.update_mirror, &columns).await;
        updated.map_err(before_commit)?;
    }
    Ok(())
}

/// Inserts movements, most of which are new. After [`Inserted::Duplicate`] the transaction can only
/// be rolled back.
async fn insert_new<D: Dialect>(
    tx: &mut Transaction<D>,
    rows: &[&LedgerRow],
) -> Result<Inserted, StoreError> {
    inserted(D::insert_entries(tx, rows).await, false)
}

/// Inserts a movement unless it is recorded. It becomes a conflict if another transaction is
/// recording the same operation or key at this moment; the next attempt sees that row.
pub(crate) async fn insert_entry<D: Dialect>(
    tx: &mut Transaction<D>,
    row: &LedgerRow,
) -> sqlx::Result<u64> {
    let mut columns = row.values().to_vec();
    columns.extend(values![
        row.available_after,
        row.entry.millis,
        row.entry.number
    ]);
    tx.execute(D::STATEMENTS.insert_entry, &columns).await
}
