//! Attempts at operations: each reads what they need, plans, and writes, in the form that the core asks for.

use std::slice;

use super::dialect::Dialect;
use super::errors::{Inserted, conflict_if_duplicate};
use super::ledger_row::NewRow;
use super::pool::{PooledConnection, Transaction};
use super::snapshot::{RowLocks, lock_levels, recorded_among, snapshot, with_keys};
use super::statement::values;
use super::write::{Session, Write, Written};
use super::{READ, SqlStore, holds, one_line};
use crate::{Result, StoreError};
use futures_util::FutureExt as _;
use stocklock_core::plan::{Plan, PlannedLevel, Snapshot};
use stocklock_core::ports::{
    AttemptOutcome, BatchAnswer, BatchAttempt, BatchGuard, BatchStore, Expiry,
};
use stocklock_core::stock::{Change, Movement, Operation, Sku, Warehouse};
use tokio::time::Instant;

/// A plan, how its write ended, and when that expires.
type Tried<'a> = (Plan<'a>, Result<Written>, Expiry);

/// The same; and for each operation the level whose row is locked by another transaction, so that it is not in
/// the plan.
type UnderLock<'a> = (Tried<'a>, Vec<Option<usize>>);

impl<D: Dialect> BatchStore for SqlStore<D> {
    async fn attempt(&self, batch: &[Operation], guard: BatchGuard) -> Result<BatchAttempt> {
        let mut connections = self.writers.for_row(&batch[0].first().sku);
        loop {
            let connection = connections.acquire().await?;
            let tried = match guard {
                BatchGuard::Available => {
                    let clock = connection.server_time();
                    let plan = Plan::unread(batch, Instant::now(), clock);
                    self.write_plan(connection, plan).await
                }
                BatchGuard::Version => self.write_on_version(connection, batch).await,
                BatchGuard::OpenLines => {
                    let locked = self.write_under_lock(connection, batch, RowLocks::OpenLines);
                    match locked.await {
                        // The ledger may have the operations that are refused.
                        Ok(((plan, ..), _)) if !plan.makes_all() => {
                            return Ok(BatchAttempt::Conflict);
                        }
                        locked => locked.map(|(tried, _)| tried),
                    }
                }
                BatchGuard::RowLock => {
                    let locked = self.write_under_lock(connection, batch, RowLocks::Waiting);
                    locked.await.map(|(tried, _)| tried)
                }
            };
            match tried {
                Err(error) | Ok((_, Err(error), _)) if connections.again(&error) => {}
                tried => return self.attempted(batch, tried?).await,
            }
        }
    }

    async fn alone(&self, operation: &Operation) -> BatchAnswer {
        self.deduct_guarded(operation).await
    }

    async fn attempt_free(
        &self,
        operations: &[Operation],
        briefly: bool,
    ) -> Result<(Vec<Option<usize>>, BatchAttempt)> {
        let (tried, missed) = if briefly {
            self.on_row(&operations[0].first().sku, |connection| {
                self.write_under_lock(connection, operations, RowLocks::Brief)
            })
            .await?
        } else {
            // Not in the queue of one SKU, whose share of the connections may be busy.
            let connection = self.read(READ, self.writers.acquire()).await?;
            self.write_under_lock(connection, operations, RowLocks::Free)
                .await?
        };
        Ok((missed, self.attempted(operations, tried).await?))
    }

    async fn write_free_levels(&self, plan: &Plan<'_>) -> Result<Option<Vec<Option<i64>>>> {
        let Some(deadline) = plan.deadline() else {
            return Ok(Some(Vec::new()));
        };
        // Not in the queue of one SKU, whose share of the connections may be busy.
        let connection = self.read(READ, self.writers.acquire()).await?;
        let expiry = connection.expiry(deadline);
        let write = Write::new(plan, expiry.at, false);
        let written = self
            .write(D::write(Session::Fresh(connection), &write))
            .await;
        self.changed.remember(levels(plan));
        Ok(match written.map_err(|error| error.expiring(expiry))? {
            Written::Levels(levels) => Some(available(plan, &levels)),
            Written::Duplicate => None,
        })
    }

