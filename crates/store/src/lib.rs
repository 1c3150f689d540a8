//! The stores: where levels and movements live.
//!
//! [`StockStore`] is the one door. Each method is one whole operation: a statement, or a
//! transaction from begin to commit. No connection and no transaction crosses it, so no strategy
//! can hold one across something else. `SQLite`, MariaDB/`MySQL` and `PostgreSQL` implement it in
//! a file each, with its statements and its settings in two files beside it, all in the same order,
//! so that a diff of two back ends is the dialect. Stock may also live in Redis, with its ledger in
//! SQL: then [`Stores`] has both behind the one door. One contract suite
//! (`tests/it/store_contract.rs`) runs on all.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use stocklock_core::ports::{AttemptOutcome, ChangeOutcome, RedisMethod, StoreError};
use stocklock_core::stock::{
    Adjustment, Audit, Deduction, Fence, Idempotency, LevelChange, LevelCursor, Movement,
    MovementFilter, OperationId, Sku, StockLevel, Warehouse,
};

mod driver_error;
mod journal;
mod level_change;
mod migration;
mod mirror;
mod mysql;
mod patient;
mod pool;
mod postgres;
mod record;
mod redis;
mod router;
mod sql;
mod sqlite;

pub use self::redis::{Follower, RedisOptions, WatchOn};
pub use driver_error::{Verdict, classify};
use mirror::Mirror;
use patient::Patient;
use pool::Pulse;
pub use router::{StoreRouter, Stores};

/// A store of levels and movements.
///
/// # Cancel safety
/// Dropping a returned future never leaves a transaction open nor half of an operation committed,
/// but it leaves the caller ignorant of the outcome. Deductions are therefore run in a task of
/// their own (see [`stocklock_core::deduct::Deductor`]).
#[async_trait]
pub trait StockStore: Send + Sync + fmt::Debug {
    /// The back end's name: `sqlite`, `mysql`, `postgres`.
    fn backend(&self) -> &'static str;

    /// One cheap round trip.
    async fn ping(&self) -> Result<(), StoreError>;

    /// The same with the Redis that stock lives in, where there is one.
    async fn ping_redis(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Settings of the server under which a promise of ours does not hold, a sentence for each
    /// that says what to set.
    async fn unsafe_settings(&self) -> Result<Vec<String>, StoreError>;

    /// Reads one level outside any transaction.
    async fn level(
        &self,
        sku: &Sku,
        warehouse: &Warehouse,
    ) -> Result<Option<StockLevel>, StoreError>;

    /// Takes the units by one guarded `UPDATE`, which itself refuses when there are too few.
    async fn deduct_if_available(
        &self,
        deduction: &Deduction,
    ) -> Result<AttemptOutcome, StoreError>;

    /// Locks the row, reads it, decides, writes.
    async fn deduct_under_row_lock(
        &self,
        deduction: &Deduction,
    ) -> Result<AttemptOutcome, StoreError>;

    /// Writes what follows from `read`, if the row still has the version that was read.
    async fn deduct_if_version(
        &self,
        deduction: &Deduction,
        read: &StockLevel,
    ) -> Result<AttemptOutcome, StoreError>;

    /// The same under a lock: also only if no later holder of it has written. What is written keeps
    /// the fence. The version is what makes it safe, for a holder that was overtaken may write
    /// *before* the next one does; the fence tells a lost lock from a lost race.
    async fn deduct_if_fenced(
        &self,
        deduction: &Deduction,
        read: &StockLevel,
        fence: &Fence,
    ) -> Result<AttemptOutcome, StoreError>;

    /// Writes what follows from `read`, whatever the row is by now: **not safe**, on purpose.
    async fn overwrite(
        &self,
        deduction: &Deduction,
        read: &StockLevel,
    ) -> Result<AttemptOutcome, StoreError>;

    /// Takes the units in one of Redis' own two ways; a SQL store has none.
    async fn deduct_in_redis(
        &self,
        deduction: &Deduction,
        _: RedisMethod,
    ) -> Result<AttemptOutcome, StoreError> {
        let level = self.level(&deduction.sku, &deduction.warehouse).await?;
        Ok(level.map_or(AttemptOutcome::UnknownSku, |level| {
            AttemptOutcome::WrongHome(level.home)
        }))
    }

    /// The movement that the ledger of this SKU holds under this operation, or else under this key:
    /// the one that the operation was tried with, if it was with one.
    async fn recorded(
        &self,
        sku: &Sku,
        operation: OperationId,
        idempotency: Option<&Idempotency>,
    ) -> Result<Option<Movement>, StoreError>;

    /// Sets a level, recording the difference as a movement.
    async fn set_level(&self, change: &LevelChange) -> Result<ChangeOutcome, StoreError>;

    /// Adds to or takes from a level.
    async fn adjust(&self, adjustment: &Adjustment) -> Result<ChangeOutcome, StoreError>;

    /// All levels of one SKU, in warehouse order.
    async fn levels_of(&self, sku: &Sku) -> Result<Vec<StockLevel>, StoreError>;

    /// Levels of all SKUs in (SKU, warehouse) order, from after `after`, at most `limit`.
    async fn levels(
        &self,
        after: Option<&LevelCursor>,
        limit: u32,
    ) -> Result<Vec<StockLevel>, StoreError>;

    /// The ledger of one SKU, newest operation first.
    async fn movements(&self, filter: &MovementFilter) -> Result<Vec<Movement>, StoreError>;

    /// Counter against ledger, for each warehouse of the SKU, from one consistent snapshot.
    async fn audit(&self, sku: &Sku) -> Result<Vec<Audit>, StoreError>;

    /// Closes every connection; operations under way end first.
    async fn close(&self);
}

/// How to reach a database, and how long to wait for it.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// The most connections that the pool may open.
    pub pool_size: u32,
    /// How long an operation may wait for a connection, for a row lock, or for the single writer.
    pub wait_limit: Duration,
}

