//! What the core requires of a store.
//!
//! # Cancel safety
//! Dropping the future of any method leaves no transaction open and no half of an operation
//! committed. The caller does not know then whether the operation happened, so writes run in their
//! own task (see [`crate::deduct::WritePool`]).

use std::fmt;

use async_trait::async_trait;

use super::{AttemptOutcome, BatchAnswer, Expiry, LateAttempt, SharedAnswer, StoreError};
use crate::stock::{
    Fence, HoldFilter, Idempotency, Movement, OpenHold, Operation, OperationId, Sku, StockLevel,
    Warehouse,
};

/// Reads single levels and single operations.
#[async_trait]
pub trait LedgerReader: Send + Sync + fmt::Debug {
    /// Reads one level outside any transaction.
    async fn level(
        &self,
        sku: &Sku,
        warehouse: &Warehouse,
    ) -> Result<Option<StockLevel>, StoreError>;

    /// The first movement that the ledger of this SKU holds under this operation id, or else under the
    /// key that the operation carried.
    async fn recorded(
        &self,
        sku: &Sku,
        operation: OperationId,
        idempotency: Option<&Idempotency>,
    ) -> Result<Option<Movement>, StoreError>;
}

/// Changes stock: reads what the operations need, plans, and writes. An answer but
/// [`AttemptOutcome::Deducted`], [`AttemptOutcome::Changed`] and [`AttemptOutcome::Lines`] means that nothing
/// was changed.
#[async_trait]
pub trait OperationStore: LedgerReader {
    /// Makes one operation: locks its rows, reads, plans, and writes.
    async fn write(&self, operation: &Operation) -> Result<AttemptOutcome, StoreError>;

    /// The movements that the ledger has of this operation, in the order of its lines.
    async fn operation(&self, operation: OperationId) -> Result<Vec<Movement>, StoreError>;

    /// The maximum number of lines in a call of [`OperationStore::write_batch`] or
    /// [`OperationStore::write_shared`].
    fn max_batch(&self) -> usize;

    /// How many calls of [`OperationStore::write_shared`] at a time keep the database busy.
    fn max_in_flight(&self) -> usize;

    /// Makes each operation, as if they came one after the other, and answers each by itself. All are of one
    /// level, and all deductions carry the name of one strategy. One deduction is one guarded write. More
    /// operations share a commit; if not all are deductions, the level is locked. `read_first`: some of them
    /// will probably be refused.
    async fn write_batch(&self, operations: &[Operation], read_first: bool) -> Vec<BatchAnswer>;

    /// Makes operations of several levels in one transaction, which waits for no row. `briefly`: at most
    /// 100 ms for each. All deductions carry the name of one strategy, and no level is set. What it leaves out
    /// was not made.
    async fn write_shared(&self, operations: &[Operation], briefly: bool) -> Vec<SharedAnswer>;

    /// Returns when the row of the level was free.
    async fn wait_for_level(&self, sku: &Sku, warehouse: &Warehouse) -> Result<(), StoreError>;

    /// What became of earlier attempts whose outcome is unknown and of which the last expires at
    /// `expiry`. Decides in a transaction that begins after `expiry` and commits a write of the levels
    /// that changes nothing: an attempt that was made in time holds their locks until its commit. At
    /// another node of a Galera cluster, where locks are not seen, only one of the two can commit.
    async fn late_attempt(
        &self,
        operation: &Operation,
        expiry: Expiry,
    ) -> Result<LateAttempt, StoreError>;
}

/// Reads holds and what has become of them, and extends them.
#[async_trait]
pub trait HoldStore: OperationStore {
    /// The movements that end lines of a hold, or give units of a sale back, in the order in which they were
    /// recorded for each line.
    async fn children(&self, parent: OperationId) -> Result<Vec<Movement>, StoreError>;

    /// The open lines of these holds, each named once. Those of a hold are together, in the order of their numbers.
    async fn open_lines(&self, holds: &[OperationId]) -> Result<Vec<OpenHold>, StoreError>;

    /// Open lines of holds, in the order of their ends.
    async fn open_holds(&self, filter: &HoldFilter) -> Result<Vec<OpenHold>, StoreError>;

    /// Whether units of the level were ever held.
    async fn was_held(&self, sku: &Sku, warehouse: &Warehouse) -> Result<bool, StoreError>;

    /// Moves the end of each open line of a hold that is not due to `lasts` milliseconds from now, or for
    /// ever, unless it ends later already. Returns the open lines, due or not. Doing so twice is harmless.
    async fn extend(
        &self,
        hold: OperationId,
        lasts: Option<i64>,
    ) -> Result<Vec<OpenHold>, StoreError>;
}

/// Deducts stock without a plan.
#[async_trait]
pub trait DeductionStore: HoldStore {
    /// Makes a deduction of one level, if there are enough units: one guarded write.
    async fn deduct(&self, deduction: &Operation) -> Result<AttemptOutcome, StoreError>;

    /// Writes the level that follows from `read`, if `condition` holds.
    async fn write_back(
        &self,
        deduction: &Operation,
        read: ReadLevel,
        condition: Condition<'_>,
    ) -> Result<AttemptOutcome, StoreError>;
}

/// Levels that were read earlier, for readers that accept them.
pub trait CachedLevels: Send + Sync + fmt::Debug {
    /// Ends the cached value of a SKU that may have been changed.
    fn forget(&self, sku: &Sku);
}

/// What a strategy knows of a level when it decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadLevel {
    /// The units that were available.
    pub available: i64,
    /// The version of the row; `None` if the units were read from the counter in Redis.
    pub version: Option<i64>,
}

impl From<&StockLevel> for ReadLevel {
    fn from(level: &StockLevel) -> Self {
        Self {
            available: level.available(),
            version: Some(level.version),
        }
    }
}

/// What a write that follows from an earlier read depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition<'a> {
    /// Nothing: sets the level to what was computed. **Not safe**, on purpose. A relative write could
    /// never oversell, because the database checks each level.
    None,
    /// The row still has the version that was read.
    Version,
    /// The same, and no later holder of the lock has written. The row keeps this fence.
    ///
    /// The version makes the write safe: a stale holder may write *before* the next holder does.
    /// The fence tells a lost lock from a lost race.
    Fence(&'a Fence),
}