    async fn recorded_among(&self, operations: &[&Operation]) -> Result<Vec<Movement>> {
        let found = self.read(3 * READ, async {
            let mut connection = self.writers.acquire().await?;
            recorded_among(&mut connection, operations.iter().copied()).await
        });
        self.at_standby(found.await?).await
    }
}

/// The levels that the plan changes.
fn levels<'a>(plan: &Plan<'a>) -> impl Iterator<Item = (&'a Sku, &'a Warehouse)> {
    plan.levels.iter().map(|level| (level.sku, level.warehouse))
}

/// The units that are available in each level of the plan; `None` if it was left out.
fn available(plan: &Plan<'_>, written: &[(i64, i64)]) -> Vec<Option<i64>> {
    let mut available = vec![None; plan.levels.len()];
    for (number, units) in written {
        let place = usize::try_from(*number).ok();
        if let Some(level) = place.and_then(|place| available.get_mut(place)) {
            *level = Some(*units);
        }
    }
    available
}

impl<D: Dialect> SqlStore<D> {
    /// Makes one operation: locks its rows, reads, plans, and writes.
    pub(super) async fn write_one(&self, operation: &Operation) -> Result<AttemptOutcome> {
        let attempt = self.attempt(slice::from_ref(operation), BatchGuard::RowLock);
        match attempt.await? {
            BatchAttempt::Answered(mut answers) => {
                answers.pop().unwrap_or(Ok(AttemptOutcome::Conflict))
            }
            BatchAttempt::Duplicate => Ok(AttemptOutcome::Duplicate),
            BatchAttempt::Conflict | BatchAttempt::Alone => Ok(AttemptOutcome::Conflict),
        }
    }