impl StoreOptions {
    /// Those of the pool that readiness is asked on: one connection, which no sale uses.
    fn of_probe(&self) -> Self {
        Self {
            pool_size: 1,
            ..self.clone()
        }
    }
}

/// Opens the SQL store that the URL's scheme names: `sqlite:`, `mysql:`, `mariadb:`, `postgres:` or
/// `postgresql:`. Connections are opened when first needed. Stock that lives in Redis it refuses.
///
/// # Errors
/// A sentence that says what is wrong with the URL, without its password.
pub fn connect(url: &str, options: &StoreOptions) -> Result<Arc<dyn StockStore>, String> {
    Ok(connect_sql(url, options)?)
}

fn connect_sql(url: &str, options: &StoreOptions) -> Result<Arc<dyn Mirror>, String> {
    match scheme(url) {
        "sqlite" => Ok(Arc::new(sqlite::SqliteStore::open(url, options)?)),
        "mysql" | "mariadb" => {
            let pulse = Pulse::new(options.wait_limit);
            let store = mysql::MySqlStore::open(url, options, &pulse)?;
            Ok(Arc::new(Patient::new(store, pulse)))
        }
        "postgres" | "postgresql" => {
            let pulse = Pulse::new(options.wait_limit);
            let store = postgres::PostgresStore::open(url, options, &pulse)?;
            Ok(Arc::new(Patient::new(store, pulse)))
        }
        other => Err(unknown_scheme(other)),
    }
}

/// Brings the schema of the database at `url` up to date; several processes may do so at once.
///
/// # Errors
/// A sentence that says what failed, without the URL's password.
pub async fn migrate(url: &str) -> Result<(), String> {
    match scheme(url) {
        "sqlite" => sqlite::migrate(url).await,
        "mysql" | "mariadb" => mysql::migrate(url).await,
        "postgres" | "postgresql" => postgres::migrate(url).await,
        other => Err(unknown_scheme(other)),
    }
}

fn scheme(url: &str) -> &str {
    url.split_once(':').map_or("", |(scheme, _)| scheme)
}

fn unknown_scheme(scheme: &str) -> String {
    format!("`{scheme}:` is no database known here; use sqlite:, mysql:, mariadb: or postgres:")
}
