//! `SQLite`, embedded: one writer connection, readers beside it.
//!
//! Guarantees: WAL with `synchronous=FULL`, so that what is acknowledged survives a power cut;
//! every write begins with `BEGIN IMMEDIATE`, since a read transaction cannot become a writing one
//! while others write. Another process may write to the same file: the writer asks again every few
//! milliseconds until the wait limit. Deliberately not here: retries of whole operations
//! ([`stocklock_core::deduct`]).

use std::time::Duration;

use async_trait::async_trait;
use sqlx::{Sqlite, SqlitePool, Transaction};
use tokio::time::Instant;

use super::driver_error::{Verdict, classify};
use super::level_change::{MAX_UNITS, plan};
use super::pool::failed;
use super::record::bind_record;
use super::sql::ledger_row::LedgerRow;
use super::sql::rows::{self, AuditRow, LevelRow};
use super::{AttemptOutcome, ChangeOutcome, StockStore, StoreError, StoreOptions, pool};
use stocklock_core::stock::{
    Adjustment, Audit, Deduction, Fence, Idempotency, LevelChange, LevelCursor, Movement,
    MovementFilter, MovementKind, OperationId, Sku, StockLevel, Warehouse,
};

mod connect;
mod deduct;
mod mirror;
mod sql;
mod transaction;

pub(super) use connect::migrate;

/// The longest pause between two attempts to become the writer.
const WRITER_PAUSE: Duration = Duration::from_millis(5);

/// Stock in a `SQLite` file.
#[derive(Debug)]
pub(super) struct SqliteStore {
    /// One connection: within this process, writers queue here in order.
    writer: SqlitePool,
    readers: SqlitePool,
    probe: SqlitePool,
    wait_limit: Duration,
}

impl SqliteStore {
    pub(super) fn open(url: &str, options: &StoreOptions) -> Result<Self, String> {
        let connect = connect::options(url)?;
        let pool = |size| connect::pool(size, options);
        let reader = connect.clone().busy_timeout(options.wait_limit);
        Ok(Self {
            // The wait for another process's transaction is ours, in `begin`.
            writer: pool(1).connect_lazy_with(connect.busy_timeout(Duration::ZERO)),
            readers: pool(options.pool_size).connect_lazy_with(reader.clone()),
            probe: pool(1).connect_lazy_with(reader),
            wait_limit: options.wait_limit,
        })
    }

    fn unread(&self, error: sqlx::Error) -> StoreError {
        transaction::failed_in(&self.readers, error)
    }

    /// Becomes the one writer of the file.
    async fn begin(&self) -> Result<Transaction<'static, Sqlite>, StoreError> {
        let started = Instant::now();
        loop {
            match self.writer.begin_with("BEGIN IMMEDIATE").await {
                Err(error)
                    if classify(&error) == Verdict::RollBackThenRetry
                        && started.elapsed() < self.wait_limit =>
                {
                    tokio::time::sleep(WRITER_PAUSE.mul_f64(fastrand::f64())).await;
                }
                begun => return begun.map_err(|error| transaction::failed_in(&self.writer, error)),
            }
        }
    }

    /// Inserts the movement; answers whether it is new to the ledger.
    async fn insert(
        &self,
        tx: &mut Transaction<'static, Sqlite>,
        record: &LedgerRow,
    ) -> Result<bool, StoreError> {
        let inserted = bind_record!(sqlx::query(sql::INSERT_MOVEMENT), record)
            .bind(record.available_after)
            .execute(&mut **tx)
            .await;
        // No key can be in flight here: whoever is recording one is the only writer.
        pool::recorded(inserted.map(drop), false)
    }
}

