//! The store of stock and ledger, and the counters in front of it.
//!
//! [`connect`] opens one of the SQL databases: SQLite, MariaDB/MySQL or PostgreSQL. The `sql` module has
//! each transaction once, for all three. One contract suite (`tests/it/store_contract.rs`) runs on all
//! of them. [`RedisCounters`] has the counters in Redis, which can refuse a deduction and not make it.

use std::time::Duration;

use stocklock_core::ports::{AttemptOutcome, StoreError};

mod all_audits;
mod clock;
mod counter;
mod sql;

pub use all_audits::AllAudits;
pub use counter::{RedisCounters, RedisOptions};
pub use sql::{
    ApiKeys, Checkpoints, Feed, KeyList, LedgerQueries, OTHER_CONNECTIONS, OperationQueries, Store,
    Webhook, Webhooks,
};
pub use sql::{commit_warnings, connect, migrate, migrate_with, urls_of};

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
