//! Distributed locks that say when they are lost.
//!
//! A [`LockManager`] acquires, renews and releases locks on one lock server, its [back
//! end](backend::Backend): Redis, ZooKeeper, this process alone, or a model of a server for tests.
//! What it hands out is a [`LockGuard`].
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use stocklock_locks::{LockManager, local::LocalBackend};
//!
//! // Or redis::RedisBackend::new("redis://127.0.0.1/")?, or
//! // zookeeper::ZooKeeperBackend::new("127.0.0.1:2181")?.
//! let locks = LockManager::new(LocalBackend::new());
//!
//! let guard = locks.lock("sku:42").wait(Duration::from_secs(2)).acquire().await?;
//! tokio::select! {
//!     reason = guard.lost() => println!("somebody else may hold it now: {reason}"),
//!     () = async { /* ... work, and write with guard.token() as a condition ... */ } => {}
//! }
//! guard.release().await;
//! locks.shutdown().await;
//! # Ok(()) }
//! ```
//!
//! # What is promised
//!
//! - **One holder at a time**, while the server keeps its data and the holder looks at what its guard
//!   says. No lock service can promise more: a process that is paused past its lease wakes up and
//!   goes on. So every guard has a fencing [`token`](LockGuard::token), and the guarded resource
//!   must compare it.
//! - **A loss is told**, and told early: [`LockGuard::lost`] completes before the server may grant
//!   the lock to another. The deadline is counted from the instant at which the last renewal that
//!   succeeded was *sent*, on a [`Clock`](clock::Clock) that goes on while the machine is suspended,
//!   with a timer that waits for no answer. A loss is final.
//! - **Nothing is left behind.** Acquiring runs in a task of its own: its future may be dropped at
//!   any await point. Dropping a guard releases in the background. Each acquisition has a random
//!   nonce, so that a request whose answer was lost is repeated without harm.
//! - **A holder that hangs is ended**, by [`max_hold`](LockBuilder::max_hold) or
//!   [`max_renewals`](LockBuilder::max_renewals).
//! - **Waiting is woken, not polled**, and only one task of a process contends for a lock on the
//!   server; the others stand in a line before it.
//!
//! # What is not here
//!
//! Locks are exclusive. There are no read-write locks, semaphores or barriers, no quorum over
//! several Redis servers, no Redis Cluster, no Sentinel, and no lock of a SQL database. Nobody waits
//! until a lock is durable or replicated, and a lock that was lost is not kept from the next one for
//! a while (a lock-delay). What that means when a server fails stands with the back ends.
//!
//! # Features
//!
//! `redis` and `zookeeper`, both on by default; `default-features = false` for neither.

mod acquire;
pub mod backend;
mod builder;
pub mod clock;
mod error;
mod guard;
mod hold;
#[cfg(any(feature = "redis", feature = "zookeeper"))]
mod link;
pub mod local;
mod manager;
pub mod memory;
pub mod metrics;
mod nonce;
mod queue;
#[cfg(feature = "redis")]
pub mod redis;
mod release;
mod retry;
mod table;
mod token;
mod topics;
mod watchdog;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

pub use builder::LockBuilder;
pub use error::{BackendError, LockError, LostReason};
pub use guard::{LockGuard, LockState, Lost, ReleaseOutcome};
pub use manager::{LockManager, ManagerBuilder};
pub use nonce::Nonce;
pub use token::Token;
