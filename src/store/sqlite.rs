//! `SQLite`, embedded: one writer connection, readers beside it.
//!
//! Guarantees: WAL with `synchronous=FULL`, so that what is acknowledged survives a power cut;
//! every write begins with `BEGIN IMMEDIATE`, since a read transaction cannot become a writing one
//! while others write. Another process may write to the same file: the writer asks again every few
//! milliseconds until the wait limit. Deliberately not here: retries of whole operations
//! ([`crate::settle`]).

use std::str::FromStr;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{Sqlite, SqlitePool, Transaction};
use tokio::time::Instant;

use super::driver_error::{Phase, Verdict, classify, store_error};
use super::level_change::{MAX_UNITS, plan};
use super::record::Record;
use super::{Attempt, Change, StockStore, StoreError, StoreOptions, pool, rows};
use crate::stock::{
    Adjustment, Audit, Deduction, Idempotency, LevelChange, LevelCursor, Movement, MovementFilter,
    MovementKind, OperationId, Sku, StockLevel, Warehouse,
};

const LEVEL: &str = "SELECT sku, warehouse, on_hand, held, backorder_limit, version, home
    FROM stock WHERE sku = ?1 AND warehouse = ?2";

const LEVELS_OF_SKU: &str = "SELECT sku, warehouse, on_hand, held, backorder_limit, version, home
    FROM stock WHERE sku = ?1 ORDER BY warehouse";

const LEVELS: &str = "SELECT sku, warehouse, on_hand, held, backorder_limit, version, home
    FROM stock WHERE (sku, warehouse) > (?1, ?2) ORDER BY sku, warehouse LIMIT ?3";

const DEDUCT_IF_AVAILABLE: &str = "UPDATE stock
    SET on_hand = on_hand - ?3, version = version + 1
    WHERE sku = ?1 AND warehouse = ?2 AND on_hand - held >= ?3 - backorder_limit
    RETURNING on_hand - held + backorder_limit";

const DEDUCT: &str = "UPDATE stock
    SET on_hand = on_hand - ?3, version = version + 1
    WHERE sku = ?1 AND warehouse = ?2";

const DEDUCT_IF_VERSION: &str = "UPDATE stock
    SET on_hand = ?3, version = version + 1
    WHERE sku = ?1 AND warehouse = ?2 AND version = ?4";

const OVERWRITE: &str = "UPDATE stock
    SET on_hand = ?3, version = version + 1
    WHERE sku = ?1 AND warehouse = ?2";

const ADJUST: &str = "UPDATE stock
    SET on_hand = on_hand + ?3, version = version + 1
    WHERE sku = ?1 AND warehouse = ?2
    RETURNING sku, warehouse, on_hand, held, backorder_limit, version, home";

const INSERT_LEVEL: &str = "INSERT INTO stock
    (sku, warehouse, on_hand, backorder_limit, version, home) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";

const UPDATE_LEVEL: &str = "UPDATE stock SET on_hand = ?3, backorder_limit = ?4, version = ?5
    WHERE sku = ?1 AND warehouse = ?2";

const INSERT_MOVEMENT: &str = "INSERT INTO movement
    (operation_id, line, sku, warehouse, kind, delta, available_after, read_version, strategy,
     durability, caller, idempotency_key, request_hash, reason, reference)
    VALUES (?1, 0, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)";

const RECORDED: &str = "SELECT operation_id, sku, warehouse, kind, delta, available_after,
        read_version, strategy, durability, request_hash, reason, reference, created_at
    FROM movement
    WHERE operation_id = ?1 AND line = 0 OR caller = ?2 AND idempotency_key = ?3
    ORDER BY operation_id = ?1 DESC LIMIT 1";

const MOVEMENTS: &str = "SELECT operation_id, sku, warehouse, kind, delta, available_after,
        read_version, strategy, durability, request_hash, reason, reference, created_at
    FROM movement
    WHERE sku = ?1 AND (?2 IS NULL OR warehouse = ?2) AND (?3 IS NULL OR kind = ?3)
        AND (?4 IS NULL OR reference = ?4) AND (?5 IS NULL OR operation_id < ?5)
    ORDER BY operation_id DESC, line DESC LIMIT ?6";

const AUDIT: &str = "SELECT s.warehouse,
        coalesce(sum(CASE WHEN m.kind <> 'deducted' THEN m.delta END), 0),
        coalesce(sum(CASE WHEN m.kind = 'deducted' THEN -m.delta END), 0),
        s.on_hand, s.held, s.backorder_limit
    FROM stock s LEFT JOIN movement m ON m.sku = s.sku AND m.warehouse = s.warehouse
    WHERE s.sku = ?1
    GROUP BY s.warehouse ORDER BY s.warehouse";

