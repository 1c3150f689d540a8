//! What the SQL stores do for the stock that lives in Redis: they keep its ledger, and a mirror of
//! each level as the ledger's last entry left it.

use std::collections::HashSet;

use async_trait::async_trait;
use uuid::Uuid;

use stocklock_core::stock::{Audit, Sku, StockLevel, Warehouse};

use super::journal::{EntryId, JournalEntry};
use super::{StockStore, StoreError};

/// How many operations are looked up by one statement.
pub(super) const OPERATIONS_AT_ONCE: usize = 500;

/// A level as SQL has it.
#[derive(Debug, Clone)]
pub(super) struct Mirrored {
    pub(super) level: StockLevel,
    /// The journal's entry that it is from; zero for one that was never changed.
    pub(super) entry: EntryId,
}

/// What the ledger has of one SKU up to one of the journal's entries.
#[derive(Debug, Clone)]
pub(super) struct LedgerUpTo {
    /// For each warehouse, with what was recorded up to that entry, or without the journal. The
    /// level in it is the mirror's.
    pub(super) sums: Vec<Audit>,
    /// Those that are recorded of the operations that were asked for.
    pub(super) recorded: HashSet<Uuid>,
}

/// A SQL store as the ledger behind a Redis.
///
/// # Cancel safety
/// As [`StockStore`]'s.
#[async_trait]
pub(super) trait Mirror: StockStore {
    /// The identity of this ledger, minted with its schema.
    async fn ledger_id(&self) -> Result<String, StoreError>;

    /// Reads one level with the entry that it is from.
    async fn mirrored(
        &self,
        sku: &Sku,
        warehouse: &Warehouse,
    ) -> Result<Option<Mirrored>, StoreError>;

    /// Records the entries, each operation once however often it comes, and brings the mirrors up
    /// to the last of them; all in one transaction.
    async fn apply_entries(&self, entries: &[&JournalEntry]) -> Result<(), StoreError>;

    /// The ledger of a SKU up to `last`, and which of the operations are in it: from one snapshot,
    /// so that they fit together whatever is recorded meanwhile.
    async fn ledger_up_to(
        &self,
        sku: &Sku,
        last: EntryId,
        operations: &[Uuid],
    ) -> Result<LedgerUpTo, StoreError>;

    /// The latest entry among the SKU's movements.
    async fn last_recorded(&self, sku: &Sku) -> Result<EntryId, StoreError>;
}
