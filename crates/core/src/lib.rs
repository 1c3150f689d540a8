//! The core of Stocklock: what stock is, how a deduction is protected, and when a request is
//! answered. No I/O and no driver: databases, locks and metrics are behind the traits in [`ports`].
//!
//! In reading order:
//!
//! 1. [`stock`]: the domain. Values are built only by parsing, so they are always valid.
//! 2. [`plan`]: what operations make of stock: all rules.
//! 3. [`strategy`]: the ways to protect a deduction, one file each, and the one `match`.
//! 4. [`deduct`]: one deduction from the first attempt to the answer: retries, unknown outcomes,
//!    the lock, the bound on concurrent writes, and the scheduler, with which operations share transactions.
//! 5. [`level_service`]: every other change of stock.
//! 6. [`access`]: API keys.
//! 7. [`ports`]: what the core requires of stores, locks and metrics.
//! 8. [`whole`](mod@whole): whole numbers of JSON bodies, for the crates around the core.
//!
//! Invariants: every attempt of a request carries the same operation id. While the outcome of an attempt
//! is unknown, the request is not refused.

pub mod access;
pub mod deduct;
pub mod level_service;
#[cfg(feature = "model")]
pub mod model;
mod names;
pub mod plan;
pub mod ports;
pub mod spawn;
pub mod stock;
pub mod strategy;
pub mod trace;
pub mod whole;
