//! Stocklock: an inventory service that never oversells, and shows why.
//!
//! `POST /stock/deduct` takes stock. A closed set of strategies decides how a deduction is
//! protected. The domain and the strategies are in `stocklock-core`, the databases in
//! `stocklock-store`, the locks in `stocklock-locks`. This crate is the service around them:
//!
//! 1. [`config`]: the settings.
//! 2. [`app`]: builds a replica from the settings and runs it.
//! 3. [`http`]: routes, handlers, errors. `server`: the accept loop.
//! 4. `access`: the API keys that this replica knows. `client`: requests to other processes.
//!    `events`: who waits for events. `webhooks`: signed messages to receivers.
//! 5. [`locks`], [`metrics`]: adapters for the ports of the core. `level_cache`: levels for reads that
//!    accept an older answer.
//! 6. [`lab`]: the race, which shows which strategy oversells.
//! 7. [`cli`]: the commands. [`telemetry`]: the log's way to stderr.
//!
//! A level and its movement commit together or not at all. The service sends a 2xx only after that commit. The
//! ledger records an operation, and an idempotency key, once.

pub use stocklock_core::{deduct, level_service, ports, spawn, stock, strategy};
pub use stocklock_lab as lab;
pub use stocklock_store as store;

mod access;
mod client;
mod level_cache;
pub mod locks;
pub mod metrics;

mod crowd;
pub mod http;
mod server;

pub mod app;
pub mod config;
mod descriptors;
mod events;
mod webhooks;

pub mod cli;
pub mod telemetry;
