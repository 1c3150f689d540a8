//! Stocklock: an inventory service that never oversells, and shows why.
//!
//! `POST /stock/deduct` takes stock; a closed set of strategies decides how that deduction is
//! protected. The modules in reading order, from the inside out:
//!
//! 1. [`stock`]: the domain; no I/O.
//! 2. [`strategy`]: the ways to protect a deduction, one file each, and the one `match`.
//! 3. [`change`]: changes of a level that are not sales.
//! 4. [`store`]: where levels and movements live; one trait, three databases, and Redis.
//! 5. [`http`], [`server`]: the edge.
//! 6. [`app`], [`config`]: how a replica is put together.
//! 7. [`lab`]: the race, which shows who oversells.
//! 8. [`cli`]: the commands.
//!
//! What always holds: a level and its movement commit together or not at all (in Redis: with the
//! journal's entry, which the ledger follows); a 2xx follows that
//! commit; the ledger takes an operation, and an idempotency key, once.

pub use stocklock_core::{deduct, ports, stock, strategy};
pub use stocklock_lab as lab;
pub use stocklock_store as store;

pub mod locks;
pub mod metrics;
mod supervise;

pub mod http;
pub mod server;

pub mod app;
pub mod config;
pub mod descriptors;
pub mod telemetry;

pub mod replicas;

pub mod cli;
