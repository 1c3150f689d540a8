//! Writes of plans on the model: the same statements in the same order as the SQL stores, except that
//! the rows of holds are written together with the movements.

use std::collections::BTreeSet;

use tokio::time::Instant;

use super::ports::NEVER;
use super::store::{Entry, MemoryStore, key};
use super::transaction::Transaction;
use super::write::{Write, Written};
use crate::plan::{Plan, Returned, Snapshot};
use crate::ports::{
    AttemptOutcome, BatchAnswer, BatchAttempt, BatchGuard, BatchStore, Expiry, LedgerReader as _,
    OperationStore as _, StoreError,
};
use crate::stock::{Change, Movement, Operation, OperationId, Sku, Warehouse};

impl BatchStore for MemoryStore {
    async fn attempt(
        &self,
        batch: &[Operation],
        guard: BatchGuard,
    ) -> Result<BatchAttempt, StoreError> {
        let (mut tx, now) = (Transaction::begin(self), Instant::now());
        let plan = match guard {
            BatchGuard::Available => Plan::unread(batch, now, self.tables.lock().clock),
            BatchGuard::Version => Plan::new(&self.snapshot(None, batch).await?, batch, now),
            BatchGuard::RowLock | BatchGuard::OpenLines => {
                let is_assumed = guard == BatchGuard::OpenLines;
                let mut read = self.levels(Some(&mut tx), batch).await?;
                if is_assumed {
                    read.now = self.tables.lock().clock;
                    read.assume_open(batch);
                } else {
                    read = self.read_rest(batch, read).await?;
                }
                let plan = Plan::new(&read, batch, now);
                if is_assumed && !plan.makes_all() {
                    return Ok(BatchAttempt::Conflict);
                }
                return self.write_locked(tx, plan).await;
            }
        };
        if plan.movements.is_empty() {
            return Ok(BatchAttempt::Answered(plan.without_movements()));
        }
        let expiry = self.expiry();
        let write = Write::new(&plan, expiry.at, true);
        if let Err(error) = self.send(&write, expiry) {
            return Ok(BatchAttempt::Answered(plan.failed(&error)));
        }
        let written = self.put_and_commit(tx, write).await;
        Ok(attempted(plan, written, expiry))
    }

    async fn alone(&self, operation: &Operation) -> BatchAnswer {
        self.guarded_write(operation).await
    }

    async fn attempt_free(
        &self,
        operations: &[Operation],
        briefly: bool,
    ) -> Result<(Vec<Option<usize>>, BatchAttempt), StoreError> {
        let mut tx = Transaction::begin(self);
        let mut missed = vec![None; operations.len()];
        let snapshot = if briefly {
            self.snapshot(Some(&mut tx), operations).await?
        } else {
            self.step("SELECT FOR UPDATE SKIP LOCKED").await?;
            let mut snapshot = Snapshot::default();
            for place in places(operations) {
                if tx.row(place).is_some() && tx.try_lock_row(place) {
                    snapshot.levels.extend(tx.row(place).map(|row| row.level));
                }
            }
            for (operation, missed) in operations.iter().zip(&mut missed) {
                let is_missed = |place| tx.row(place).is_some() && !tx.has_locked(place);
                *missed = operation.levels().position(is_missed);
            }
            self.read_rest(operations, snapshot).await?
        };
        let planned = operations.iter().zip(&missed);
        let planned = planned.filter_map(|(one, missed)| missed.is_none().then_some(one));
        let plan = Plan::new(&snapshot, planned, Instant::now());
        Ok((missed, self.write_locked(tx, plan).await?))
    }

    async fn write_free_levels(
        &self,
        plan: &Plan<'_>,
    ) -> Result<Option<Vec<Option<i64>>>, StoreError> {
        let expiry = self.expiry();
        let write = Write::new(plan, expiry.at, false);
        self.send(&write, expiry)?;
        let tx = Transaction::begin(self);
        let written = self.put_and_commit(tx, write).await;
        Ok(match written.map_err(|error| error.expiring(expiry))? {
            Written::Levels(available) => Some(available),
            Written::Duplicate => None,
        })
    }

    async fn recorded_among(&self, operations: &[&Operation]) -> Result<Vec<Movement>, StoreError> {
        self.step("SELECT from the ledger").await?;
        let is_wanted = |entry: &Entry| {
            operations.iter().any(|one| {
                let same_key = entry.key.is_some() && entry.key == key(one.idempotency.as_ref());
                same_key || entry.movement.operation == one.id
            })
        };
        let tables = self.tables.lock();
        let found = tables.ledger.iter().filter(|entry| is_wanted(entry));
        Ok(found.map(|entry| entry.movement.clone()).collect())
    }
}

/// The levels of the operations, in the order in which they are locked.
fn places(operations: &[Operation]) -> BTreeSet<(&Sku, &Warehouse)> {
    operations.iter().flat_map(Operation::levels).collect()
}

/// What the end of a write means for the batch.
fn attempted(plan: Plan<'_>, written: Result<Written, StoreError>, expiry: Expiry) -> BatchAttempt {
    match written {
        Ok(Written::Levels(available)) if available.iter().all(Option::is_some) => {
            let answers = plan.committed(&available).into_iter();
            BatchAttempt::Answered(answers.flatten().collect())
        }
        Ok(Written::Levels(_)) => BatchAttempt::Conflict,
        Ok(Written::Duplicate) => BatchAttempt::Duplicate,
        Err(error) => BatchAttempt::Answered(plan.failed(&error.expiring(expiry))),
    }
}

