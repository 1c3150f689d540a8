//! One transaction of the model: its locks and its writes.
//!
//! A lock protects a SKU, a row, or a value in a unique index of the ledger: an insert of a value
//! that an open transaction has inserted waits until that transaction ends.

use std::collections::BTreeMap;

use super::mutex::ModelGuard;
use super::store::{Entry, MemoryStore, Place, Row};
use crate::plan::HoldLine;
use crate::ports::StoreError;
use crate::stock::{OpenHold, Sku, StockLevel};

/// A transaction; dropping it rolls it back.
#[derive(Debug)]
pub(super) struct Transaction {
    store: MemoryStore,
    /// The locks that it holds, by name.
    locks: BTreeMap<String, ModelGuard>,
    written: Vec<Row>,
    inserted: Vec<Entry>,
    opened: Vec<OpenHold>,
    ended: Vec<HoldLine>,
}

impl Transaction {
    /// Begins a transaction. BEGIN is not a step, because no other task can see it.
    pub(super) fn begin(store: &MemoryStore) -> Self {
        Self {
            store: store.clone(),
            locks: BTreeMap::new(),
            written: Vec::new(),
            inserted: Vec::new(),
            opened: Vec::new(),
            ended: Vec::new(),
        }
    }

    /// Waits for the lock, and keeps it until the transaction ends.
    pub(super) async fn lock(&mut self, name: String) {
        if !self.locks.contains_key(&name) {
            let held = self.store.lock(name.clone()).lock().await;
            self.locks.insert(name, held);
        }
    }

    /// Locks a row if no other transaction has. Returns whether this one has it.
    pub(super) fn try_lock_row(&mut self, (sku, warehouse): Place<'_>) -> bool {
        let name = format!("row {sku} {warehouse}");
        if !self.locks.contains_key(&name) {
            let Some(held) = self.store.lock(name.clone()).try_lock() else {
                return false;
            };
            self.locks.insert(name, held);
        }
        true
    }

    async fn lock_row(&mut self, (sku, warehouse): Place<'_>) {
        self.lock(format!("row {sku} {warehouse}")).await;
    }

    pub(super) fn has_locked(&self, (sku, warehouse): Place<'_>) -> bool {
        self.locks.contains_key(&format!("row {sku} {warehouse}"))
    }

    /// The row as this transaction sees it: its last write, or else the committed row.
    pub(super) fn row(&self, place: Place<'_>) -> Option<Row> {
        let own = self.written.iter().rev().find(|row| row.is_at(place));
        own.cloned()
            .or_else(|| self.store.tables.lock().row(place).cloned())
    }

    /// `SELECT … FOR UPDATE` of one row.
    pub(super) async fn select_for_update(
        &mut self,
        place: Place<'_>,
    ) -> Result<Option<Row>, StoreError> {
        self.store.step("SELECT FOR UPDATE").await?;
        if self.row(place).is_some() {
            self.lock_row(place).await;
        }
        Ok(self.row(place))
    }

    /// `UPDATE … SET … WHERE <key> AND <condition>`; returns the new row, if one was updated.
    ///
    /// READ COMMITTED: a row whose committed version fails the condition is skipped without a wait. Any
    /// other row is locked first. Then the condition is checked again, and the clock is compared with
    /// `expires_at`. The update is a step only if this transaction has not locked the row before: until
    /// the commit, no other task can see the new values.
    pub(super) async fn update(
        &mut self,
        place: Place<'_>,
        condition: impl Fn(&Row) -> bool,
        set: impl FnOnce(&mut Row),
        expires_at: i64,
    ) -> Result<Option<Row>, StoreError> {
        if !self.has_locked(place) {
            self.store.step("UPDATE").await?;
        }
        if self.row(place).filter(&condition).is_none() {
            return Ok(None);
        }
        self.lock_row(place).await;
        if self.store.checks_expiry && self.store.tables.lock().clock >= expires_at {
            self.store.decisions.note("an attempt has expired");
            return Ok(None);
        }
        let Some(mut row) = self.row(place).filter(&condition) else {
            return Ok(None);
        };
        set(&mut row);
        row.level.version += 1;
        self.written.push(row.clone());
        Ok(Some(row))
    }