/// The longest pause between two attempts to become the writer.
const WRITER_PAUSE: Duration = Duration::from_millis(5);

/// Stock in a `SQLite` file.
#[derive(Debug)]
pub(super) struct SqliteStore {
    /// One connection: within this process, writers queue here in order.
    writer: SqlitePool,
    readers: SqlitePool,
    wait_limit: Duration,
}

impl SqliteStore {
    pub(super) fn open(url: &str, options: &StoreOptions) -> Result<Self, String> {
        let connect = connect_options(url)?;
        let pool = || {
            SqlitePoolOptions::new()
                .acquire_timeout(options.wait_limit)
                .test_before_acquire(false)
                .after_release(|connection, _| Box::pin(pool::roll_back_sqlite(connection)))
        };
        Ok(Self {
            // The wait for another process's transaction is ours, in `begin`.
            writer: pool()
                .max_connections(1)
                .connect_lazy_with(connect.clone().busy_timeout(Duration::ZERO)),
            readers: pool()
                .max_connections(options.pool_size)
                .connect_lazy_with(connect.busy_timeout(options.wait_limit)),
            wait_limit: options.wait_limit,
        })
    }

    fn error(&self, error: sqlx::Error) -> StoreError {
        store_error(error, Phase::Body, pool::is_busy(&self.writer))
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
                begun => return begun.map_err(|error| self.error(error)),
            }
        }
    }

    async fn commit(&self, tx: Transaction<'static, Sqlite>) -> Result<(), StoreError> {
        tx.commit()
            .await
            .map_err(|error| store_error(error, Phase::Commit, false))
    }

    /// Inserts the movement; answers whether it is new to the ledger.
    async fn insert(
        &self,
        tx: &mut Transaction<'static, Sqlite>,
        record: &Record<'_>,
    ) -> Result<bool, StoreError> {
        let inserted = sqlx::query(INSERT_MOVEMENT)
            .bind(record.operation)
            .bind(record.sku)
            .bind(record.warehouse)
            .bind(record.kind.as_str())
            .bind(record.delta)
            .bind(record.available_after)
            .bind(record.read_version)
            .bind(record.strategy)
            .bind(record.durability.as_str())
            .bind(record.caller())
            .bind(record.key())
            .bind(record.hash())
            .bind(record.reason)
            .bind(record.reference)
            .execute(&mut **tx)
            .await;
        match inserted {
            Ok(_) => Ok(true),
            Err(error) if classify(&error) == Verdict::Duplicate => Ok(false),
            Err(error) => Err(self.error(error)),
        }
    }

    /// Records a deduction in the transaction that wrote the level, and commits both.
    async fn record(
        &self,
        mut tx: Transaction<'static, Sqlite>,
        deduction: &Deduction,
        remaining: i64,
        read: Option<&StockLevel>,
    ) -> Result<Attempt, StoreError> {
        if !self
            .insert(&mut tx, &Record::of_deduction(deduction, remaining, read))
            .await?
        {
            pool::roll_back(tx).await;
            return Ok(Attempt::Duplicate);
        }
        self.commit(tx).await?;
        Ok(Attempt::Deducted { remaining })
    }

    /// What to answer where the guarded statement changed nothing.
    async fn refused(&self, deduction: &Deduction) -> Result<Attempt, StoreError> {
        Ok(
            match self.level(&deduction.sku, &deduction.warehouse).await? {
                Some(level) => Attempt::Insufficient {
                    available: level.available(),
                },
                None => Attempt::UnknownSku,
            },
        )
    }
}

