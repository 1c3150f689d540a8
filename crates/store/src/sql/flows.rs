//! The transactions that write, each written once for all dialects.
//!
//! Every flow either commits a level together with its movement, or changes nothing.

use async_trait::async_trait;
use tokio::time::Instant;

use super::conditional_write::{ConditionalWrite, deducted};
use super::dialect::{Dialect, Statement, values};
use super::errors::{Inserted, before_commit, conflict_if_duplicate, inserted};
use super::ledger_row::LedgerRow;
use super::pool::{PooledConnection, Transaction};
use super::reads::recorded;
use super::rows;
use super::statements::{self, INSERT_COLUMNS, INSERT_PARAMETERS, NEXT_PARAMETERS, Words};
use super::{READ, SqlStore};
use crate::{Result, StoreError};
use stocklock_core::ports::{
    AttemptOutcome, BatchAnswer, ChangeOutcome, Condition, DeductionStore, Expiry, LateAttempt,
    LedgerReader, LevelStore, PlannedLevel, ReadLevel, ReversalOutcome, SqlMethod, adjusted,
    deduct_batch, deduct_merged,
};
use stocklock_core::stock::{
    Adjustment, Deduction, Fence, LevelChange, Movement, OperationId, Reversal, Sku, StockLevel,
    Warehouse,
};

/// SKU, warehouse, units to add.
pub(super) const CHANGE_ON_HAND: &str =
    "UPDATE stock SET on_hand = on_hand + $3, version = version + 1
    WHERE sku = $1 AND warehouse = $2";

/// SKU, warehouse.
const FENCE: &str = "SELECT fence, fence_source FROM stock WHERE sku = $1 AND warehouse = $2";

/// Caller, key.
const FIND_KEY: &str = "SELECT line FROM movement WHERE caller = $1 AND idempotency_key = $2";

/// SKU, warehouse, `on_hand`, `backorder_limit`, version.
const INSERT_LEVEL: &str = "INSERT INTO stock (sku, warehouse, on_hand, backorder_limit, version)
    VALUES ($1, $2, $3, $4, $5)";

/// The same.
const UPDATE_LEVEL: &str = "UPDATE stock SET on_hand = $3, backorder_limit = $4, version = $5
    WHERE sku = $1 AND warehouse = $2";

#[async_trait]
impl<D: Dialect> DeductionStore for SqlStore<D> {
    async fn deduct(&self, deduction: &Deduction, method: SqlMethod) -> Result<AttemptOutcome> {
        match method {
            SqlMethod::Guarded => {
                let write = ConditionalWrite::if_available(deduction);
                match self.conditional_write(write).await? {
                    Some(outcome) => Ok(outcome),
                    None => self.refusal(deduction).await,
                }
            }
            SqlMethod::RowLock => {
                let place = (&deduction.sku, &deduction.warehouse);
                let decide = |level: Option<StockLevel>| {
                    let remaining =
                        AttemptOutcome::decide(level.as_ref(), deduction.quantity.units())?;
                    let mut row = LedgerRow::from_deduction(deduction, None);
                    row.available_after = remaining;
                    Ok((row, deducted(remaining)))
                };
                let duplicate = || AttemptOutcome::Duplicate;
                let deadline = deduction.deadline;
                self.under_row_lock(place, deadline, duplicate, decide)
                    .await
            }
        }
    }

    fn max_batch(&self) -> usize {
        D::MAX_BATCH
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
    ) -> Result<AttemptOutcome> {
        let write = ConditionalWrite::from_read(deduction, read, condition);
        match (self.conditional_write(write).await?, condition) {
            (Some(outcome), _) => Ok(outcome),
            (None, Condition::None) => self.refusal(deduction).await,
            (None, Condition::Version) => Ok(AttemptOutcome::Conflict),
            (None, Condition::Fence(fence)) => self.fenced_refusal(deduction, fence).await,
        }
    }

    async fn late_attempt(&self, deduction: &Deduction, expiry: Expiry) -> Result<LateAttempt> {
        self.write_row(&deduction.sku, |connection| async move {
            let mut tx = connection.begin(D::WORDS.begin).await?;
            let clock = tx.fetch(statements::clock(&D::WORDS), &[]).await;
            let clock: Vec<(i64,)> = clock.map_err(before_commit)?;
            // The servers round to whole milliseconds.
            let late_attempt = if clock.iter().all(|(now,)| *now > expiry.at) {
                let place = values![deduction.sku.as_str(), deduction.warehouse.as_str()];
                let locked = statements::level(D::WORDS.lock_rows);
                let locked = tx.execute(locked, &place).await;
                locked.map_err(before_commit)?;
                let key = deduction.idempotency.as_ref();
                let (statement, identity) = recorded::<D>(deduction.operation, key);
                let found = tx.fetch(statement, &identity).await;
                let mut found: Vec<LedgerRow> = found.map_err(before_commit)?;
                found.pop().map(LedgerRow::movement).transpose()?.into()
            } else {
                LateAttempt::Alive
            };
            tx.roll_back().await;
            Ok(late_attempt)
        })
        .await
    }
}

