//! The core's ports on the model: the same statements in the same order as the SQL stores.

use async_trait::async_trait;

use super::store::{Entry, MemoryStore, Row, WriteCondition, key};
use super::transaction::Transaction;
use crate::ports::{
    AttemptOutcome, BatchAnswer, ChangeOutcome, Condition, DeductionStore, Expiry, LateAttempt,
    LedgerReader, LevelStore, PlannedLevel, PlannedReturn, ReadLevel, ReversalOutcome, SqlMethod,
    StoreError, adjusted, deduct_batch, deduct_merged,
};
use crate::stock::{
    Adjustment, Deduction, Idempotency, LevelChange, Movement, MovementKind, OperationId, Remarks,
    Reversal, Sku, StockLevel, Warehouse,
};

/// The expiry of a write that cannot be late.
pub(super) const NEVER: i64 = i64::MAX;

impl MemoryStore {
    /// When an attempt expires that is sent now.
    pub(super) fn expiry(&self) -> Expiry {
        Expiry {
            at: self.tables().clock + 1,
            ..Expiry::passed()
        }
    }

    /// Takes the units if enough are available.
    async fn deduct_guarded(
        &self,
        mut tx: Transaction,
        deduction: &Deduction,
        expires_at: i64,
    ) -> Result<AttemptOutcome, StoreError> {
        let units = deduction.quantity.units();
        let place = (&deduction.sku, &deduction.warehouse);
        let enough = |row: &Row| row.level.available() >= units;
        let take = |row: &mut Row| row.level.on_hand -= units;
        match tx.update(place, enough, take, expires_at).await? {
            Some(after) => self.record(tx, deduction, &after.level, None).await,
            None => self.refusal(tx, deduction).await,
        }
    }

    /// Inserts a deduction into the ledger in the transaction that wrote the level, and commits.
    /// `read_version`: the version that a read-check-write strategy has read.
    async fn record(
        &self,
        mut tx: Transaction,
        deduction: &Deduction,
        after: &StockLevel,
        read_version: Option<i64>,
    ) -> Result<AttemptOutcome, StoreError> {
        let mut sale = sale(deduction, after);
        sale.movement.read_version = read_version;
        if !tx.insert(sale).await? {
            return Ok(AttemptOutcome::Duplicate);
        }
        tx.commit().await?;
        Ok(AttemptOutcome::Deducted {
            remaining: after.available(),
        })
    }

    /// Executes the message of a guarded deduction at any later step.
    fn send_late(&self, deduction: Deduction, expiry: Expiry) {
        let store = self.clone();
        self.decisions.spawn(Box::pin(async move {
            store.pause("a late message arrives").await;
            let tx = Transaction::begin(&store);
            // There is no client that could receive the answer.
            let _ = store.deduct_guarded(tx, &deduction, expiry.at).await;
        }));
    }

    /// Inserts a change of a level into the ledger, and commits.
    async fn record_change(
        &self,
        mut tx: Transaction,
        movement: Entry,
        level: StockLevel,
        created: bool,
    ) -> Result<ChangeOutcome, StoreError> {
        if !tx.insert(movement).await? {
            return Ok(ChangeOutcome::Duplicate);
        }
        tx.commit().await?;
        Ok(ChangeOutcome::Done { level, created })
    }

    /// Why no row was changed, by the level as it is now. This read does not hold the row lock:
    /// MariaDB releases the lock of a row that fails the condition, and SQLite has ended the
    /// transaction.
    async fn refusal(&self, tx: Transaction, of: &Deduction) -> Result<AttemptOutcome, StoreError> {
        drop(tx);
        let level = self.level(&of.sku, &of.warehouse).await?;
        Ok(AttemptOutcome::refused(level.as_ref(), of.quantity.units()))
    }
}

/// The movement of a deduction that leaves the level `after`.
pub(super) fn sale(deduction: &Deduction, after: &StockLevel) -> Entry {
    let delta = -deduction.quantity.units();
    let (kind, key) = (MovementKind::Deducted, deduction.idempotency.as_ref());
    let mut sale = Entry::new(deduction.operation, kind, delta, after, key);
    sale.movement.strategy = Some(deduction.strategy.to_owned());
    sale.movement.remarks = deduction.remarks.clone();
    sale
}

