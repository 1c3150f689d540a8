//! [`StockStore`] with the same statements in the same order as the SQL back ends.

use async_trait::async_trait;
use stocklock::stock::{
    Adjustment, Audit, Deduction, Fence, Idempotency, LevelChange, LevelCursor, Movement,
    MovementFilter, MovementKind, OperationId, Precondition, Reason, Reference, Revision, Sku,
    StockLevel, Warehouse,
};
use stocklock::store::{Attempt, Change, StockStore, StoreError};

use super::transaction::Transaction;
use super::{Entry, MemoryStore, Row, WriteCondition, key, movement, refusal, sale};

impl MemoryStore {
    /// Inserts a deduction into the ledger in the transaction that wrote the level, and commits.
    async fn record(
        &self,
        mut tx: Transaction,
        deduction: &Deduction,
        after: &StockLevel,
        read: Option<&StockLevel>,
    ) -> Result<Attempt, StoreError> {
        if !tx.insert(sale(deduction, after, read)).await {
            return Ok(Attempt::Duplicate);
        }
        tx.commit().await?;
        Ok(Attempt::Deducted {
            remaining: after.available(),
        })
    }

    /// Inserts the entry of a changed level into the ledger, and commits.
    async fn record_change(
        &self,
        mut tx: Transaction,
        entry: Entry,
        level: StockLevel,
        created: bool,
    ) -> Result<Change, StoreError> {
        if !tx.insert(entry).await {
            return Ok(Change::Duplicate);
        }
        tx.commit().await?;
        Ok(Change::Done { level, created })
    }
}