#[async_trait]
impl StockStore for SqliteStore {
    fn backend(&self) -> &'static str {
        "sqlite"
    }

    async fn ping(&self) -> Result<(), StoreError> {
        sqlx::query("SELECT 1")
            .execute(&self.readers)
            .await
            .map_err(|e| self.error(e))?;
        Ok(())
    }

    async fn unsafe_settings(&self) -> Result<Vec<String>, StoreError> {
        Ok(Vec::new()) // All that matters is set on each connection when it is opened.
    }

    async fn level(
        &self,
        sku: &Sku,
        warehouse: &Warehouse,
    ) -> Result<Option<StockLevel>, StoreError> {
        let row = sqlx::query_as(LEVEL)
            .bind(sku.as_str())
            .bind(warehouse.as_str());
        let row = row
            .fetch_optional(&self.readers)
            .await
            .map_err(|error| self.error(error))?;
        row.map(rows::level).transpose()
    }

    async fn deduct_if_available(&self, deduction: &Deduction) -> Result<Attempt, StoreError> {
        let mut tx = self.begin().await?;
        let remaining = sqlx::query_scalar(DEDUCT_IF_AVAILABLE)
            .bind(deduction.sku.as_str())
            .bind(deduction.warehouse.as_str())
            .bind(deduction.quantity.units())
            .fetch_optional(&mut *tx)
            .await
            .map_err(|error| self.error(error))?;
        let Some(remaining) = remaining else {
            pool::roll_back(tx).await;
            return self.refused(deduction).await;
        };
        self.record(tx, deduction, remaining, None).await
    }

    async fn deduct_under_row_lock(&self, deduction: &Deduction) -> Result<Attempt, StoreError> {
        // BEGIN IMMEDIATE has locked every row already.
        let mut tx = self.begin().await?;
        let row = sqlx::query_as(LEVEL)
            .bind(deduction.sku.as_str())
            .bind(deduction.warehouse.as_str())
            .fetch_optional(&mut *tx)
            .await
            .map_err(|error| self.error(error))?;
        let Some(level) = row.map(rows::level).transpose()? else {
            pool::roll_back(tx).await;
            return Ok(Attempt::UnknownSku);
        };
        let remaining = level.available() - deduction.quantity.units();
        if remaining < 0 {
            pool::roll_back(tx).await;
            return Ok(Attempt::Insufficient {
                available: level.available(),
            });
        }
        sqlx::query(DEDUCT)
            .bind(deduction.sku.as_str())
            .bind(deduction.warehouse.as_str())
            .bind(deduction.quantity.units())
            .execute(&mut *tx)
            .await
            .map_err(|error| self.error(error))?;
        self.record(tx, deduction, remaining, None).await
    }

    async fn deduct_if_version(
        &self,
        deduction: &Deduction,
        read: &StockLevel,
    ) -> Result<Attempt, StoreError> {
        let mut tx = self.begin().await?;
        let written = sqlx::query(DEDUCT_IF_VERSION)
            .bind(deduction.sku.as_str())
            .bind(deduction.warehouse.as_str())
            .bind(read.on_hand - deduction.quantity.units())
            .bind(read.version)
            .execute(&mut *tx)
            .await
            .map_err(|error| self.error(error))?;
        if written.rows_affected() == 0 {
            pool::roll_back(tx).await;
            return Ok(Attempt::Stale);
        }
        let remaining = read.available() - deduction.quantity.units();
        self.record(tx, deduction, remaining, Some(read)).await
    }

    async fn overwrite(
        &self,
        deduction: &Deduction,
        read: &StockLevel,
    ) -> Result<Attempt, StoreError> {
        let mut tx = self.begin().await?;
        let written = sqlx::query(OVERWRITE)
            .bind(deduction.sku.as_str())
            .bind(deduction.warehouse.as_str())
            .bind(read.on_hand - deduction.quantity.units())
            .execute(&mut *tx)
            .await;
        match written {
            Ok(_) => {}
            // Somebody lowered the limit since it was read.
            Err(error) if classify(&error) == Verdict::CheckViolated => {
                pool::roll_back(tx).await;
                return self.refused(deduction).await;
            }
            Err(error) => return Err(self.error(error)),
        }
        let remaining = read.available() - deduction.quantity.units();
        self.record(tx, deduction, remaining, Some(read)).await
    }

    async fn recorded(
        &self,
        operation: OperationId,
        idempotency: Option<&Idempotency>,
    ) -> Result<Option<Movement>, StoreError> {
        let row = sqlx::query_as(RECORDED)
            .bind(operation.0)
            .bind(idempotency.map(|idempotency| idempotency.caller.as_str()))
            .bind(idempotency.map(|idempotency| idempotency.key.as_str()))
            .fetch_optional(&self.readers)
            .await
            .map_err(|error| self.error(error))?;
        row.map(rows::movement).transpose()
    }

    async fn set_level(&self, change: &LevelChange) -> Result<Change, StoreError> {
        let mut tx = self.begin().await?;
        let existing = sqlx::query_as(LEVELS_OF_SKU)
            .bind(change.sku.as_str())
            .fetch_all(&mut *tx)
            .await
            .map_err(|error| self.error(error))?;
        let planned = match plan(change, &rows::levels(existing)?) {
            Ok(planned) => planned,
            Err(refused) => {
                pool::roll_back(tx).await;
                return Ok(refused);
            }
        };
        let level = &planned.level;
        let written = if planned.created {
            sqlx::query(INSERT_LEVEL)
                .bind(level.sku.as_str())
                .bind(level.warehouse.as_str())
                .bind(level.on_hand)
                .bind(level.backorder_limit)
                .bind(level.version)
                .bind(level.home.as_str())
                .execute(&mut *tx)
                .await
        } else {
            sqlx::query(UPDATE_LEVEL)
                .bind(level.sku.as_str())
                .bind(level.warehouse.as_str())
                .bind(level.on_hand)
                .bind(level.backorder_limit)
                .bind(level.version)
                .execute(&mut *tx)
                .await
        };
        written.map_err(|error| pool::conflict_if_duplicate(error, |e| self.error(e)))?;
        let record = Record::of_level_change(change, planned.before, level);
        if !self.insert(&mut tx, &record).await? {
            pool::roll_back(tx).await;
            return Ok(Change::Duplicate);
        }
        self.commit(tx).await?;
        Ok(Change::Done {
            level: planned.level,
            created: planned.created,
        })
    }

    async fn adjust(&self, adjustment: &Adjustment) -> Result<Change, StoreError> {
        let mut tx = self.begin().await?;
        let row = sqlx::query_as(ADJUST)
            .bind(adjustment.sku.as_str())
            .bind(adjustment.warehouse.as_str())
            .bind(adjustment.delta)
            .fetch_optional(&mut *tx)
            .await;
        let level = match row {
            Ok(Some(row)) => rows::level(row)?,
            Ok(None) => {
                pool::roll_back(tx).await;
                return Ok(Change::UnknownSku);
            }
            Err(error) if classify(&error) == Verdict::CheckViolated => {
                pool::roll_back(tx).await;
                let level = self.level(&adjustment.sku, &adjustment.warehouse).await?;
                let available = level.map_or(0, |level| level.available());
                return Ok(Change::BelowLimit { available });
            }
            Err(error) => return Err(self.error(error)),
        };
        if level.on_hand.abs() > MAX_UNITS {
            pool::roll_back(tx).await;
            return Ok(Change::TooLarge);
        }
        if !self
            .insert(&mut tx, &Record::of_adjustment(adjustment, &level))
            .await?
        {
            pool::roll_back(tx).await;
            return Ok(Change::Duplicate);
        }
        self.commit(tx).await?;
        Ok(Change::Done {
            level,
            created: false,
        })
    }

    async fn levels_of(&self, sku: &Sku) -> Result<Vec<StockLevel>, StoreError> {
        let found = sqlx::query_as(LEVELS_OF_SKU)
            .bind(sku.as_str())
            .fetch_all(&self.readers)
            .await;
        rows::levels(found.map_err(|error| self.error(error))?)
    }

    async fn levels(
        &self,
        after: Option<&LevelCursor>,
        limit: u32,
    ) -> Result<Vec<StockLevel>, StoreError> {
        let found = sqlx::query_as(LEVELS)
            .bind(after.map_or("", |cursor| cursor.sku.as_str()))
            .bind(after.map_or("", |cursor| cursor.warehouse.as_str()))
            .bind(limit)
            .fetch_all(&self.readers)
            .await;
        rows::levels(found.map_err(|error| self.error(error))?)
    }

    async fn movements(&self, filter: &MovementFilter) -> Result<Vec<Movement>, StoreError> {
        let found = sqlx::query_as(MOVEMENTS)
            .bind(filter.sku.as_str())
            .bind(filter.warehouse.as_ref().map(Warehouse::as_str))
            .bind(filter.kind.map(MovementKind::as_str))
            .bind(filter.reference.as_deref())
            .bind(filter.before.map(|operation| operation.0))
            .bind(filter.limit)
            .fetch_all(&self.readers)
            .await
            .map_err(|error| self.error(error))?;
        found.into_iter().map(rows::movement).collect()
    }

    async fn audit(&self, sku: &Sku) -> Result<Vec<Audit>, StoreError> {
        let found = sqlx::query_as(AUDIT)
            .bind(sku.as_str())
            .fetch_all(&self.readers)
            .await;
        found
            .map_err(|error| self.error(error))?
            .into_iter()
            .map(rows::audit)
            .collect()
    }

    async fn close(&self) {
        self.writer.close().await;
        self.readers.close().await;
    }
}

fn connect_options(url: &str) -> Result<SqliteConnectOptions, String> {
    Ok(SqliteConnectOptions::from_str(url)
        .map_err(|error| error.to_string())?
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full))
}

/// Creates the file if need be and brings its schema up to date.
///
/// `SQLite` has no lock that outlives a transaction, so of two processes that start at once one may
/// fail; by its next attempt the other one is done.
pub(super) async fn migrate(url: &str) -> Result<(), String> {
    let options = connect_options(url)?.busy_timeout(pool::MIGRATION_LIMIT);
    pool::migrate_until_settled(|| {
        let options = options.clone();
        async move {
            use sqlx::ConnectOptions;
            let mut connection = options.connect().await?;
            sqlx::migrate!("migrations/sqlite")
                .run(&mut connection)
                .await?;
            Ok(())
        }
    })
    .await
}