#[async_trait]
impl LedgerReader for MemoryStore {
    async fn level(
        &self,
        sku: &Sku,
        warehouse: &Warehouse,
    ) -> Result<Option<StockLevel>, StoreError> {
        self.step("SELECT").await?;
        let tables = self.tables();
        Ok(tables.row((sku, warehouse)).map(|row| row.level.clone()))
    }

    async fn recorded(
        &self,
        _: &Sku,
        operation: OperationId,
        idempotency: Option<&Idempotency>,
    ) -> Result<Option<Movement>, StoreError> {
        self.step("SELECT from the ledger").await?;
        let key = key(idempotency);
        let tables = self.tables();
        let find = |wanted: &dyn Fn(&Entry) -> bool| tables.ledger.iter().find(|one| wanted(one));
        let found = find(&|entry| entry.movement.operation == operation)
            .or_else(|| find(&|entry| key.is_some() && entry.key == key));
        Ok(found.map(|entry| entry.movement.clone()))
    }
}

#[async_trait]
impl DeductionStore for MemoryStore {
    async fn deduct(
        &self,
        deduction: &Deduction,
        method: SqlMethod,
    ) -> Result<AttemptOutcome, StoreError> {
        let units = deduction.quantity.units();
        let place = (&deduction.sku, &deduction.warehouse);
        let mut tx = Transaction::begin(self);
        match method {
            SqlMethod::Guarded => {
                let expiry = self.expiry();
                if self.message_is_late() {
                    self.send_late(deduction.clone(), expiry);
                    let unknown = StoreError::outcome_unknown("lost with the message");
                    return Err(unknown.expiring(expiry));
                }
                self.deduct_guarded(tx, deduction, expiry.at).await
            }
            SqlMethod::RowLock => {
                let level = tx.select_for_update(place).await?.map(|row| row.level);
                if let Err(refused) = AttemptOutcome::decide(level.as_ref(), units) {
                    return Ok(refused);
                }
                self.deduct_guarded(tx, deduction, NEVER).await
            }
        }
    }

    fn max_batch(&self) -> usize {
        usize::MAX
    }

    async fn deduct_all(&self, deductions: &[Deduction], read_first: bool) -> Vec<BatchAnswer> {
        deduct_batch(self, deductions, read_first).await
    }

    async fn deduct_merged(&self, batches: &[Vec<Deduction>]) -> Vec<Option<Vec<BatchAnswer>>> {
        deduct_merged(self, batches).await
    }

    async fn write_back(
        &self,
        deduction: &Deduction,
        read: ReadLevel,
        condition: Condition<'_>,
    ) -> Result<AttemptOutcome, StoreError> {
        let place = (&deduction.sku, &deduction.warehouse);
        let mut tx = Transaction::begin(self);
        let fence_only = self.condition == WriteCondition::FenceOnly;
        let after = read.available - deduction.quantity.units();
        let is_unchanged = |row: &Row| Some(row.level.version) == read.version;
        let allowed = |row: &Row| match condition {
            Condition::None => true,
            Condition::Version => is_unchanged(row),
            Condition::Fence(fence) => (fence_only || is_unchanged(row)) && !row.is_after(fence),
        };
        let set = |row: &mut Row| {
            row.level.on_hand = after + row.level.held - row.level.backorder_limit;
            if let Condition::Fence(fence) = condition {
                row.fence = Some(fence.clone());
            }
        };
        match (tx.update(place, allowed, set, NEVER).await?, condition) {
            (Some(after), _) => self.record(tx, deduction, &after.level, read.version).await,
            (None, Condition::None) => self.refusal(tx, deduction).await,
            (None, Condition::Version) => Ok(AttemptOutcome::Conflict),
            (None, Condition::Fence(fence)) => {
                self.step("SELECT the fence").await?;
                let last = tx.row(place).and_then(|row| row.fence);
                let last = last.map(|last| (last.token, last.source.to_string()));
                Ok(AttemptOutcome::write_refused(last, fence))
            }
        }
    }

