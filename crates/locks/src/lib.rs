//! Distributed locks that report their own loss.
//!
//! A [`LockManager`] acquires, renews and releases locks on one lock server. A [back
//! end](backend::Backend) connects it to that server: Redis, several Redis masters (`RedLock`),
//! ZooKeeper, a SQL database, the current process, or an in-memory model of a server for tests. A held
//! lock is a [`LockGuard`].
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use stocklock_locks::{LockManager, local::LocalBackend};
//!
//! // Or redis::RedisBackend::new("redis://127.0.0.1/")?, or
//! // zookeeper::ZooKeeperBackend::new("127.0.0.1:2181")?, or
//! // sql::SqlBackend::new("postgres://127.0.0.1/shop")?.
//! let locks = LockManager::new(LocalBackend::new());
//!
//! let guard = locks.lock("sku:42").wait(Duration::from_secs(2)).acquire().await?;
//! tokio::select! {
//!     reason = guard.lost() => println!("another client may hold the lock now: {reason}"),
//!     () = async { /* ... work; pass guard.token() to every write ... */ } => {}
//! }
//! guard.release().await;
//! locks.shutdown().await;
//! # Ok(()) }
//! ```
//!
//! # Guarantees
//!
//! - **One holder at a time**, as long as the server keeps its data, the holder obeys its guard, and
//!   no operator revokes the lock.
//!   No lock service can promise more: a process that is paused for longer than its lease continues
//!   to work when it wakes up. Every guard therefore has a fencing [`token`](LockGuard::token), and
//!   the guarded resource must compare it. Only the guards of `RedLock` have none, and their type says
//!   so.
//! - **A loss is reported early.** As long as the server keeps the lock for its lease,
//!   [`LockGuard::lost`] completes before the server can grant the lock to another client. Its deadline
//!   counts from the moment at which the last successful renewal was *sent*. The
//!   [`Clock`](clock::Clock) keeps running while the machine is suspended, and the timer does not wait
//!   for an answer. A loss is final. While a virtual machine is paused, and after it was restored from a
//!   snapshot, no clock of the guest has counted that time: the loss is found at the next renewal, and another
//!   client may have the lock until then. If the server loses the lock, or an operator
//!   [revokes](LockBuilder::revoke) it, the next client has it at once, and the old holder learns of its
//!   loss at its next renewal.
//! - **Nothing is left behind.** The future of an acquisition or a release may be dropped at any
//!   await point; a task then completes or undoes its work. Dropping a guard releases the lock in the
//!   background. Each acquisition has a random nonce, so a request can be repeated safely if its
//!   answer was lost.
//! - **A holder that hangs loses its lock** after [`max_hold`](LockBuilder::max_hold), 24 hours by default,
//!   or [`max_renewals`](LockBuilder::max_renewals). Only leaders have no limit by default.
//!   Leases are at most 24 hours, so the lock of a dead process is free after that time. (On ZooKeeper it is
//!   free after the session timeout.)
//! - **Waiters are woken; they do not poll**, except on MariaDB, MySQL, SQLite and `RedLock`, and on Redis
//!   with [`polling`](redis::RedisBuilder::polling). One task
//!   per process and lock contends on the server; on ZooKeeper, another one waits behind it. The other
//!   tasks wait in a local queue.
//!
//! # Seeing inside
//!
//! [`LockBuilder::inspect`] shows the holders and waiters of a name, and [`LockBuilder::revoke`] takes a lock
//! away from a holder. [`metrics::LockHooks`] counts. Each acquisition is a `tracing` span `acquire_lock` of
//! the level debug, with the fields `lock`, `label`, `waited` and `outcome`.
//!
//! # What is built on locks
//!
//! - [`MultiLock`]: several locks, all or none.
//! - [`LockBuilder::campaign`] and [`lead`](LockBuilder::lead): leader election.
//! - [`LockBuilder::once_per`]: a job that starts at most once per period over all processes. It needs a
//!   server with fencing tokens.
//! - [`coordination`]: shared numbers, latches and barriers.
//! - Guarded writes, which refuse an outdated holder: `sql::fence`, `redis::FENCED_COMMAND`,
//!   `zookeeper::ZooKeeperBackend::write_if_held`.
//!
//! The [`guide`] has a page for each of them, recipes, and a table of the names that Redisson and Curator
//! use.
//!
//! # Limitations
//!
//! - Read-write locks, permits, numbers, latches and barriers exist on Redis, on ZooKeeper and within one
//!   process, but not in a SQL database, and not on several Redis masters.
//! - An acquisition does not wait until the lock is durable or replicated.
//! - There is no lock delay: the next client may acquire a lost lock at once.
//!
//! The module of each back end describes what this means when a server fails.
//!
//! # Features
//!
//! `redis`, `sql` and `zookeeper`. All are on by default. `tower` adds the module `tower`, a layer that
//! locks a route of a web service.

mod api;
pub mod backend;
mod backends;
mod claims;
mod held;
mod shared;

pub use api::builder::{LockBuilder, Ran};
pub use api::guard::{LockGuard, ReleaseOutcome};
pub use api::lost::Lost;
pub use api::manager::{LockManager, ManagerBuilder};
pub use api::multi::{MultiGuard, MultiLock};
pub use api::periodic::OncePer;
#[cfg(feature = "tower")]
pub use api::tower;
pub use api::{coordination, guide};
#[cfg(feature = "redis")]
pub use backends::redis;
#[cfg(feature = "sql")]
pub use backends::sql;
#[cfg(feature = "zookeeper")]
pub use backends::zookeeper;
pub use backends::{local, memory};
pub use claims::{Claimant, LockView};
pub use held::hold::LockState;
pub use shared::error::{BackendError, LockError, LostReason};
pub use shared::nonce::Nonce;
pub use shared::token::Token;
pub use shared::{clock, metrics};
