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
use crate::journal::{EntryId, JournalEntry, last_of_each_level};
use stocklock_core::stock::{Audit, Sku, StockLevel, Warehouse};

/// How many operations one statement looks up.
const OPERATIONS_PER_LOOKUP: usize = 500;

/// How many statements the bound of [`JournalSink::ledger_up_to`] allows for at most.
const MAX_LOOKUPS: u32 = 20;

/// Applies journal entries to SQL, and reads what was applied.
#[async_trait]
pub(crate) trait JournalSink: Send + Sync {
    /// The identity of this ledger, created with its schema.
    async fn ledger_id(&self) -> Result<String, StoreError>;

    /// Reads one level and the journal entry that it comes from. That is zero if no entry has changed
    /// the level.
    async fn mirrored(
        &self,
        sku: &Sku,
        warehouse: &Warehouse,
    ) -> Result<Option<(StockLevel, EntryId)>, StoreError>;

    /// Records each movement of the entries once, even if it is applied repeatedly, and updates the
    /// mirrors. All in one transaction.
    async fn apply_entries(&self, entries: &[&JournalEntry]) -> Result<(), StoreError>;

    /// Reads two things from one snapshot: the sums per warehouse over the SKU's movements up to the
    /// entry `last` and over those that did not come from the journal, and which of the operations
    /// the ledger has. The levels in the sums are the mirrors'.
    async fn ledger_up_to(
        &self,
        sku: &Sku,
        last: EntryId,
        operations: &[Uuid],
    ) -> Result<(Vec<Audit>, HashSet<Uuid>), StoreError>;

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
    ) -> Result<Option<(StockLevel, EntryId)>, StoreError> {
        let place = values![sku.as_str(), warehouse.as_str()];
        let mut found: Vec<MirrorRow> = self.select(D::STATEMENTS.mirror, &place).await?;
        found.pop().map(MirrorRow::mirrored).transpose()
    }

    async fn apply_entries(&self, entries: &[&JournalEntry]) -> Result<(), StoreError> {
        self.write(async {
            let mut tx = self.begin(D::STATEMENTS.begin).await?;
            update_mirrors(&mut tx, entries).await?;
            let rows: Vec<_> = entries.iter().flat_map(|entry| &entry.movements).collect();
            let answer = D::insert_entries(&mut tx, &rows).await;
            if inserted(answer, false)? == Inserted::Duplicate {
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
    ) -> Result<(Vec<Audit>, HashSet<Uuid>), StoreError> {
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
            Ok((sums.into_iter().map(Audit::from).collect(), recorded))
        };
        self.read_statements(statements, reading).await
    }

    async fn last_recorded(&self, sku: &Sku) -> Result<EntryId, StoreError> {
        let statement = D::STATEMENTS.last_entry;
        let mut found = self.select(statement, &values![sku.as_str()]).await?;
        Ok(found.pop().unwrap_or_default())
    }
}

/// Which of the operations are recorded.
async fn recorded_among<D: Dialect>(
    tx: &mut Transaction<D>,
    operations: &[Uuid],
) -> Result<Vec<Uuid>, StoreError> {
    let list: Vec<String> = (1..=operations.len()).map(|n| format!("${n}")).collect();
    let list = list.join(", ");
    let text =
        format!("SELECT operation_id FROM movement WHERE line = 0 AND operation_id IN ({list})");
    let values: Vec<_> = operations.iter().map(|id| (*id).into()).collect();
    let found: sqlx::Result<Vec<(Uuid,)>> = tx.fetch(Statement::built(text), &values).await;
    Ok(found
        .map_err(before_commit)?
        .into_iter()
        .map(|(id,)| id)
        .collect())
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
