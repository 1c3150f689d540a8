//! The core's ports on the model: the same statements in the same order as the SQL stores.

use crate::ports::{
    AttemptOutcome, ChangeOutcome, Condition, DeductionStore, LedgerReader, LevelStore,
    RedisMethod, StoreError,
};
use crate::stock::{
    Adjustment, Deduction, Durability, Idempotency, LevelChange, Movement, MovementKind,
    OperationId, Precondition, Reason, Reference, Revision, Sku, StockLevel, Warehouse,
};
use async_trait::async_trait;

use super::store::{Entry, MemoryStore, Row, WriteCondition, key, movement, sale};
use super::transaction::Transaction;

impl MemoryStore {
    /// Inserts a deduction into the ledger in the transaction that wrote the level, and commits.
    async fn record(
        &self,
        mut tx: Transaction,
        deduction: &Deduction,
        after: &StockLevel,
        read: Option<&StockLevel>,
    ) -> Result<AttemptOutcome, StoreError> {
        if !tx.insert(sale(deduction, after, read)).await {
            return Ok(AttemptOutcome::Duplicate);
        }
        tx.commit().await?;
        Ok(AttemptOutcome::Deducted {
            remaining: after.available(),
            durability: Durability::Committed,
        })
    }

    /// Inserts the entry of a changed level into the ledger, and commits.
    async fn record_change(
        &self,
        mut tx: Transaction,
        entry: Entry,
        level: StockLevel,
        created: bool,
    ) -> Result<ChangeOutcome, StoreError> {
        if !tx.insert(entry).await {
            return Ok(ChangeOutcome::Duplicate);
        }
        tx.commit().await?;
        Ok(ChangeOutcome::Done { level, created })
    }
}

#[async_trait]
impl LedgerReader for MemoryStore {
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
}

#[async_trait]
impl DeductionStore for MemoryStore {
    async fn deduct_if_available(
        &self,
        deduction: &Deduction,
    ) -> Result<AttemptOutcome, StoreError> {
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
        Ok(AttemptOutcome::refused(level, units))
    }

    async fn deduct_under_row_lock(
        &self,
        deduction: &Deduction,
    ) -> Result<AttemptOutcome, StoreError> {
        let units = deduction.quantity.units();
        let row = (&deduction.sku, &deduction.warehouse);
        let mut tx = Transaction::begin(self);
        let locked = tx.select_for_update(row.0, row.1).await;
        let Some(_) = locked.as_ref().filter(|level| level.available() >= units) else {
            return Ok(AttemptOutcome::refused(locked.map(|row| row.level), units));
        };
        match tx
            .update(row, |_| true, |level| level.on_hand -= units)
            .await
        {
            Some(after) => self.record(tx, deduction, &after, None).await,
            None => Err(StoreError::Bug("a locked row was deleted".into())),
        }
    }

    async fn write_back(
        &self,
        deduction: &Deduction,
        read: &StockLevel,
        condition: Condition<'_>,
    ) -> Result<AttemptOutcome, StoreError> {
        let on_hand = read.on_hand - deduction.quantity.units();
        let row = (&deduction.sku, &deduction.warehouse);
        let mut tx = Transaction::begin(self);
        let fence_only = self.condition == WriteCondition::FenceOnly;
        let allowed = |row: &Row| match condition {
            Condition::None => true,
            Condition::Version => row.version == read.version,
            Condition::Fence(fence) => {
                (fence_only || row.version == read.version) && !row.is_after(fence)
            }
        };
        let set = |row: &mut Row| {
            row.on_hand = on_hand;
            if let Condition::Fence(fence) = condition {
                row.fence = Some(fence.clone());
            }
        };
        match (tx.update(row, allowed, set).await, condition) {
            // The table's CHECK refuses: the backorder limit was lowered after the read.
            (Some(after), _) if after.available() < 0 => {
                drop(tx);
                let level = self.level(row.0, row.1).await?;
                Ok(AttemptOutcome::refused(level, deduction.quantity.units()))
            }
            (Some(after), _) => self.record(tx, deduction, &after, Some(read)).await,
            (None, Condition::None) => Ok(AttemptOutcome::UnknownSku),
            (None, Condition::Version) => Ok(AttemptOutcome::Conflict),
            (None, Condition::Fence(fence)) => {
                self.step("SELECT the fence").await;
                let last = tx.row(row.0, row.1).and_then(|row| row.fence);
                let last = last.map(|last| (last.token, last.source.to_string()));
                Ok(AttemptOutcome::write_refused(last, fence))
            }
        }
    }

    async fn deduct_in_redis(
        &self,
        _: &Deduction,
        _: RedisMethod,
    ) -> Result<AttemptOutcome, StoreError> {
        Err(StoreError::NoRedis)
    }
}

#[async_trait]
impl LevelStore for MemoryStore {
    async fn set_level(&self, change: &LevelChange) -> Result<ChangeOutcome, StoreError> {
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
            return Ok(ChangeOutcome::PreconditionFailed);
        }
        let home = existing.first().map(|level| level.home);
        if let Some(home) = home
            && change.home.is_some_and(|asked| asked != home)
        {
            return Ok(ChangeOutcome::WrongHome(home));
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
            return Ok(ChangeOutcome::BelowLimit { available });
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

    async fn adjust(&self, adjustment: &Adjustment) -> Result<ChangeOutcome, StoreError> {
        let delta = adjustment.delta;
        let row = (&adjustment.sku, &adjustment.warehouse);
        let mut tx = Transaction::begin(self);
        let after = tx
            .update(row, |_| true, |level| level.on_hand += delta)
            .await;
        let Some(after) = after else {
            return Ok(ChangeOutcome::UnknownSku);
        };
        if after.available() < 0 {
            drop(tx);
            let level = self.level(row.0, row.1).await?;
            return Ok(ChangeOutcome::refused(level, delta));
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
}

fn kind_of(delta: i64) -> MovementKind {
    if delta > 0 {
        MovementKind::Received
    } else {
        MovementKind::Adjusted
    }
}
