//! The laboratory: the race that shows which strategies oversell, and what the race needs to run.
//!
//! 1. [`race`]: sells a fresh SKU with each strategy over HTTP and judges the result.
//! 2. [`delay`]: proxies that add network latency between replicas and their servers.
//! 3. [`processes`]: replicas as child processes.
//! 4. [`recording`] and [`page`]: a race as a page and a report show it.
//!
//! This crate contains no code of the service. It knows replicas only by their HTTP interface.

pub mod delay;
pub mod page;
pub mod processes;
pub mod race;
pub mod recording;

/// The directory of a temporary database. Dropping it deletes the database.
pub use tempfile::TempDir;
