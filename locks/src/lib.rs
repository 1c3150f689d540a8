//! Locks.

mod acquire;
pub mod backend;
mod builder;
pub mod clock;
mod error;
mod guard;
mod hold;
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
