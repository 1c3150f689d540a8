//! What the core requires of a store.
//!
//! # Cancel safety
//! Dropping the future of any method leaves no transaction open and no half of an operation
//! committed. The caller does not know then whether the operation happened, so writes run in their
//! own task (see [`crate::deduct::WritePool`]).

use std::fmt;

use async_trait::async_trait;

use super::{
    AttemptOutcome, BatchAnswer, ChangeOutcome, Expiry, LateAttempt, ReversalOutcome, StoreError,
};
use crate::stock::{
    Adjustment, Deduction, Fence, Idempotency, LevelChange, Movement, OperationId, Reversal, Sku,
    StockLevel, Warehouse,
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

    /// The movement that the ledger of this SKU holds under this operation id, or else under the
    /// key that the operation carried.
    async fn recorded(
        &self,
        sku: &Sku,
        operation: OperationId,
        idempotency: Option<&Idempotency>,
    ) -> Result<Option<Movement>, StoreError>;
}

/// Deducts stock. A method that answers anything but [`AttemptOutcome::Deducted`] changed nothing.
#[async_trait]
pub trait DeductionStore: LedgerReader {
    /// Takes the units.
    async fn deduct(
        &self,
        deduction: &Deduction,
        method: SqlMethod,
    ) -> Result<AttemptOutcome, StoreError>;

    /// The maximum number of deductions in a call of [`DeductionStore::deduct_all`].
    fn max_batch(&self) -> usize;

    /// Takes the units of each deduction in SQL, as if they came one after the other, and answers each
    /// by itself. All are of one level, and carry the name of one strategy. One deduction is made like
    /// [`SqlMethod::Guarded`]. More share a commit. `read_first`: some of them will probably be refused.
    async fn deduct_all(&self, deductions: &[Deduction], read_first: bool) -> Vec<BatchAnswer>;

    /// Takes the units of batches of different levels in one transaction, which waits for no row. Each batch
    /// is as for [`DeductionStore::deduct_all`], and all carry the name of one strategy. `None` for a batch
    /// that was left out: its row was locked, its units were missing, or the ledger has one of its keys.
    async fn deduct_merged(&self, batches: &[Vec<Deduction>]) -> Vec<Option<Vec<BatchAnswer>>>;

    /// Writes the level that follows from `read`, if `condition` holds.
    async fn write_back(
        &self,
        deduction: &Deduction,
        read: ReadLevel,
        condition: Condition<'_>,
    ) -> Result<AttemptOutcome, StoreError>;

    /// What became of earlier attempts whose outcome is unknown and of which the last expires at
    /// `expiry`. Decides in a transaction that begins after `expiry` and locks the level: an attempt
    /// that was made in time holds that lock until its commit.
    async fn late_attempt(
        &self,
        deduction: &Deduction,
        expiry: Expiry,
    ) -> Result<LateAttempt, StoreError>;
}

/// Levels that were read earlier, for readers that accept them.
pub trait CachedLevels: Send + Sync + fmt::Debug {
    /// Ends the cached value of a SKU that may have been changed.
    fn forget(&self, sku: &Sku);
}

/// Sets and adjusts levels, and reverses sales.
#[async_trait]
pub trait LevelStore: LedgerReader {
    /// Sets a level, and records the difference as a movement.
    async fn set_level(&self, change: &LevelChange) -> Result<ChangeOutcome, StoreError>;

    /// Adds units to a level or takes them from it.
    async fn adjust(&self, adjustment: &Adjustment) -> Result<ChangeOutcome, StoreError>;

    /// The movement that the SQL ledger holds under this operation id.
    async fn operation(&self, operation: OperationId) -> Result<Option<Movement>, StoreError>;

    /// Takes units of `sale` back. Never more than were sold.
    async fn reverse(
        &self,
        reversal: &Reversal,
        sale: &Movement,
    ) -> Result<ReversalOutcome, StoreError>;
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

/// How a deduction is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SqlMethod {
    /// One guarded `UPDATE`, which changes no row if there are too few units.
    Guarded,
    /// Locks the row, reads it, decides, writes.
    RowLock,
}