#[async_trait]
impl StockStore for MemoryStore {
    fn backend(&self) -> &'static str {
        "memory"
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.step("SELECT 1").await;
        Ok(())
    }

    async fn unsafe_settings(&self) -> Result<Vec<String>, StoreError> {
        Ok(vec!["this store is lost when its process ends".to_owned()])
    }

    async fn level(
        &self,
        sku: &Sku,
        warehouse: &Warehouse,
    ) -> Result<Option<StockLevel>, StoreError> {
        self.step("SELECT").await;
        Ok(self
            .tables()
            .row(sku, warehouse)
            .map(|row| row.level.clone()))
    }

    async fn deduct_if_available(&self, deduction: &Deduction) -> Result<Attempt, StoreError> {
        let units = deduction.quantity.units();
        let row = (&deduction.sku, &deduction.warehouse);
        let mut tx = Transaction::begin(self);
        let enough = |level: &Row| level.available() >= units;
        let after = tx.update(row, enough, |level| level.on_hand -= units).await;
        if let Some(after) = after {
            return self.record(tx, deduction, &after, None).await;
        }
        // The second read does not hold the row lock: MariaDB releases the lock of a row that
        // fails the condition, and SQLite has ended the transaction.
        drop(tx);
        let level = self.level(row.0, row.1).await?;
        Ok(refusal(level.as_ref(), deduction))
    }

    async fn deduct_under_row_lock(&self, deduction: &Deduction) -> Result<Attempt, StoreError> {
        let units = deduction.quantity.units();
        let row = (&deduction.sku, &deduction.warehouse);
        let mut tx = Transaction::begin(self);
        let locked = tx.select_for_update(row.0, row.1).await;
        let Some(_) = locked.as_ref().filter(|level| level.available() >= units) else {
            return Ok(refusal(locked.as_deref(), deduction));
        };
        match tx
            .update(row, |_| true, |level| level.on_hand -= units)
            .await
        {
            Some(after) => self.record(tx, deduction, &after, None).await,
            None => Err(StoreError::Bug("a locked row was deleted".into())),
        }
    }

    async fn deduct_if_version(
        &self,
        deduction: &Deduction,
        read: &StockLevel,
    ) -> Result<Attempt, StoreError> {
        let on_hand = read.on_hand - deduction.quantity.units();
        let row = (&deduction.sku, &deduction.warehouse);
        let mut tx = Transaction::begin(self);
        let same = |row: &Row| row.version == read.version;
        match tx.update(row, same, |level| level.on_hand = on_hand).await {
            Some(after) => self.record(tx, deduction, &after, Some(read)).await,
            None => Ok(Attempt::Stale),
        }
    }

    async fn deduct_if_fenced(
        &self,
        deduction: &Deduction,
        read: &StockLevel,
        fence: &Fence,
    ) -> Result<Attempt, StoreError> {
        let on_hand = read.on_hand - deduction.quantity.units();
        let row = (&deduction.sku, &deduction.warehouse);
        let mut tx = Transaction::begin(self);
        let allowed = |row: &Row| {
            let same = self.condition == WriteCondition::FenceOnly || row.version == read.version;
            same && !row.is_after(fence)
        };
        let set = |row: &mut Row| {
            row.on_hand = on_hand;
            row.fence = Some(fence.clone());
        };
        if let Some(after) = tx.update(row, allowed, set).await {
            return self.record(tx, deduction, &after, Some(read)).await;
        }
        self.step("SELECT the fence").await;
        let overtaken = tx.row(row.0, row.1).is_some_and(|row| row.is_after(fence));
        Ok(if overtaken {
            Attempt::LockLost
        } else {
            Attempt::Stale
        })
    }

    async fn overwrite(
        &self,
        deduction: &Deduction,
        read: &StockLevel,
    ) -> Result<Attempt, StoreError> {
        let on_hand = read.on_hand - deduction.quantity.units();
        let row = (&deduction.sku, &deduction.warehouse);
        let mut tx = Transaction::begin(self);
        let written = tx
            .update(row, |_| true, |level| level.on_hand = on_hand)
            .await;
        match written {
            // The table's CHECK refuses: the backorder limit was lowered after the read.
            Some(after) if after.available() < 0 => {
                drop(tx);
                let level = self.level(row.0, row.1).await?;
                Ok(refusal(level.as_ref(), deduction))
            }
            Some(after) => self.record(tx, deduction, &after, Some(read)).await,
            None => Ok(Attempt::UnknownSku),
        }
    }

    async fn recorded(
        &self,
        _: &Sku,
        operation: OperationId,
        idempotency: Option<&Idempotency>,
    ) -> Result<Option<Movement>, StoreError> {
        self.step("SELECT from the ledger").await;
        let wanted = key(idempotency);
        let tables = self.tables();
        let under_operation = tables
            .ledger
            .iter()
            .find(|entry| entry.movement.operation == operation);
        let found = under_operation.or_else(|| {
            let mut ledger = tables.ledger.iter();
            ledger.find(|entry| wanted.is_some() && entry.key == wanted)
        });
        Ok(found.map(|entry| entry.movement.clone()))
    }

    async fn set_level(&self, change: &LevelChange) -> Result<Change, StoreError> {
        let mut tx = Transaction::begin(self);
        let existing = tx.select_sku_for_update(&change.sku).await;
        let old = existing
            .iter()
            .find(|level| level.warehouse == change.warehouse);
        let holds = match &change.precondition {
            None => true,
            Some(Precondition::Exists) => !existing.is_empty(),
            Some(Precondition::Absent) => existing.is_empty(),
            Some(Precondition::OneOf(seen)) => seen.contains(&Revision::of(&existing)),
        };
        if !holds {
            return Ok(Change::PreconditionFailed);
        }
        let home = existing.first().map(|level| level.home);
        if let Some(home) = home
            && change.home.is_some_and(|asked| asked != home)
        {
            return Ok(Change::WrongHome(home));
        }
        let kept_limit = old.map_or(0, |old| old.backorder_limit);
        let level = StockLevel {
            sku: change.sku.clone(),
            warehouse: change.warehouse.clone(),
            on_hand: change.on_hand,
            held: old.map_or(0, |old| old.held),
            backorder_limit: change.backorder_limit.unwrap_or(kept_limit),
            version: old.map_or(1, |old| old.version + 1),
            home: home.or(change.home).unwrap_or_default(),
        };
        if level.available() < 0 {
            let available = old.map_or(0, StockLevel::available);
            return Ok(Change::BelowLimit { available });
        }
        let delta = level.on_hand - old.map_or(0, |old| old.on_hand);
        tx.put(level.clone()).await;
        let reason = change.reason.as_ref().map(Reason::as_str);
        let entry = Entry {
            movement: Movement {
                reason: reason.map(str::to_owned),
                ..movement(change.operation, kind_of(delta), delta, &level)
            },
            key: None,
        };
        self.record_change(tx, entry, level, old.is_none()).await
    }

    async fn adjust(&self, adjustment: &Adjustment) -> Result<Change, StoreError> {
        let delta = adjustment.delta;
        let row = (&adjustment.sku, &adjustment.warehouse);
        let mut tx = Transaction::begin(self);
        let after = tx
            .update(row, |_| true, |level| level.on_hand += delta)
            .await;
        let Some(after) = after else {
            return Ok(Change::UnknownSku);
        };
        if after.available() < 0 {
            drop(tx);
            let level = self.level(row.0, row.1).await?;
            return Ok(match level.map(|level| level.available()) {
                None => Change::UnknownSku,
                Some(available) if available + delta >= 0 => Change::Stale,
                Some(available) => Change::BelowLimit { available },
            });
        }
        let reference = adjustment.reference.as_ref().map(Reference::as_str);
        let entry = Entry {
            movement: Movement {
                reason: Some(adjustment.reason.as_str().to_owned()),
                reference: reference.map(str::to_owned),
                request_hash: adjustment.idempotency.as_ref().map(|one| one.hash),
                ..movement(adjustment.operation, kind_of(delta), delta, &after)
            },
            key: key(adjustment.idempotency.as_ref()),
        };
        self.record_change(tx, entry, after.level, false).await
    }

    async fn levels_of(&self, sku: &Sku) -> Result<Vec<StockLevel>, StoreError> {
        self.step("SELECT the SKU's levels").await;
        Ok(self.levels_where(|level| level.sku == *sku))
    }

    async fn levels(
        &self,
        after: Option<&LevelCursor>,
        limit: u32,
    ) -> Result<Vec<StockLevel>, StoreError> {
        self.step("SELECT a page of levels").await;
        let mut page = self.levels_where(|level| {
            after
                .is_none_or(|after| (&level.sku, &level.warehouse) > (&after.sku, &after.warehouse))
        });
        page.truncate(limit as usize);
        Ok(page)
    }

    async fn movements(&self, filter: &MovementFilter) -> Result<Vec<Movement>, StoreError> {
        self.step("SELECT a page of movements").await;
        let wanted = |one: &Movement| {
            one.sku == filter.sku
                && (filter.warehouse.as_ref()).is_none_or(|it| one.warehouse == *it)
                && filter.kind.is_none_or(|kind| one.kind == kind)
                && (filter.reference.is_none() || one.reference == filter.reference)
                && filter.before.is_none_or(|before| one.operation < before)
        };
        let tables = self.tables();
        let movements = tables.ledger.iter().map(|entry| &entry.movement);
        let mut found: Vec<_> = movements.filter(|one| wanted(one)).cloned().collect();
        found.sort_by_key(|one| std::cmp::Reverse(one.operation));
        found.truncate(filter.limit as usize);
        Ok(found)
    }

    async fn audit(&self, sku: &Sku) -> Result<Vec<Audit>, StoreError> {
        self.step("SELECT the audit").await;
        Ok(self.audit_now(sku))
    }

    async fn close(&self) {}
}

fn kind_of(delta: i64) -> MovementKind {
    if delta > 0 {
        MovementKind::Received
    } else {
        MovementKind::Adjusted
    }
}
