//! The pool of a database's connections.
//!
//! sqlx's own pool needs two extra round trips per deduction, which itself may need one: it pings
//! each connection that comes back, and must be told to roll back each time, because sqlx 0.9.0 can
//! hand out a connection that is still inside a transaction whose `begin` was abandoned
//! (<https://github.com/transact-rs/sqlx/issues/4385>). A write on such a connection is never
//! committed.
//!
//! So the connections are sqlx's and the pool is deadpool's. A [`PooledConnection`] knows its state
//! when it comes back:
//! - every request answered, no transaction open: it is reused;
//! - every request answered, a transaction open: it is rolled back, then reused;
//! - a request not answered, because its caller is gone: the server still works on it. So the connection
//!   counts as used until the answer comes or the server has ended the statement, and is closed then;
//! - an answer half read, the server has ended the session, or an error that the table of errors does
//!   not have: it is closed.
//!
//! A pool keeps no connection that was idle for a while. If the server allows no more connections, a pool
//! that has none gets one of another pool, and a pool that has some does with them.
//!
//! If the server refuses a write, for example after a failover, the connections that were open then
//! are closed, so that the next requests reach the server that accepts writes now. The same if a
//! statement that a connection has prepared is out of date.
//!
//! Requests wait for a connection in a fair queue: see [`queue`]. Of the connections for writes, at most
//! half wait for rows that others have locked. A write that gets another one and meets a locked row is
//! made again on one of these: see [`row`].

use std::time::Duration;

mod connection;
mod health;
mod opener;
mod queue;
mod row;
mod server;
mod statement_end;
mod warnings;

pub(super) use connection::{PooledConnection, Transaction};
pub(super) use health::ServerHealth;
pub(super) use opener::Server;
pub(super) use server::Pool;
pub(super) use statement_end::StatementEnd;
pub use warnings::commit_warnings;
pub(super) use warnings::{committed, with_warning};

/// How long a statement may take until the server ends it: a lock wait in whole seconds, the unit of
/// the coarsest server, and half a second for the work. MySQL ends only reads this way; its writes
/// are bounded by their lock waits.
pub(super) fn statement_limit(wait_limit: Duration) -> Duration {
    Duration::from_secs(lock_wait_seconds(wait_limit)) + Duration::from_millis(500)
}

/// The wait limit in whole seconds, rounded up. At least one, because zero means "no limit".
pub(super) fn lock_wait_seconds(wait_limit: Duration) -> u64 {
    let seconds = wait_limit.as_secs() + u64::from(wait_limit.subsec_nanos() > 0);
    seconds.max(1)
}