#[async_trait]
impl StockStore for SqliteStore {
    fn backend(&self) -> &'static str {
        "sqlite"
    }

    async fn ping(&self) -> Result<(), StoreError> {
        transaction::ping(&self.probe).await
    }

    async fn unsafe_settings(&self) -> Result<Vec<String>, StoreError> {
        Ok(Vec::new()) // All that matters is set on each connection when it is opened.
    }

    async fn level(
        &self,
        sku: &Sku,
        warehouse: &Warehouse,
    ) -> Result<Option<StockLevel>, StoreError> {
        let row = sqlx::query_as(sql::LEVEL)
            .bind(sku.as_str())
            .bind(warehouse.as_str())
            .fetch_optional(&self.readers)
            .await
            .map_err(|error| self.unread(error))?;
        row.map(|row: LevelRow| row.try_into()).transpose()
    }

    async fn deduct_if_available(
        &self,
        deduction: &Deduction,
    ) -> Result<AttemptOutcome, StoreError> {
        deduct::if_available(self, deduction).await
    }

    async fn deduct_under_row_lock(
        &self,
        deduction: &Deduction,
    ) -> Result<AttemptOutcome, StoreError> {
        deduct::under_row_lock(self, deduction).await
    }

    async fn deduct_if_version(
        &self,
        deduction: &Deduction,
        read: &StockLevel,
    ) -> Result<AttemptOutcome, StoreError> {
        deduct::if_version(self, deduction, read).await
    }

    async fn deduct_if_fenced(
        &self,
        deduction: &Deduction,
        read: &StockLevel,
        fence: &Fence,
    ) -> Result<AttemptOutcome, StoreError> {
        deduct::if_fenced(self, deduction, read, fence).await
    }

    async fn overwrite(
        &self,
        deduction: &Deduction,
        read: &StockLevel,
    ) -> Result<AttemptOutcome, StoreError> {
        deduct::overwrite(self, deduction, read).await
    }

    async fn recorded(
        &self,
        _: &Sku,
        operation: OperationId,
        idempotency: Option<&Idempotency>,
    ) -> Result<Option<Movement>, StoreError> {
        let row = sqlx::query_as(sql::RECORDED)
            .bind(operation.0)
            .bind(idempotency.map(|idempotency| idempotency.caller.as_str()))
            .bind(idempotency.map(|idempotency| idempotency.key.as_str()))
            .fetch_optional(&self.readers)
            .await
            .map_err(|error| self.unread(error))?;
        row.map(LedgerRow::movement).transpose()
    }

    async fn set_level(&self, change: &LevelChange) -> Result<ChangeOutcome, StoreError> {
        let mut tx = self.begin().await?;
        let existing = sqlx::query_as(sql::LEVELS_OF_SKU)
            .bind(change.sku.as_str())
            .fetch_all(&mut *tx)
            .await
            .map_err(failed)?;
        let planned = match plan(change, &rows::levels(existing)?) {
            Ok(planned) => planned,
            Err(refused) => {
                transaction::roll_back(tx).await;
                return Ok(refused);
            }
        };
        let level = &planned.level;
        let written = if planned.created {
            sqlx::query(sql::INSERT_LEVEL)
                .bind(level.sku.as_str())
                .bind(level.warehouse.as_str())
                .bind(level.on_hand)
                .bind(level.backorder_limit)
                .bind(level.version)
                .bind(level.home.as_str())
                .execute(&mut *tx)
                .await
        } else {
            sqlx::query(sql::UPDATE_LEVEL)
                .bind(level.sku.as_str())
                .bind(level.warehouse.as_str())
                .bind(level.on_hand)
                .bind(level.backorder_limit)
                .bind(level.version)
                .execute(&mut *tx)
                .await
        };
        written.map_err(|error| pool::conflict_if_duplicate(error, failed))?;
        let record = LedgerRow::from_level_change(change, planned.before, level);
        if !self.insert(&mut tx, &record).await? {
            transaction::roll_back(tx).await;
            return Ok(ChangeOutcome::Duplicate);
        }
        transaction::commit(tx).await?;
        Ok(ChangeOutcome::Done {
            level: planned.level,
            created: planned.created,
        })
    }

    async fn adjust(&self, adjustment: &Adjustment) -> Result<ChangeOutcome, StoreError> {
        let mut tx = self.begin().await?;
        let row = sqlx::query_as(sql::ADJUST)
            .bind(adjustment.sku.as_str())
            .bind(adjustment.warehouse.as_str())
            .bind(adjustment.delta)
            .fetch_optional(&mut *tx)
            .await;
        let level = match row {
            Ok(Some(row)) => rows::level(row)?,
            Err(error) if classify(&error) != Verdict::CheckViolated => return Err(failed(error)),
            _ => {
                transaction::roll_back(tx).await;
                let level = self.level(&adjustment.sku, &adjustment.warehouse).await?;
                return Ok(ChangeOutcome::refused(level, adjustment.delta));
            }
        };
        if level.on_hand.abs() > MAX_UNITS {
            transaction::roll_back(tx).await;
            return Ok(ChangeOutcome::TooLarge);
        }
        let record = LedgerRow::from_adjustment(adjustment, &level);
        if !self.insert(&mut tx, &record).await? {
            transaction::roll_back(tx).await;
            return Ok(ChangeOutcome::Duplicate);
        }
        transaction::commit(tx).await?;
        Ok(ChangeOutcome::Done {
            level,
            created: false,
        })
    }

    async fn levels_of(&self, sku: &Sku) -> Result<Vec<StockLevel>, StoreError> {
        let found = sqlx::query_as(sql::LEVELS_OF_SKU)
            .bind(sku.as_str())
            .fetch_all(&self.readers)
            .await;
        rows::levels(found.map_err(|error| self.unread(error))?)
    }

    async fn levels(
        &self,
        after: Option<&LevelCursor>,
        limit: u32,
    ) -> Result<Vec<StockLevel>, StoreError> {
        let found = sqlx::query_as(sql::LEVELS)
            .bind(after.map_or("", |cursor| cursor.sku.as_str()))
            .bind(after.map_or("", |cursor| cursor.warehouse.as_str()))
            .bind(limit)
            .fetch_all(&self.readers)
            .await;
        rows::levels(found.map_err(|error| self.unread(error))?)
    }

    async fn movements(&self, filter: &MovementFilter) -> Result<Vec<Movement>, StoreError> {
        let found = sqlx::query_as(sql::MOVEMENTS)
            .bind(filter.sku.as_str())
            .bind(filter.warehouse.as_ref().map(Warehouse::as_str))
            .bind(filter.kind.map(MovementKind::as_str))
            .bind(filter.reference.as_deref())
            .bind(filter.before.map(|operation| operation.0))
            .bind(filter.limit)
            .fetch_all(&self.readers)
            .await
            .map_err(|error| self.unread(error))?;
        found.into_iter().map(LedgerRow::movement).collect()
    }

    async fn audit(&self, sku: &Sku) -> Result<Vec<Audit>, StoreError> {
        let found = sqlx::query_as(sql::AUDIT)
            .bind(sku.as_str())
            .fetch_all(&self.readers)
            .await;
        found
            .map_err(|error| self.unread(error))?
            .into_iter()
            .map(|row: AuditRow| Ok(row.into()))
            .collect()
    }

    async fn close(&self) {
        self.writer.close().await;
        self.readers.close().await;
        self.probe.close().await;
    }
}
