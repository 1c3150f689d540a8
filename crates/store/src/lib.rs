//! The stores: where levels and movements live.
//!
//! Each SKU has one home, SQL or Redis. [`StoreRouter`] implements the ports of `stocklock-core` and
//! sends each operation to the store of its SKU's home. The `sql` module has each transaction once,
//! for SQLite, MariaDB/MySQL and PostgreSQL. The `redis` module keeps levels in Redis and their
//! ledger in SQL; `journal` is what connects the two. One contract suite
//! (`tests/it/store_contract.rs`) runs on all of them.

use std::time::Duration;

use stocklock_core::ports::{AttemptOutcome, ChangeOutcome, RedisMethod, StoreError};

mod all_audits;
mod clock;
mod journal;
mod redis;
mod router;
mod sql;

pub use self::redis::{
    BEAT_EVERY, Cached, JournalConsumer, JournalReport, Miss, OnRedisLoss, RedisOptions,
    RejectedEntry, Repair, Repaired, SharedLevels, WatchOn,
};
pub use all_audits::AllAudits;
pub use router::{StoreRouter, Stores, connect};
pub use sql::{LedgerQueries, OTHER_CONNECTIONS, finish_migration, migrate};

/// What an operation of a store returns.
type Result<T, E = StoreError> = std::result::Result<T, E>;

/// How to reach a database, and how long to wait for it.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// The maximum number of connections for writes; SQLite: for reads.
    pub pool_size: u32,
    /// How long an operation may wait for a connection, for a row lock, or for SQLite's writer.
    pub wait_limit: Duration,
}