    /// The clock reaches the expiry as late as possible: in the step that begins the transaction.
    async fn late_attempt(
        &self,
        deduction: &Deduction,
        expiry: Expiry,
    ) -> Result<LateAttempt, StoreError> {
        self.step("BEGIN after the expiry").await?;
        {
            let mut tables = self.tables();
            tables.clock = tables.clock.max(expiry.at);
        }
        let mut tx = Transaction::begin(self);
        let (sku, warehouse) = (&deduction.sku, &deduction.warehouse);
        tx.select_for_update((sku, warehouse)).await?;
        let key = deduction.idempotency.as_ref();
        Ok(self.recorded(sku, deduction.operation, key).await?.into())
    }
}

#[async_trait]
impl LevelStore for MemoryStore {
    async fn set_level(&self, change: &LevelChange) -> Result<ChangeOutcome, StoreError> {
        let mut tx = Transaction::begin(self);
        let existing = tx.select_sku_for_update(&change.sku).await?;
        let planned = match PlannedLevel::new(change, &existing) {
            Ok(planned) => planned,
            Err(outcome) => return Ok(outcome),
        };
        tx.put(planned.level.clone()).await?;
        let (operation, delta) = (change.operation, planned.delta());
        let mut movement = Entry::of_change(operation, delta, &planned.level, None);
        movement.movement.read_version = planned.old.as_ref().map(|old| old.version);
        movement.movement.remarks.reason = change.reason.clone();
        let created = planned.is_creation();
        self.record_change(tx, movement, planned.level, created)
            .await
    }

    async fn adjust(&self, adjustment: &Adjustment) -> Result<ChangeOutcome, StoreError> {
        let delta = adjustment.delta;
        let place = (&adjustment.sku, &adjustment.warehouse);
        let mut tx = Transaction::begin(self);
        let row = tx.select_for_update(place).await?;
        let (old, fence) = row.map(|row| (row.level, row.fence)).unzip();
        let level = match adjusted(adjustment, old) {
            Ok(level) => level,
            Err(refused) => return Ok(refused),
        };
        tx.overwrite(Row {
            level: level.clone(),
            fence: fence.flatten(),
        });
        let key = adjustment.idempotency.as_ref();
        let mut movement = Entry::of_change(adjustment.operation, delta, &level, key);
        movement.movement.remarks = Remarks {
            reason: Some(adjustment.reason.clone()),
            reference: adjustment.reference.clone(),
        };
        self.record_change(tx, movement, level, false).await
    }

    async fn operation(&self, operation: OperationId) -> Result<Option<Movement>, StoreError> {
        self.step("SELECT from the ledger").await?;
        let tables = self.tables();
        let mut movements = tables.ledger.iter().map(|entry| &entry.movement);
        Ok(movements.find(|one| one.operation == operation).cloned())
    }

    async fn reverse(
        &self,
        reversal: &Reversal,
        sale: &Movement,
    ) -> Result<ReversalOutcome, StoreError> {
        let mut tx = Transaction::begin(self);
        let row = tx.select_for_update((&sale.sku, &sale.warehouse)).await?;
        let (level, fence) = row.map(|row| (row.level, row.fence)).unzip();
        self.step("SELECT the sum of the returns").await?;
        let returned = {
            let tables = self.tables();
            let movements = tables.ledger.iter().map(|entry| &entry.movement);
            let returns = movements.filter(|one| one.reverses == Some(sale.operation));
            returns.filter_map(|one| one.returned).sum()
        };
        let planned = match PlannedReturn::new(reversal, sale, returned, level) {
            Ok(planned) => planned,
            Err(refused) => return Ok(refused),
        };
        let level = planned.level.clone();
        let (kind, delta) = (MovementKind::Returned, planned.restocked);
        let key = reversal.idempotency.as_ref();
        let mut entry = Entry::new(reversal.operation, kind, delta, &level, key);
        entry.movement.reverses = Some(sale.operation);
        entry.movement.returned = Some(planned.quantity);
        entry.movement.remarks.reason = Some(reversal.reason.clone());
        let fence = fence.flatten();
        tx.overwrite(Row { level, fence });
        if !tx.insert(entry).await? {
            return Ok(ReversalOutcome::Duplicate);
        }
        tx.commit().await?;
        Ok(ReversalOutcome::Done(planned))
    }
}