    /// Reads without a lock, and writes on condition of the version.
    async fn write_on_version<'a>(
        &self,
        mut connection: PooledConnection<D>,
        batch: &'a [Operation],
    ) -> Result<Tried<'a>> {
        let reading = snapshot(&mut connection, batch, RowLocks::None);
        let reading = self.read(3 * READ, reading).await?;
        let plan = Plan::new(&reading.snapshot, batch, Instant::now());
        self.write_plan(connection, plan).await
    }

    /// Writes a plan whose rows are not locked, in one message. The rows of its holds are written before; no other
    /// transaction waits for those, so the order of locks stays.
    async fn write_plan<'a>(
        &self,
        connection: PooledConnection<D>,
        plan: Plan<'a>,
    ) -> Result<Tried<'a>> {
        let Some(deadline) = plan.deadline() else {
            return Ok((plan, Ok(Written::Levels(Vec::new())), Expiry::passed()));
        };
        let expiry = connection.expiry(deadline);
        let session = if plan.has_holds() {
            let rows = async {
                let mut tx = connection.begin(D::texts().begin.as_str()).await?;
                let inserted = holds::write(&mut tx, &plan).await?;
                if inserted == Inserted::Duplicate {
                    tx.roll_back().await;
                    return Ok(None);
                }
                Ok(Some(tx))
            };
            match self.read(2 * READ, rows).await? {
                Some(tx) => Session::Open(tx),
                None => return Ok((plan, Ok(Written::Duplicate), expiry)),
            }
        } else {
            Session::Fresh(connection)
        };
        let write = Write::new(&plan, expiry.at, true);
        let written = self.write(D::write(session, &write)).await;
        Ok((plan, written, expiry))
    }

    /// The rows are locked from the reading to the commit.
    async fn write_under_lock<'a>(
        &self,
        connection: PooledConnection<D>,
        batch: &'a [Operation],
        locks: RowLocks,
    ) -> Result<UnderLock<'a>> {
        let reading = async {
            let begin = if locks == RowLocks::Brief {
                D::texts().begin_brief.as_str()
            } else {
                D::texts().begin.as_str()
            };
            let mut tx = connection.begin(begin).await?;
            let reading = snapshot(&mut tx, batch, locks).await?;
            Ok((tx, reading))
        };
        let (mut tx, reading) = self.read(3 * READ, reading).await?;
        let missed: Vec<_> = batch.iter().map(|one| reading.missed_level(one)).collect();
        let planned = batch.iter().zip(&missed);
        let planned = planned.filter_map(|(one, missed)| missed.is_none().then_some(one));
        let plan = Plan::new(&reading.snapshot, planned, Instant::now());
        let (mut deadline, mut written) = (plan.deadline(), Ok(Written::Levels(Vec::new())));
        let is_assumed = locks == RowLocks::OpenLines;
        if is_assumed && !plan.makes_all() {
            deadline = None;
        }
        if deadline.is_some() {
            // Nothing can be committed before the write, so its bound does not cover these.
            let rows = async {
                create_levels(&mut tx, &plan, &reading.snapshot).await?;
                holds::write(&mut tx, &plan).await
            };
            match self.read(2 * READ, rows).await {
                Ok(Inserted::New) => {}
                Ok(Inserted::Duplicate) => (deadline, written) = (None, Ok(Written::Duplicate)),
                // A line has ended since it was read.
                Err(StoreError::Aborted(_)) if is_assumed => deadline = None,
                Err(error) => return Err(error),
            }
        }
        if let Some(deadline) = deadline {
            written = self.write(write_and_commit(tx, &plan, deadline)).await;
        } else {
            // If it takes too long, the pool closes the connection. The answers hold.
            let _ = self.read(READ, tx.roll_back().map(Ok)).await;
        }
        // The outcome of a COMMIT is visible to the next transaction that locks the row.
        Ok(((plan, written, Expiry::passed()), missed))
    }

    /// Returns when the row of the level was free.
    pub(super) async fn wait_for_row(&self, sku: &Sku, warehouse: &Warehouse) -> Result<()> {
        self.on_row(sku, |connection| {
            self.read(2 * READ, async move {
                let mut tx = connection.begin(D::texts().begin.as_str()).await?;
                let place = values![sku.as_str(), warehouse.as_str()];
                tx.change(&D::texts().level_locked, &place).await?;
                tx.roll_back().await;
                Ok(())
            })
        })
        .await
    }

    /// What the end of the write means for the operations.
    async fn attempted(
        &self,
        batch: &[Operation],
        (plan, written, expiry): Tried<'_>,
    ) -> Result<BatchAttempt> {
        if plan.movements.is_empty() {
            return Ok(self.with_recorded(plan.without_movements()).await);
        }
        self.changed.remember(levels(&plan));
        let sku = &batch[0].first().sku;
        // Only of those that are to be recorded: a key of another one is in the ledger, and not in flight.
        let movements = plan.movements.iter().map(|movement| movement.operation);
        let written = self.find_keys_in_flight(written, sku, movements).await;
        Ok(match written {
            Ok(Written::Levels(levels)) if levels.is_empty() => BatchAttempt::Conflict,
            Ok(Written::Levels(levels)) => {
                let available = available(&plan, &levels);
                let answers = plan.committed(&available).into_iter();
                let conflict = || Ok(AttemptOutcome::Conflict);
                BatchAttempt::Answered(answers.map(|one| one.unwrap_or_else(conflict)).collect())
            }
            Ok(Written::Duplicate) => BatchAttempt::Duplicate,
            // The database may refuse a row of one operation, for example by a constraint of the operator.
            Err(StoreError::KeyInFlight(_) | StoreError::Unexpected(_) | StoreError::Bug(_))
                if batch.len() > 1 =>
            {
                BatchAttempt::Alone
            }
            Err(error) => {
                let failed = plan.failed(&error.expiring(expiry));
                self.with_recorded(failed).await
            }
        })
    }

    /// Returns `written`. If it waited for a lock although another transaction is recording the key of one of
    /// the operations, that is the reason to tell the caller.
    pub(super) async fn find_keys_in_flight<'a, T>(
        &self,
        written: Result<T>,
        sku: &Sku,
        operations: impl IntoIterator<Item = &'a Operation> + Send,
    ) -> Result<T> {
        let begin = &D::texts().begin_read_uncommitted;
        let error = match written {
            Err(StoreError::LockWait(error)) if !begin.is_empty() => error,
            written => return written,
        };
        let keys = operations.into_iter().filter_map(key);
        let keys: Vec<_> = keys.collect();
        if keys.is_empty() {
            return Err(StoreError::LockWait(error));
        }
        let pool = self.writers.for_sku(sku);
        // Boxed, so that it takes no place in the future of a write that meets no lock.
        let found = Box::pin(self.read(2 * READ, async {
            let mut tx = pool.begin(begin.as_str()).await?;
            let found = with_keys(&mut tx, &keys).await?;
            tx.roll_back().await;
            Ok(!found.is_empty())
        }));
        // Without a look-up, the wait is all that is known. The write may be made again.
        Err(match found.await {
            Ok(true) => StoreError::KeyInFlight(error),
            Ok(false) | Err(_) => StoreError::LockWait(error),
        })
    }
}

