//! `PostgreSQL`.
//!
//! Guarantees: READ COMMITTED, set for every session, so that a statement that waited for a row
//! decides by what the row has become; locks, statements and idle transactions are bounded by the
//! server itself. Deliberately not here: retries of whole operations ([`stocklock_core::deduct`]).

use std::sync::Arc;

use async_trait::async_trait;

use super::driver_error::{Verdict, classify};
use super::level_change::{MAX_UNITS, plan};
use super::pool::{Lease, Pool, Pulse, failed};
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

use connect::PostgresServer;
pub(super) use connect::migrate;

/// A transaction on a connection of the pool.
type Transaction = pool::Transaction<PostgresServer>;

/// Stock in `PostgreSQL`.
#[derive(Debug)]
pub(super) struct PostgresStore {
    pool: Pool<PostgresServer>,
    /// One connection, which no sale uses: the question whether the database is there must not
    /// queue behind the sales, nor be answered from memory.
    probe: Pool<PostgresServer>,
}

impl PostgresStore {
    pub(super) fn open(
        url: &str,
        options: &StoreOptions,
        pulse: &Arc<Pulse>,
    ) -> Result<Self, String> {
        let server = PostgresServer::at(url, options)?;
        Ok(Self {
            pool: Pool::new(server.clone(), options, pulse),
            probe: Pool::new(server, &options.of_probe(), pulse),
        })
    }

    async fn connection(&self) -> Result<Lease<PostgresServer>, StoreError> {
        self.pool.acquire().await
    }

    async fn begin(&self) -> Result<Transaction, StoreError> {
        self.pool.begin(None).await
    }

    /// Inserts the movement; answers whether it is new to the ledger.
    async fn insert(&self, tx: &mut Transaction, record: &LedgerRow) -> Result<bool, StoreError> {
        let inserted = bind_record!(sqlx::query(sql::INSERT_MOVEMENT), record)
            .bind(record.available_after)
            .execute(&mut **tx)
            .await;
        pool::recorded(inserted.map(drop), record.idempotency_key.is_some())
    }
}

#[async_trait]
impl StockStore for PostgresStore {
    fn backend(&self) -> &'static str {
        "postgres"
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.probe.ping().await
    }

    async fn unsafe_settings(&self) -> Result<Vec<String>, StoreError> {
        connect::unsafe_settings(&mut *self.connection().await?).await
    }

    async fn level(
        &self,
        sku: &Sku,
        warehouse: &Warehouse,
    ) -> Result<Option<StockLevel>, StoreError> {
        let mut connection = self.connection().await?;
        let row = sqlx::query_as(sql::LEVEL)
            .bind(sku.as_str())
            .bind(warehouse.as_str())
            .fetch_optional(&mut *connection)
            .await;
        let row = connection.done(row)?;
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
        let mut connection = self.connection().await?;
        let row = sqlx::query_as(sql::RECORDED)
            .bind(operation.0)
            .bind(idempotency.map(|idempotency| idempotency.caller.as_str()))
            .bind(idempotency.map(|idempotency| idempotency.key.as_str()))
            .fetch_optional(&mut *connection)
            .await;
        let row = connection.done(row)?;
        row.map(LedgerRow::movement).transpose()
    }

    async fn set_level(&self, change: &LevelChange) -> Result<ChangeOutcome, StoreError> {
        let mut tx = self.begin().await?;
        sqlx::query(sql::LOCK_SKU)
            .bind(change.sku.as_str())
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
        let existing = sqlx::query_as(sql::LEVELS_OF_SKU_LOCKED)
            .bind(change.sku.as_str())
            .fetch_all(&mut *tx)
            .await
            .map_err(failed)?;
        let planned = match plan(change, &rows::levels(existing)?) {
            Ok(planned) => planned,
            Err(refused) => {
                tx.roll_back().await;
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
            tx.roll_back().await;
            return Ok(ChangeOutcome::Duplicate);
        }
        tx.commit().await?;
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
                tx.roll_back().await;
                let level = self.level(&adjustment.sku, &adjustment.warehouse).await?;
                return Ok(ChangeOutcome::refused(level, adjustment.delta));
            }
        };
        if level.on_hand.abs() > MAX_UNITS {
            tx.roll_back().await;
            return Ok(ChangeOutcome::TooLarge);
        }
        let record = LedgerRow::from_adjustment(adjustment, &level);
        if !self.insert(&mut tx, &record).await? {
            tx.roll_back().await;
            return Ok(ChangeOutcome::Duplicate);
        }
        tx.commit().await?;
        Ok(ChangeOutcome::Done {
            level,
            created: false,
        })
    }

    async fn levels_of(&self, sku: &Sku) -> Result<Vec<StockLevel>, StoreError> {
        let mut connection = self.connection().await?;
        let found = sqlx::query_as(sql::LEVELS_OF_SKU)
            .bind(sku.as_str())
            .fetch_all(&mut *connection)
            .await;
        rows::levels(connection.done(found)?)
    }

    async fn levels(
        &self,
        after: Option<&LevelCursor>,
        limit: u32,
    ) -> Result<Vec<StockLevel>, StoreError> {
        let mut connection = self.connection().await?;
        let found = sqlx::query_as(sql::LEVELS)
            .bind(after.map_or("", |cursor| cursor.sku.as_str()))
            .bind(after.map_or("", |cursor| cursor.warehouse.as_str()))
            .bind(i64::from(limit))
            .fetch_all(&mut *connection)
            .await;
        rows::levels(connection.done(found)?)
    }

    async fn movements(&self, filter: &MovementFilter) -> Result<Vec<Movement>, StoreError> {
        let mut connection = self.connection().await?;
        let found = sqlx::query_as(sql::MOVEMENTS)
            .bind(filter.sku.as_str())
            .bind(filter.warehouse.as_ref().map(Warehouse::as_str))
            .bind(filter.kind.map(MovementKind::as_str))
            .bind(filter.reference.as_deref())
            .bind(filter.before.map(|operation| operation.0))
            .bind(i64::from(filter.limit))
            .fetch_all(&mut *connection)
            .await;
        let found = connection.done(found)?;
        found.into_iter().map(LedgerRow::movement).collect()
    }

    async fn audit(&self, sku: &Sku) -> Result<Vec<Audit>, StoreError> {
        let mut connection = self.connection().await?;
        let found = sqlx::query_as(sql::AUDIT)
            .bind(sku.as_str())
            .fetch_all(&mut *connection)
            .await;
        connection
            .done(found)?
            .into_iter()
            .map(|row: AuditRow| Ok(row.into()))
            .collect()
    }

    async fn close(&self) {
        self.pool.close().await;
        self.probe.close().await;
    }
}
