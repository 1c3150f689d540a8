//! One transaction of the model: its locks, its writes, and the end of both.
//!
//! The locks are those of a row, of a SKU, and of an entry in one of the ledger's unique indexes:
//! who inserts a value that an open transaction has inserted waits for that transaction's end.

use std::sync::MutexGuard;
use std::task::{Context, Poll, Waker};

use stocklock::stock::{OperationId, Sku, StockLevel, Warehouse};
use stocklock::store::StoreError;

use super::{Entry, MemoryStore, Row, Tables};

/// What can be locked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LockName {
    Sku(Sku),
    Row(Sku, Warehouse),
    Operation(OperationId),
    Key(String, String),
}

/// A lock that is held, and who waits for it, in the order of asking.
#[derive(Debug)]
pub(super) struct Lock {
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
    /// Begins. No step of its own, for it touches nothing that others could see.
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

    /// Waits until the lock is this transaction's, and keeps it until the end.
    pub(super) async fn lock(&self, name: &LockName) {
        std::future::poll_fn(|context| self.tables().poll_lock(self.id, name, context)).await;
    }

    /// The row as this transaction sees it: its own write, or else what is committed by now.
    pub(super) fn row(&self, sku: &Sku, warehouse: &Warehouse) -> Option<Row> {
        let own = self.written.iter().rev();
        own.into_iter()
            .find(|row| row.sku == *sku && row.warehouse == *warehouse)
            .cloned()
            .or_else(|| self.tables().row(sku, warehouse).cloned())
    }

    /// `SELECT … FOR UPDATE` of one row.
    pub(super) async fn select_for_update(&self, sku: &Sku, warehouse: &Warehouse) -> Option<Row> {
        self.store.step("SELECT FOR UPDATE").await;
        self.row(sku, warehouse)?;
        self.lock(&LockName::Row(sku.clone(), warehouse.clone()))
            .await;
        self.row(sku, warehouse)
    }

    /// `UPDATE … SET … WHERE <key> AND <condition>`; answers the new row, or `None` for no row.
    ///
    /// As READ COMMITTED has it: a row that does not satisfy the condition as it is committed is
    /// passed over without waiting; one that does is locked, and then judged by what it has become.
    pub(super) async fn update(
        &mut self,
        (sku, warehouse): (&Sku, &Warehouse),
        condition: impl Fn(&Row) -> bool,
        set: impl FnOnce(&mut Row),
    ) -> Option<Row> {
        self.store.step("UPDATE").await;
        self.row(sku, warehouse).filter(&condition)?;
        self.lock(&LockName::Row(sku.clone(), warehouse.clone()))
            .await;
        let mut row = self.row(sku, warehouse).filter(&condition)?;
        set(&mut row);
        row.version += 1;
        self.written.push(row.clone());
        Some(row)
    }

    /// `SELECT … FOR UPDATE` of all of a SKU's rows, under the lock that its setters share.
    pub(super) async fn select_sku_for_update(&self, sku: &Sku) -> Vec<StockLevel> {
        self.store.step("lock the SKU").await;
        self.lock(&LockName::Sku(sku.clone())).await;
        self.store.step("SELECT the SKU's levels FOR UPDATE").await;
        let of_sku = |level: &StockLevel| level.sku == *sku;
        for level in self.store.levels_where(of_sku) {
            self.lock(&LockName::Row(level.sku, level.warehouse)).await;
        }
        self.store.levels_where(of_sku)
    }

    /// `INSERT` of a row of stock, or `UPDATE` of all of one that is locked already.
    pub(super) async fn put(&mut self, level: StockLevel) {
        self.store.step("INSERT or UPDATE of the level").await;
        self.lock(&LockName::Row(level.sku.clone(), level.warehouse.clone()))
            .await;
        let fence = self
            .row(&level.sku, &level.warehouse)
            .and_then(|row| row.fence);
        self.written.push(Row { level, fence });
    }

    /// `INSERT` into the ledger; answers whether it is new there.
    pub(super) async fn insert(&mut self, entry: Entry) -> bool {
        self.store.step("INSERT").await;
        self.lock(&LockName::Operation(entry.movement.operation))
            .await;
        if let Some((caller, key)) = &entry.key {
            self.lock(&LockName::Key(caller.clone(), key.clone())).await;
        }
        if self.tables().conflicts(&entry) {
            return false;
        }
        self.inserted.push(entry);
        true
    }

    /// `COMMIT`, whose connection may be lost while the model has such a fault left. The server
    /// then goes on with it for as long as it likes, and commits it or rolls it back in the end;
    /// meanwhile it keeps its locks. Both an immediate end and a late one are among the schedules.
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
                decisions.note("the server commits what was in doubt");
                self.apply();
            } else {
                decisions.note("the server rolls back what was in doubt");
            }
        }));
        Err(StoreError::OutcomeUnknown("lost in COMMIT".into()))
    }

    /// Makes the writes visible; the drop that follows in the same step gives the locks up.
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
            self.locks.push(Lock {
                name: name.clone(),
                holder: id,
                waiters: Vec::new(),
            });
            return Poll::Ready(());
        };
        if lock.holder == id {
            return Poll::Ready(());
        }
        // Woken or not, a waiter keeps its place in the queue.
        if let Some(waiter) = lock.waiters.iter_mut().find(|waiter| waiter.0 == id) {
            waiter.1.clone_from(context.waker());
        } else {
            lock.waiters.push((id, context.waker().clone()));
        }
        Poll::Pending
    }

    /// Ends transaction `id`: each of its locks goes to whoever has waited longest.
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