/// The values of the ledger's unique index.
fn key(operation: &Operation) -> Option<(&str, &str)> {
    let one = operation.idempotency.as_ref()?;
    Some((one.caller.as_str(), one.key.as_str()))
}

/// Writes what was planned on the rows that the transaction has locked, and commits.
async fn write_and_commit<D: Dialect>(
    tx: Transaction<D>,
    plan: &Plan<'_>,
    deadline: Instant,
) -> Result<Written> {
    if let Some(row) = NewRow::of_plan(plan) {
        return one_line::write(tx, plan, (&row, deadline)).await;
    }
    let expires_at = tx.expiry(deadline).at;
    let written = D::write(Session::Open(tx), &Write::new(plan, expires_at, true)).await?;
    match written {
        // The rows are locked, so nothing else can have failed.
        Written::Levels(levels) if levels.is_empty() => {
            Err(StoreError::Aborted("the last message was too late".into()))
        }
        written => Ok(written),
    }
}

/// Creates the levels of the plan that are new, without units.
async fn create_levels<D: Dialect>(
    tx: &mut Transaction<D>,
    plan: &Plan<'_>,
    read: &Snapshot,
) -> Result<()> {
    let mut new: Vec<_> = plan.levels.iter().filter(|level| level.is_new).collect();
    // Two transactions that create the same levels wait for each other in one order only.
    new.sort_unstable_by_key(|level| (level.sku, level.warehouse));
    for level in new {
        let mut of_sku = plan.movements().filter(|(_, one)| one.sku == level.sku);
        let is_set = of_sku.any(|(one, _)| matches!(one.change(), Change::Set(_)));
        create(tx, level, is_set.then_some(read)).await?;
    }
    Ok(())
}

/// Creates one of them. `read`: what its precondition depends on, if that concerns other levels of the SKU.
async fn create<D: Dialect>(
    tx: &mut Transaction<D>,
    level: &PlannedLevel<'_>,
    read: Option<&Snapshot>,
) -> Result<()> {
    let sku = level.sku;
    let place = values![sku.as_str(), level.warehouse.as_str()];
    let created = tx.execute(&D::texts().create_level, &place).await;
    created.map_err(conflict_if_duplicate)?;
    if let Some(read) = read.filter(|_| D::WAITS_FOR_INSERTS) {
        let existing = read.levels.iter().filter(|level| level.sku == *sku).count();
        if lock_levels(tx, sku).await?.len() > existing + 1 {
            // It may break the precondition.
            let problem = "another transaction has created a level of the SKU";
            return Err(StoreError::Aborted(problem.into()));
        }
    }
    Ok(())
}