#[async_trait]
impl<D: Dialect> LevelStore for SqlStore<D> {
    async fn set_level(&self, change: &LevelChange) -> Result<ChangeOutcome> {
        self.write_row(&change.sku, |connection| async move {
            let mut tx = connection.begin(D::WORDS.begin).await?;
            let sku = values![change.sku.as_str()];
            if let Some(lock_sku) = D::WORDS.lock_sku {
                let locked = tx.execute(lock_sku, &sku).await;
                locked.map_err(before_commit)?;
            }
            let locked = statements::levels_of_sku(D::WORDS.lock_rows);
            let existing = tx.fetch(locked, &sku).await;
            let existing = rows::levels(existing.map_err(before_commit)?);
            let planned = match PlannedLevel::new(change, &existing) {
                Ok(planned) => planned,
                Err(outcome) => {
                    tx.roll_back().await;
                    return Ok(outcome);
                }
            };
            let (level, created) = (&planned.level, planned.is_creation());
            let columns = values![
                level.sku.as_str(),
                level.warehouse.as_str(),
                level.on_hand,
                level.backorder_limit,
                level.version,
            ];
            let write = if created { INSERT_LEVEL } else { UPDATE_LEVEL };
            let written = tx.execute(write, &columns).await;
            written.map_err(conflict_if_duplicate)?;
            if created && D::WORDS.waits_for_inserts {
                let locked = statements::levels_of_sku(D::WORDS.lock_rows);
                let levels = tx.fetch(locked, &sku).await;
                let levels = rows::levels(levels.map_err(before_commit)?);
                if levels.len() > existing.len() + 1 {
                    // It may break the precondition.
                    let problem = "another transaction has created a level of the SKU";
                    return Err(StoreError::Aborted(problem.into()));
                }
            }
            let row = LedgerRow::from_level_change(change, &planned);
            let level = planned.level;
            Ok(match tx.record_and_commit(&row, change.deadline).await? {
                Inserted::New => ChangeOutcome::Done { level, created },
                Inserted::Duplicate => ChangeOutcome::Duplicate,
            })
        })
        .await
    }

    async fn adjust(&self, adjustment: &Adjustment) -> Result<ChangeOutcome> {
        let place = (&adjustment.sku, &adjustment.warehouse);
        let decide = |level| {
            let level = adjusted(adjustment, level)?;
            let row = LedgerRow::from_adjustment(adjustment, &level);
            let created = false;
            Ok((row, ChangeOutcome::Done { level, created }))
        };
        let duplicate = || ChangeOutcome::Duplicate;
        self.under_row_lock(place, adjustment.deadline, duplicate, decide)
            .await
    }

    async fn operation(&self, operation: OperationId) -> Result<Option<Movement>> {
        let (statement, identity) = recorded::<D>(operation, None);
        let found = self.select_movements(&self.readers, statement, &identity);
        Ok(found.await?.pop())
    }

    async fn reverse(&self, reversal: &Reversal, sale: &Movement) -> Result<ReversalOutcome> {
        self.take_back(reversal, sale).await
    }
}