impl MemoryStore {
    /// Makes one operation. A deduction of one level needs no snapshot.
    pub(super) async fn guarded_write(&self, operation: &Operation) -> BatchAnswer {
        if operation.as_deduction().is_none() {
            return self.write(operation).await;
        }
        let plan = Plan::unread([operation], Instant::now(), 0);
        let expiry = self.expiry();
        let write = Write::new(&plan, expiry.at, true);
        self.send(&write, expiry)?;
        let tx = Transaction::begin(self);
        let written = self.put_and_commit(tx, write).await;
        match attempted(plan, written, expiry) {
            BatchAttempt::Answered(mut answers) => answers.pop().expect("one operation"),
            BatchAttempt::Duplicate => Ok(AttemptOutcome::Duplicate),
            BatchAttempt::Conflict | BatchAttempt::Alone => self.refusal(operation).await,
        }
    }

    /// Writes a plan on rows that the transaction has locked.
    async fn write_locked(
        &self,
        mut tx: Transaction,
        plan: Plan<'_>,
    ) -> Result<BatchAttempt, StoreError> {
        if plan.movements.is_empty() {
            return Ok(BatchAttempt::Answered(plan.without_movements()));
        }
        for level in plan.levels.iter().filter(|level| level.is_new) {
            tx.create((level.sku, level.warehouse)).await?;
        }
        let write = Write::new(&plan, NEVER, true);
        let written = self.put_and_commit(tx, write).await;
        Ok(attempted(plan, written, Expiry::passed()))
    }

    /// The error of a message that arrives late. The server executes it then at any later step.
    fn send(&self, write: &Write, expiry: Expiry) -> Result<(), StoreError> {
        if !self.message_is_late() {
            return Ok(());
        }
        let (store, write) = (self.clone(), write.clone());
        self.decisions.spawn(Box::pin(async move {
            store.pause("a late message arrives").await;
            let tx = Transaction::begin(&store);
            // There is no client that could receive the answer.
            let _ = store.put_and_commit(tx, write).await;
        }));
        Err(StoreError::outcome_unknown("lost with the message").expiring(expiry))
    }

    /// What a plan needs. In a transaction, the rows are locked first.
    async fn snapshot(
        &self,
        tx: Option<&mut Transaction>,
        operations: &[Operation],
    ) -> Result<Snapshot, StoreError> {
        let levels = self.levels(tx, operations).await?;
        self.read_rest(operations, levels).await
    }

    async fn levels(
        &self,
        mut tx: Option<&mut Transaction>,
        operations: &[Operation],
    ) -> Result<Snapshot, StoreError> {
        let mut snapshot = Snapshot::default();
        let is_set = |sku: &Sku| {
            let mut lines = operations.iter().flat_map(|operation| &operation.lines);
            lines.any(|line| line.sku == *sku && matches!(line.change, Change::Set(_)))
        };
        for place in places(operations) {
            match &mut tx {
                Some(tx) if is_set(place.0) => {
                    let levels = tx.select_sku_for_update(place.0).await?;
                    snapshot.levels.retain(|level| level.sku != *place.0);
                    snapshot.levels.extend(levels);
                }
                Some(tx) => {
                    let row = tx.select_for_update(place).await?;
                    snapshot.levels.extend(row.map(|row| row.level));
                }
                None => snapshot.levels.extend(self.level(place.0, place.1).await?),
            }
        }
        Ok(snapshot)
    }

    /// Reads recorded movements, returns, holds and their ends, after the levels.
    async fn read_rest(
        &self,
        operations: &[Operation],
        mut snapshot: Snapshot,
    ) -> Result<Snapshot, StoreError> {
        if operations.len() > 1 {
            let all: Vec<_> = operations.iter().collect();
            snapshot.recorded = Some(self.recorded_among(&all).await?);
        }
        let lines = operations.iter().flat_map(|operation| &operation.lines);
        let sales = lines.filter_map(|line| match line.change {
            Change::Return(one) => Some((one.sale, one.line)),
            _ => None,
        });
        let sales: Vec<_> = sales.collect();
        if !sales.is_empty() {
            snapshot.returned = self.returned(&sales).await?;
        }
        let lines = || operations.iter().flat_map(|operation| &operation.lines);
        let ends = lines().filter_map(|line| match line.change {
            Change::End(end) => Some((end.hold, end.line)),
            _ => None,
        });
        let ends: Vec<_> = ends.collect();
        if !ends.is_empty() || lines().any(|line| matches!(line.change, Change::Hold(_))) {
            self.step("SELECT the holds and what has ended them")
                .await?;
            let tables = self.tables.lock();
            snapshot.now = tables.clock;
            for of_hold in ends {
                if let Some(open) = tables.holds.get(&of_hold) {
                    snapshot
                        .holds
                        .insert(of_hold, (open.units, open.expires_at));
                }
                let movements = tables.ledger.iter().map(|entry| &entry.movement);
                let mut ends = movements
                    .filter(|one| (one.reverses, one.line) == (Some(of_hold.0), of_hold.1));
                if let Some(last) = ends.next_back() {
                    snapshot.ends.insert(of_hold, last.kind.clone());
                }
            }
        }
        Ok(snapshot)
    }

    /// How many units of each line of a sale have come back.
    async fn returned(&self, sales: &[(OperationId, i64)]) -> Result<Returned, StoreError> {
        self.step("SELECT the sum of the returns").await?;
        let tables = self.tables.lock();
        let of = |(sale, line): (OperationId, i64)| {
            let movements = tables.ledger.iter().map(|entry| &entry.movement);
            let returns = movements.filter(|one| one.reverses == Some(sale) && one.line == line);
            returns.filter_map(|one| one.returned).sum()
        };
        Ok(sales.iter().map(|sale| (*sale, of(*sale))).collect())
    }
}
