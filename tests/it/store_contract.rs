//! What every store keeps to: one list of cases, run on SQLite, MariaDB, PostgreSQL and Redis.
//!
//! A case names no back end unless the back ends differ in it; each runs as a test of its own for
//! each of them.

mod changes;
mod contention;
mod deductions;
mod fenced;
pub(crate) mod fixture;
mod ledger;
mod migrations;
mod servers;