    /// `SELECT … FOR UPDATE` of all rows of a SKU, after its lock that every `set_level` takes.
    pub(super) async fn select_sku_for_update(
        &mut self,
        sku: &Sku,
    ) -> Result<Vec<StockLevel>, StoreError> {
        self.store.step("lock the SKU").await?;
        self.lock(format!("sku {sku}")).await;
        let select = "SELECT the SKU's levels FOR UPDATE";
        self.store.step(select).await?;
        for level in self.store.levels_now(sku) {
            self.lock_row((sku, &level.warehouse)).await;
        }
        Ok(self.store.levels_now(sku))
    }

    /// `INSERT` of an empty row of stock.
    pub(super) async fn create(&mut self, (sku, warehouse): Place<'_>) -> Result<(), StoreError> {
        self.store.step("INSERT of the level").await?;
        self.lock_row((sku, warehouse)).await;
        let level = StockLevel::empty(sku.clone(), warehouse.clone());
        self.written.push(Row { level, fence: None });
        Ok(())
    }

    /// `INSERT` into the ledger; returns false for a duplicate.
    pub(super) async fn insert(&mut self, entry: Entry) -> Result<bool, StoreError> {
        self.store.step("INSERT").await?;
        self.lock(format!("operation {}", entry.movement.operation))
            .await;
        if let Some((caller, key)) = &entry.key {
            self.lock(format!("key {caller} {key}")).await;
        }
        let is_own = self.inserted.iter().any(|old| old.excludes(&entry));
        if is_own || self.store.tables.lock().is_duplicate(&entry) {
            return Ok(false);
        }
        self.inserted.push(entry);
        Ok(true)
    }

    /// `DELETE` of lines of holds that are due at these times. Returns whether all were there. No step: their
    /// levels are locked.
    pub(super) fn end_holds(&mut self, lines: Vec<(HoldLine, i64)>) -> bool {
        let are_there = {
            let tables = self.store.tables.lock();
            let mut lines = lines.iter();
            lines.all(|(line, due_at)| {
                let open = tables.holds.get(line);
                open.is_some_and(|open| open.expires_at <= *due_at)
            })
        };
        self.ended.extend(lines.into_iter().map(|(line, _)| line));
        are_there
    }

    /// `INSERT` of lines of holds.
    pub(super) fn open_holds(&mut self, lines: Vec<OpenHold>) {
        self.opened.extend(lines);
    }

    /// `COMMIT`. While the model has faults left, the connection may be lost. The server then
    /// commits or rolls back at any later step, and holds the locks until then.
    pub(super) async fn commit(self) -> Result<(), StoreError> {
        self.store.pause("COMMIT").await;
        if !self.store.connection_is_lost() {
            self.apply();
            return Ok(());
        }
        let decisions = self.store.decisions.clone();
        decisions.note("the connection is lost in COMMIT");
        self.store.decisions.clone().spawn(Box::pin(async move {
            if decisions.choose(2) == 0 {
                decisions.note("the server commits the transaction with the unknown outcome");
                self.apply();
            } else {
                decisions.note("the server rolls back the transaction with the unknown outcome");
            }
        }));
        Err(StoreError::outcome_unknown("lost in COMMIT"))
    }

    /// Makes the writes visible. The drop at the end releases the locks in the same step.
    fn apply(mut self) {
        let written = std::mem::take(&mut self.written);
        let inserted = std::mem::take(&mut self.inserted);
        let opened = std::mem::take(&mut self.opened);
        let ended = std::mem::take(&mut self.ended);
        let mut tables = self.store.tables.lock();
        for row in written {
            tables.put(row);
        }
        tables.ledger.extend(inserted);
        for line in ended {
            tables.holds.remove(&line);
        }
        let opened = opened.into_iter();
        tables
            .holds
            .extend(opened.map(|open| ((open.hold, open.line), open)));
    }
}