impl<D: Dialect> SqlStore<D> {
    /// Makes a write that locks a row of this SKU. If it meets a locked row on a connection that does not
    /// wait, it is made again on one that does.
    pub(super) async fn write_row<T, F>(
        &self,
        sku: &Sku,
        write: impl Fn(PooledConnection<D>) -> F + Send,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send,
    {
        let mut connections = self.writers.for_row(sku);
        loop {
            let connection = connections.acquire().await?;
            match self.write(write(connection)).await {
                Err(error) if connections.again(&error) => {}
                written => return written,
            }
        }
    }

    /// Locks one level and lets `decide` compute its movement. Writes both and returns what `decide`
    /// returned with the movement, or `duplicate` if the ledger already has the operation.
    async fn under_row_lock<T: Send>(
        &self,
        (sku, warehouse): (&Sku, &Warehouse),
        deadline: Instant,
        duplicate: impl Fn() -> T + Send + Sync,
        decide: impl Fn(Option<StockLevel>) -> Result<(LedgerRow, T), T> + Send + Sync,
    ) -> Result<T> {
        let (duplicate, decide) = (&duplicate, &decide);
        self.write_row(sku, |connection| async move {
            let is_prompt = connection.is_prompt();
            let mut tx = connection.begin(D::WORDS.begin).await?;
            let place = values![sku.as_str(), warehouse.as_str()];
            let locked = statements::level(D::WORDS.lock_rows);
            let found = tx.fetch(locked, &place).await;
            let level = rows::levels(found.map_err(before_commit)?).pop();
            let level_version = level.as_ref().map_or(0, |level| level.version + 1);
            let (mut row, outcome) = match decide(level) {
                Ok(decided) => decided,
                Err(refused) => {
                    tx.roll_back().await;
                    return Ok(refused);
                }
            };
            row.level_version = level_version;
            let change = values![sku.as_str(), warehouse.as_str(), row.delta];
            let changed = tx.execute(CHANGE_ON_HAND, &change).await;
            changed.map_err(before_commit)?;
            let recorded = tx.record_and_commit(&row, deadline).await;
            let recorded = self.find_key_in_flight(recorded, &row, is_prompt).await;
            Ok(match recorded? {
                Inserted::New => outcome,
                Inserted::Duplicate => duplicate(),
            })
        })
        .await
    }

    /// `None` if the condition does not hold.
    async fn conditional_write(
        &self,
        mut write: ConditionalWrite<'_>,
    ) -> Result<Option<AttemptOutcome>> {
        let mut connections = self.writers.for_row(&write.row.sku);
        loop {
            let connection = connections.acquire().await?;
            let written = self.write(D::conditional_write(connection, &mut write));
            match written.await {
                Err(error) if connections.again(&error) => {}
                written => {
                    let written = self.find_key_in_flight(written, &write.row, false).await;
                    return written.map_err(|error| write.failed(error));
                }
            }
        }
    }

    /// Returns `written`. If it waited for a lock although another transaction is recording its key, that
    /// is the reason to tell the caller. A write `is_prompt` if it did not wait; it is made again.
    pub(super) async fn find_key_in_flight<T>(
        &self,
        written: Result<T>,
        row: &LedgerRow,
        is_prompt: bool,
    ) -> Result<T> {
        let (error, key, begin) = match (written, &row.idempotency_key) {
            (Err(StoreError::LockWait(error)), Some(key)) if !is_prompt => {
                match D::WORDS.begin_read_uncommitted {
                    Some(begin) => (error, key, begin),
                    None => return Err(StoreError::LockWait(error)),
                }
            }
            (written, _) => return written,
        };
        let pool = self.writers.for_sku(&row.sku);
        // Boxed, so that it takes no place in the future of a write that meets no lock.
        let found = Box::pin(self.read(2 * READ, async {
            let mut tx = pool.begin(begin).await?;
            let found = tx.fetch(FIND_KEY, &values![&*row.caller, &**key]).await;
            let found: Vec<(i64,)> = found.map_err(before_commit)?;
            tx.roll_back().await;
            Ok(!found.is_empty())
        }));
        // Without a look-up, the wait is all that is known. The write may be made again.
        Err(match found.await {
            Ok(true) => StoreError::KeyInFlight(error),
            Ok(false) | Err(_) => StoreError::LockWait(error),
        })
    }

    /// Why SQL refused to take the units, by the level as it is now.
    async fn refusal(&self, deduction: &Deduction) -> Result<AttemptOutcome> {
        let level = self.level(&deduction.sku, &deduction.warehouse).await?;
        Ok(AttemptOutcome::refused(
            level.as_ref(),
            deduction.quantity.units(),
        ))
    }

    /// Why a write on condition of `fence` was refused, by the fence that the row has now.
    async fn fenced_refusal(&self, deduction: &Deduction, fence: &Fence) -> Result<AttemptOutcome> {
        let place = values![deduction.sku.as_str(), deduction.warehouse.as_str()];
        let pool = self.lookups().for_sku(&deduction.sku);
        let last = self.select(&pool, FENCE, &place).await?.pop();
        Ok(AttemptOutcome::write_refused(last, fence))
    }
}

impl<D: Dialect> Transaction<D> {
    /// Records a movement in the transaction that wrote its level, and commits both. Rolls back if
    /// the ledger already has the operation.
    ///
    /// # Errors
    /// [`StoreError::Aborted`] if the message arrived too late for the caller's `deadline`.
    pub(super) async fn record_and_commit(
        mut self,
        row: &LedgerRow,
        deadline: Instant,
    ) -> Result<Inserted> {
        let [available, level_version, reverses, returned, expiry] = &*NEXT_PARAMETERS;
        let Words { now, no_table, .. } = D::WORDS;
        let statement = Statement::built(format!(
            "INSERT INTO movement ({}, reverses, returned)
            SELECT {}, {available}, {level_version}, {reverses}, {returned}{no_table}
            WHERE {now} < {expiry}",
            *INSERT_COLUMNS, *INSERT_PARAMETERS
        ));
        let expires_at = self.expiry(deadline).at;
        let others = values![
            row.available_after,
            row.level_version,
            row.reverses,
            row.returned,
            expires_at,
        ];
        let values = [&row.known()[..], &others].concat();
        let answer = self.execute(statement, &values).await;
        let is_late = matches!(answer, Ok(0));
        let waits_for_its_key = !D::EMBEDDED && D::WORDS.begin_read_uncommitted.is_none();
        let recorded = inserted(answer, waits_for_its_key && row.idempotency_key.is_some())?;
        if is_late {
            self.roll_back().await;
            return Err(StoreError::Aborted("the last message was too late".into()));
        }
        match recorded {
            Inserted::New => self.commit().await?,
            Inserted::Duplicate => self.roll_back().await,
        }
        Ok(recorded)
    }
}
