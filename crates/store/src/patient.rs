//! An end to every operation, also where the server has fallen silent.
//!
//! A server that is there ends by itself whatever takes too long. A connection over which nothing
//! passes any more ends nothing: whoever waits on it would wait for ever, with a connection of the
//! pool in hand. Dropping the operation gives the connection back, and the pool closes it when it
//! does not answer (see [`Pulse::answers`]). Deliberately not here: `SQLite`, which is no
//! server.

use std::sync::Arc;
use stocklock_core::ports::Server;

use async_trait::async_trait;
use uuid::Uuid;

use super::journal::{EntryId, JournalEntry};
use super::mirror::{LedgerUpTo, Mirror, Mirrored, OPERATIONS_AT_ONCE};
use super::pool::Pulse;
use super::{AttemptOutcome, ChangeOutcome, StockStore, StoreError};
use stocklock_core::stock::{
    Adjustment, Audit, Deduction, Fence, Idempotency, LevelChange, LevelCursor, Movement,
    MovementFilter, OperationId, Sku, StockLevel, Warehouse,
};

/// A read is one statement, and asks for no lock.
const READ: u32 = 1;

/// A write may wait for two locks, each a statement's time: the row's, and then that of another
/// transaction which is recording the same key (or, setting a level: the SKU's, and then the
/// rows'). Its other statements find everything locked already, and take the milliseconds that
/// these two leave. With the wait for a connection that is, by default, 2 s + 2 × 3 s: longer than
/// a caller waits, so it is the request's deadline that answers, and this that frees the
/// connection. An adjustment that waits in vain even for the second connection, on which it looks
/// what there is, is cut short wrongly: it is then in doubt, and so tried again.
const WRITE: u32 = 2;

/// The statements for which an audit is waited for at most: some seconds each, were they all slow.
const MOST_LOOKUPS: u32 = 20;

/// A store on a server, waited for only so long.
#[derive(Debug)]
pub(super) struct Patient<S> {
    store: S,
    pulse: Arc<Pulse>,
}

impl<S: StockStore> Patient<S> {
    pub(super) fn new(store: S, pulse: Arc<Pulse>) -> Self {
        Self { store, pulse }
    }

    async fn read<T>(
        &self,
        reading: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let read = self.pulse.listen(READ, reading).await;
        read.unwrap_or_else(|silence| {
            Err(StoreError::Unavailable(Server::Database, silence.into()))
        })
    }

    /// COMMIT may have been sent when the silence began.
    async fn write<T>(
        &self,
        writing: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let written = self.pulse.listen(WRITE, writing).await;
        written.unwrap_or_else(|silence| Err(StoreError::OutcomeUnknown(silence.into())))
    }
}

#[async_trait]
impl<S: StockStore> StockStore for Patient<S> {
    fn backend(&self) -> &'static str {
        self.store.backend()
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.read(self.store.ping()).await
    }

    async fn unsafe_settings(&self) -> Result<Vec<String>, StoreError> {
        self.read(self.store.unsafe_settings()).await
    }

    async fn level(
        &self,
        sku: &Sku,
        warehouse: &Warehouse,
    ) -> Result<Option<StockLevel>, StoreError> {
        self.read(self.store.level(sku, warehouse)).await
    }

    async fn deduct_if_available(
        &self,
        deduction: &Deduction,
    ) -> Result<AttemptOutcome, StoreError> {
        self.write(self.store.deduct_if_available(deduction)).await
    }

    async fn deduct_under_row_lock(
        &self,
        deduction: &Deduction,
    ) -> Result<AttemptOutcome, StoreError> {
        self.write(self.store.deduct_under_row_lock(deduction))
            .await
    }

    async fn deduct_if_version(
        &self,
        deduction: &Deduction,
        read: &StockLevel,
    ) -> Result<AttemptOutcome, StoreError> {
        self.write(self.store.deduct_if_version(deduction, read))
            .await
    }

    async fn deduct_if_fenced(
        &self,
        deduction: &Deduction,
        read: &StockLevel,
        fence: &Fence,
    ) -> Result<AttemptOutcome, StoreError> {
        self.write(self.store.deduct_if_fenced(deduction, read, fence))
            .await
    }

    async fn overwrite(
        &self,
        deduction: &Deduction,
        read: &StockLevel,
    ) -> Result<AttemptOutcome, StoreError> {
        self.write(self.store.overwrite(deduction, read)).await
    }

    async fn recorded(
        &self,
        sku: &Sku,
        operation: OperationId,
        idempotency: Option<&Idempotency>,
    ) -> Result<Option<Movement>, StoreError> {
        self.read(self.store.recorded(sku, operation, idempotency))
            .await
    }

    async fn set_level(&self, change: &LevelChange) -> Result<ChangeOutcome, StoreError> {
        self.write(self.store.set_level(change)).await
    }

    async fn adjust(&self, adjustment: &Adjustment) -> Result<ChangeOutcome, StoreError> {
        self.write(self.store.adjust(adjustment)).await
    }

    async fn levels_of(&self, sku: &Sku) -> Result<Vec<StockLevel>, StoreError> {
        self.read(self.store.levels_of(sku)).await
    }

    async fn levels(
        &self,
        after: Option<&LevelCursor>,
        limit: u32,
    ) -> Result<Vec<StockLevel>, StoreError> {
        self.read(self.store.levels(after, limit)).await
    }

    async fn movements(&self, filter: &MovementFilter) -> Result<Vec<Movement>, StoreError> {
        self.read(self.store.movements(filter)).await
    }

    async fn audit(&self, sku: &Sku) -> Result<Vec<Audit>, StoreError> {
        self.read(self.store.audit(sku)).await
    }

    async fn close(&self) {
        self.store.close().await;
    }
}

#[async_trait]
impl<S: Mirror> Mirror for Patient<S> {
    async fn ledger_id(&self) -> Result<String, StoreError> {
        self.read(self.store.ledger_id()).await
    }

    async fn mirrored(
        &self,
        sku: &Sku,
        warehouse: &Warehouse,
    ) -> Result<Option<Mirrored>, StoreError> {
        self.read(self.store.mirrored(sku, warehouse)).await
    }

    async fn apply_entries(&self, entries: &[&JournalEntry]) -> Result<(), StoreError> {
        self.write(self.store.apply_entries(entries)).await
    }

    async fn ledger_up_to(
        &self,
        sku: &Sku,
        last: EntryId,
        operations: &[Uuid],
    ) -> Result<LedgerUpTo, StoreError> {
        // Looked up by so many statements, which the wait for one does not bound.
        let lookups = operations.len().div_ceil(OPERATIONS_AT_ONCE);
        let statements = READ.saturating_add(u32::try_from(lookups).unwrap_or(u32::MAX));
        let reading = self.store.ledger_up_to(sku, last, operations);
        let read = self
            .pulse
            .listen(statements.min(MOST_LOOKUPS), reading)
            .await;
        read.unwrap_or_else(|silence| {
            Err(StoreError::Unavailable(Server::Database, silence.into()))
        })
    }

    async fn last_recorded(&self, sku: &Sku) -> Result<EntryId, StoreError> {
        self.read(self.store.last_recorded(sku)).await
    }
}
