//! One transaction of the model: its locks and its writes.
//!
//! A lock protects a SKU, a row, or a value in a unique index of the ledger: an insert of a value
//! that an open transaction has inserted waits until that transaction ends.

use std::sync::MutexGuard;
use std::task::{Context, Poll, Waker};

use crate::ports::StoreError;
use crate::stock::{OperationId, Sku, StockLevel, Warehouse};

use super::store::{Entry, MemoryStore, Row, Tables};

/// What can be locked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LockName {
    Sku(Sku),
    Row(Sku, Warehouse),
    Operation(OperationId),
    Key(String, String),
}

/// A lock, its holder, and the transactions that wait for it, in order of arrival.
#[derive(Debug)]
pub(super) struct LockedName {
    name: LockName,
    holder: u64,
    waiters: Vec<(u64, Waker)>,
}

/// A transaction; dropping it rolls it back.
#[derive(Debug)]
pub(super) struct Transaction {
    store: MemoryStore,
    id: u64,
    written: Vec<Row>,
    inserted: Vec<Entry>,
}

impl Transaction {
    /// Begins a transaction. BEGIN is not a step, because no other task can see it.
    pub(super) fn begin(store: &MemoryStore) -> Self {
        let mut tables = store.tables();
        tables.transactions += 1;
        let id = tables.transactions;
        drop(tables);
        Self {
            store: store.clone(),
            id,
            written: Vec::new(),
            inserted: Vec::new(),
        }
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.store.tables()
    }

    /// Waits for the lock and keeps it until the transaction ends.
    pub(super) async fn lock(&self, name: &LockName) {
        std::future::poll_fn(|context| self.tables().poll_lock(self.id, name, context)).await;
    }

    /// The row as this transaction sees it: its last write, or else the committed row.
    pub(super) fn row(&self, sku: &Sku, warehouse: &Warehouse) -> Option<Row> {
        let mut written = self.written.iter().rev();
        written
            .find(|row| row.sku == *sku && row.warehouse == *warehouse)
            .cloned()
            .or_else(|| self.tables().row(sku, warehouse).cloned())
    }

    async fn lock_row(&self, sku: &Sku, warehouse: &Warehouse) {
        let name = LockName::Row(sku.clone(), warehouse.clone());
        self.lock(&name).await;
    }

    /// `SELECT … FOR UPDATE` of one row.
    pub(super) async fn select_for_update(&self, sku: &Sku, warehouse: &Warehouse) -> Option<Row> {
        self.store.step("SELECT FOR UPDATE").await;
        self.row(sku, warehouse)?;
        self.lock_row(sku, warehouse).await;
        self.row(sku, warehouse)
    }

    /// `UPDATE … SET … WHERE <key> AND <condition>`; returns the new row, if one was updated.
    ///
    /// READ COMMITTED: a row whose committed version fails the condition is skipped without a wait.
    /// Any other row is locked first, and the condition is then checked again.
    pub(super) async fn update(
        &mut self,
        (sku, warehouse): (&Sku, &Warehouse),
        condition: impl Fn(&Row) -> bool,
        set: impl FnOnce(&mut Row),
    ) -> Option<Row> {
        self.store.step("UPDATE").await;
        self.row(sku, warehouse).filter(&condition)?;
        self.lock_row(sku, warehouse).await;
        let mut row = self.row(sku, warehouse).filter(&condition)?;
        set(&mut row);
        row.version += 1;
        self.written.push(row.clone());
        Some(row)
    }

    /// `SELECT … FOR UPDATE` of all rows of a SKU, after its lock that every `set_level` takes.
    pub(super) async fn select_sku_for_update(&self, sku: &Sku) -> Vec<StockLevel> {
        self.store.step("lock the SKU").await;
        self.lock(&LockName::Sku(sku.clone())).await;
        self.store.step("SELECT the SKU's levels FOR UPDATE").await;
        let of_sku = |level: &StockLevel| level.sku == *sku;
        for level in self.store.levels_where(of_sku) {
            self.lock_row(&level.sku, &level.warehouse).await;
        }
        self.store.levels_where(of_sku)
    }

    /// `INSERT` of a row of stock, or `UPDATE` of all its columns except the fence.
    pub(super) async fn put(&mut self, level: StockLevel) {
        self.store.step("INSERT or UPDATE of the level").await;
        self.lock_row(&level.sku, &level.warehouse).await;
        let old = self.row(&level.sku, &level.warehouse);
        let fence = old.and_then(|row| row.fence);
        self.written.push(Row { level, fence });
    }

    /// `INSERT` into the ledger; returns false for a duplicate.
    pub(super) async fn insert(&mut self, entry: Entry) -> bool {
        self.store.step("INSERT").await;
        self.lock(&LockName::Operation(entry.movement.operation))
            .await;
        if let Some((caller, key)) = &entry.key {
            self.lock(&LockName::Key(caller.clone(), key.clone())).await;
        }
        if self.tables().is_duplicate(&entry) {
            return false;
        }
        self.inserted.push(entry);
        true
    }

    /// `COMMIT`. While the model has faults left, the connection may be lost. The server then
    /// commits or rolls back at any later step, and holds the locks until then.
    pub(super) async fn commit(self) -> Result<(), StoreError> {
        let store = self.store.clone();
        store.step("COMMIT").await;
        if !store.connection_is_lost() {
            self.apply();
            return Ok(());
        }
        let decisions = store.decisions.clone();
        decisions.note("the connection is lost in COMMIT");
        store.decisions.spawn(Box::pin(async move {
            if decisions.choose(2) == 0 {
                decisions.note("the server commits the transaction with the unknown outcome");
                self.apply();
            } else {
                decisions.note("the server rolls back the transaction with the unknown outcome");
            }
        }));
        Err(StoreError::OutcomeUnknown("lost in COMMIT".into()))
    }

    /// Makes the writes visible. The drop at the end releases the locks in the same step.
    fn apply(mut self) {
        let written = std::mem::take(&mut self.written);
        let inserted = std::mem::take(&mut self.inserted);
        let mut tables = self.tables();
        for level in written {
            tables.put(level);
        }
        tables.ledger.extend(inserted);
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        let id = self.id;
        self.tables().release(id);
    }
}

impl Tables {
    fn poll_lock(&mut self, id: u64, name: &LockName, context: &Context<'_>) -> Poll<()> {
        let Some(lock) = self.locks.iter_mut().find(|lock| lock.name == *name) else {
            self.locks.push(LockedName {
                name: name.clone(),
                holder: id,
                waiters: Vec::new(),
            });
            return Poll::Ready(());
        };
        if lock.holder == id {
            return Poll::Ready(());
        }
        // A waiter that is polled again keeps its place in the queue.
        if let Some(waiter) = lock.waiters.iter_mut().find(|waiter| waiter.0 == id) {
            waiter.1.clone_from(context.waker());
        } else {
            lock.waiters.push((id, context.waker().clone()));
        }
        Poll::Pending
    }

    /// Ends transaction `id`: each of its locks goes to the transaction that has waited longest.
    fn release(&mut self, id: u64) {
        self.locks.retain_mut(|lock| {
            lock.waiters.retain(|waiter| waiter.0 != id);
            if lock.holder != id {
                return true;
            }
            if lock.waiters.is_empty() {
                return false;
            }
            let (next, waker) = lock.waiters.remove(0);
            lock.holder = next;
            waker.wake();
            true
        });
    }
}
