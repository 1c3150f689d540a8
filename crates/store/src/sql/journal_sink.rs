//! SQL as the ledger of stock whose home is Redis.
//!
//! SQL keeps the movements, and a mirror of each level as the last applied journal entry left it.

use std::collections::HashSet;

use async_trait::async_trait;
use uuid::Uuid;

use super::apply::{Known, apply, merge, recorded_among};
use super::dialect::{Dialect, ROWS_PER_LIST, Statement, values};
use super::errors::before_commit;
use super::pool::Transaction;
use super::redis_binding::{BoundRedis, keep_bound};
use super::rows::{MIRROR_COLUMNS, MirrorRow};
use super::{SqlStore, audit};
use crate::journal::{EntryId, JournalEntry};
use crate::{Result, StoreError};
use stocklock_core::stock::{Audit, Sku, StockLevel, Warehouse};

/// How many statements the bound of [`JournalSink::ledger_up_to`] allows for at most.
const MAX_LOOKUPS: u32 = 20;

/// A mirror is from the latest entry that was applied to its level.
const LAST_ENTRY: &str = "SELECT journal_millis, journal_number FROM stock WHERE sku = $1
    ORDER BY journal_millis DESC, journal_number DESC LIMIT 1";

const MIRROR: &str = "UPDATE stock
    SET on_hand = $1, held = $2, backorder_limit = $3, version = $4,
        journal_millis = $5, journal_number = $6
    WHERE sku = $7 AND warehouse = $8 AND home = 'redis'
        AND (journal_millis < $9 OR journal_millis = $10 AND journal_number < $11)";

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
    /// mirrors. All in one transaction, and only if the stock is still in the Redis that the entries
    /// were read `from`. Returns how many of the entries had been applied before.
    async fn apply_entries(
        &self,
        from: &BoundRedis,
        entries: &[&JournalEntry],
        known: Known,
    ) -> Result<usize>;

    /// Records the movements that the ledger does not have, and adds their units to the mirrors, which may be from
    /// entries of another Redis. All in one transaction, and only if the row of the binding is still `row`.
    async fn merge_entries(&self, row: &BoundRedis, entries: &[&JournalEntry]) -> Result<()>;

    /// Writes a level as it was at `entry`, unless the mirror is from a later entry. Only if the stock is
    /// still in the Redis that the level was read `from`.
    async fn mirror_level(
        &self,
        from: &BoundRedis,
        level: &StockLevel,
        entry: EntryId,
    ) -> Result<()>;

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

impl<D: Dialect> SqlStore<D> {
    /// Begins a transaction until whose end the stock stays in this Redis.
    async fn begin_bound(&self, from: &BoundRedis) -> Result<Transaction<D>> {
        let mut tx = self.writers.begin(D::WORDS.begin).await?;
        keep_bound(&mut tx, from).await?;
        Ok(tx)
    }
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

    async fn apply_entries(
        &self,
        from: &BoundRedis,
        entries: &[&JournalEntry],
        known: Known,
    ) -> Result<usize> {
        self.write(async {
            let mut tx = self.begin_bound(from).await?;
            let repeated = apply(&mut tx, entries, known).await?;
            tx.commit().await?;
            Ok(repeated)
        })
        .await
    }

    async fn merge_entries(&self, row: &BoundRedis, entries: &[&JournalEntry]) -> Result<()> {
        self.write(async {
            let mut tx = self.begin_bound(row).await?;
            merge(&mut tx, entries).await?;
            tx.commit().await
        })
        .await
    }

    async fn mirror_level(
        &self,
        from: &BoundRedis,
        level: &StockLevel,
        entry: EntryId,
    ) -> Result<()> {
        let (sku, warehouse) = (level.sku.as_str(), level.warehouse.as_str());
        let columns = values![
            level.on_hand,
            level.held,
            level.backorder_limit,
            level.version,
            entry.millis,
            entry.number,
            sku,
            warehouse,
            entry.millis,
            entry.millis,
            entry.number,
        ];
        self.write(async {
            let mut tx = self.begin_bound(from).await?;
            let written = tx.execute(MIRROR, &columns).await;
            written.map_err(before_commit)?;
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
        let lookups = operations.len().div_ceil(ROWS_PER_LIST);
        let statements = u32::try_from(lookups).map_or(MAX_LOOKUPS, |n| n.min(MAX_LOOKUPS));
        let statements = statements + audit::STATEMENTS;
        let reading = async {
            let pool = self.ledger_readers.for_sku(sku);
            let mut tx = pool.begin(D::WORDS.begin_snapshot).await?;
            let Some(sums) = audit::audit(&mut tx, sku, Some(last)).await? else {
                tx.roll_back().await;
                return Ok(None);
            };
            let recorded = recorded_among(&mut tx, operations.iter().copied()).await?;
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
