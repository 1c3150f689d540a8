//! The core's ports on the model: the same statements in the same order as the SQL stores.

use std::collections::BTreeSet;

use async_trait::async_trait;
use tokio::time::Instant;

use super::store::{Entry, MemoryStore, Row, WriteCondition, key};
use super::transaction::Transaction;
use crate::plan::Plan;
use crate::ports::{
    AttemptOutcome, BatchAnswer, BatchAttempt, BatchGuard, BatchStore as _, Condition,
    DeductionStore, Expiry, HoldStore, LateAttempt, LedgerReader, OperationStore, ReadLevel,
    SharedAnswer, StoreError, write_batch, write_shared,
};
use crate::stock::{
    HoldFilter, Idempotency, Movement, MovementKind, OpenHold, Operation, OperationId, Sku,
    StockLevel, Warehouse,
};

/// The expiry of a write that cannot be late.
pub(super) const NEVER: i64 = i64::MAX;

impl MemoryStore {
    /// When an attempt expires that is sent now.
    pub(super) fn expiry(&self) -> Expiry {
        Expiry {
            at: self.tables.lock().clock + 1,
            ..Expiry::passed()
        }
    }

    /// Inserts a deduction into the ledger in the transaction that wrote the level, and commits.
    /// `read_version`: the version that a read-check-write strategy has read.
    async fn record(
        &self,
        mut tx: Transaction,
        deduction: &Operation,
        after: &StockLevel,
        read_version: Option<i64>,
    ) -> Result<AttemptOutcome, StoreError> {
        let plan = Plan::unread([deduction], Instant::now(), 0);
        let sale = Movement {
            read_version,
            available_after: after.available(),
            level_version: after.version,
            ..plan.movements[0].recorded(&plan.levels[0])
        };
        if !tx.insert(Entry::of(sale)).await? {
            return Ok(AttemptOutcome::Duplicate);
        }
        tx.commit().await?;
        Ok(AttemptOutcome::Deducted {
            remaining: after.available(),
        })
    }

    /// Why no row was changed, by the level as it is now. This read does not hold the row lock:
    /// MariaDB releases the lock of a row that fails the condition, and SQLite has ended the
    /// transaction.
    pub(super) async fn refusal(
        &self,
        deduction: &Operation,
    ) -> Result<AttemptOutcome, StoreError> {
        let (sku, warehouse) = deduction.level();
        let level = self.level(sku, warehouse).await?;
        Ok(AttemptOutcome::refused(level.as_ref(), deduction.units()))
    }
}

#[async_trait]
impl LedgerReader for MemoryStore {
    async fn level(
        &self,
        sku: &Sku,
        warehouse: &Warehouse,
    ) -> Result<Option<StockLevel>, StoreError> {
        self.step("SELECT").await?;
        let found = self
            .tables
            .lock()
            .row((sku, warehouse))
            .map(|row| row.level.clone());
        if found.is_none() {
            // The level may be created before this answer arrives. If there is a row, what follows is a step.
            self.pause("the answer arrives").await;
        }
        Ok(found)
    }

    async fn recorded(
        &self,
        _: &Sku,
        operation: OperationId,
        idempotency: Option<&Idempotency>,
    ) -> Result<Option<Movement>, StoreError> {
        self.step("SELECT from the ledger").await?;
        let key = key(idempotency);
        let tables = self.tables.lock();
        let find = |wanted: &dyn Fn(&Entry) -> bool| {
            let found = tables.ledger.iter().filter(|one| wanted(one));
            found.min_by_key(|one| one.movement.line)
        };
        let found = find(&|entry| entry.movement.operation == operation)
            .or_else(|| find(&|entry| key.is_some() && entry.key == key));
        Ok(found.map(|entry| entry.movement.clone()))
    }
}

#[async_trait]
impl OperationStore for MemoryStore {
    async fn write(&self, operation: &Operation) -> Result<AttemptOutcome, StoreError> {
        let one = std::slice::from_ref(operation);
        match self.attempt(one, BatchGuard::RowLock).await? {
            BatchAttempt::Answered(mut answers) => answers.pop().expect("one operation"),
            BatchAttempt::Duplicate => Ok(AttemptOutcome::Duplicate),
            BatchAttempt::Conflict | BatchAttempt::Alone => Ok(AttemptOutcome::Conflict),
        }
    }

    async fn operation(&self, operation: OperationId) -> Result<Vec<Movement>, StoreError> {
        self.step("SELECT from the ledger").await?;
        let tables = self.tables.lock();
        let movements = tables.ledger.iter().map(|entry| &entry.movement);
        let movements = movements.filter(|one| one.operation == operation);
        let mut movements: Vec<_> = movements.cloned().collect();
        movements.sort_by_key(|one| one.line);
        Ok(movements)
    }

    fn max_batch(&self) -> usize {
        usize::MAX
    }

    fn max_in_flight(&self) -> usize {
        2
    }

    async fn write_batch(&self, operations: &[Operation], read_first: bool) -> Vec<BatchAnswer> {
        write_batch(self, operations, read_first).await
    }

    async fn write_shared(&self, operations: &[Operation], briefly: bool) -> Vec<SharedAnswer> {
        write_shared(self, operations, briefly).await
    }

    async fn wait_for_level(&self, sku: &Sku, warehouse: &Warehouse) -> Result<(), StoreError> {
        let mut tx = Transaction::begin(self);
        tx.select_for_update((sku, warehouse)).await?;
        Ok(())
    }

    /// The clock reaches the expiry as late as possible: in the step that begins the transaction.
    async fn late_attempt(
        &self,
        operation: &Operation,
        expiry: Expiry,
    ) -> Result<LateAttempt, StoreError> {
        self.step("BEGIN after the expiry").await?;
        {
            let mut tables = self.tables.lock();
            tables.clock = tables.clock.max(expiry.at);
        }
        let mut tx = Transaction::begin(self);
        for place in operation.levels().collect::<BTreeSet<_>>() {
            tx.select_for_update(place).await?;
        }
        let key = operation.idempotency.as_ref();
        let sku = &operation.first().sku;
        Ok(self.recorded(sku, operation.id, key).await?.into())
    }
}

#[async_trait]
impl HoldStore for MemoryStore {
    async fn children(&self, parent: OperationId) -> Result<Vec<Movement>, StoreError> {
        self.step("SELECT what reverses it").await?;
        let mut movements = self.movements_now();
        movements.retain(|one| one.reverses == Some(parent));
        Ok(movements)
    }

    async fn open_lines(&self, holds: &[OperationId]) -> Result<Vec<OpenHold>, StoreError> {
        self.step("SELECT the lines of holds").await?;
        let mut open = self.holds_now();
        open.retain(|one| holds.contains(&one.hold));
        Ok(open)
    }

    async fn open_holds(&self, filter: &HoldFilter) -> Result<Vec<OpenHold>, StoreError> {
        self.step("SELECT the holds").await?;
        let mut open = self.holds_now();
        open.retain(|one| {
            let is_of = |(sku, warehouse): &(Sku, Warehouse)| {
                one.sku == *sku && one.warehouse == *warehouse
            };
            filter.level.as_ref().is_none_or(is_of) && (one.is_due() || !filter.only_due)
        });
        Ok(open)
    }

    async fn was_held(&self, sku: &Sku, warehouse: &Warehouse) -> Result<bool, StoreError> {
        self.step("SELECT a hold of the past").await?;
        let is_held = |one: &Movement| {
            one.kind == MovementKind::Held && one.sku == *sku && one.warehouse == *warehouse
        };
        Ok(self.movements_now().iter().any(is_held))
    }

    async fn extend(
        &self,
        hold: OperationId,
        lasts: Option<i64>,
    ) -> Result<Vec<OpenHold>, StoreError> {
        self.step("UPDATE the hold").await?;
        let mut tables = self.tables.lock();
        let now = tables.clock;
        let ends = lasts.map_or(NEVER, |lasts| now + lasts);
        let mut found = Vec::new();
        for one in tables.holds.values_mut().filter(|one| one.hold == hold) {
            if one.expires_at > now {
                one.expires_at = one.expires_at.max(ends);
            }
            one.now = now;
            found.push(one.clone());
        }
        Ok(found)
    }
}

#[async_trait]
impl DeductionStore for MemoryStore {
    async fn deduct(&self, deduction: &Operation) -> Result<AttemptOutcome, StoreError> {
        self.guarded_write(deduction).await
    }

    async fn write_back(
        &self,
        deduction: &Operation,
        read: ReadLevel,
        condition: Condition<'_>,
    ) -> Result<AttemptOutcome, StoreError> {
        let place = deduction.level();
        let mut tx = Transaction::begin(self);
        let fence_only = self.condition == WriteCondition::FenceOnly;
        let after = read.available - deduction.units();
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
            (None, Condition::None) => {
                drop(tx);
                self.refusal(deduction).await
            }
            (None, Condition::Version) => Ok(AttemptOutcome::Conflict),
            (None, Condition::Fence(fence)) => {
                self.step("SELECT the fence").await?;
                let last = tx.row(place).and_then(|row| row.fence);
                let last = last.map(|last| (last.token, last.source.to_string()));
                Ok(AttemptOutcome::write_refused(last, fence))
            }
        }
    }
}
