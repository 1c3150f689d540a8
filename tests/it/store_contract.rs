//! The contract of every store: one list of tests that runs on SQLite, MariaDB and PostgreSQL. The tests
//! of single operations also run on the explorer's model database. A test names a back end only if the
//! back ends differ.

mod batches;
mod checkpoints;
mod contention;
mod creations;
mod deadlines;
mod deductions;
mod differential;
mod duplicates;
mod fenced;
pub(crate) mod fixture;
mod late_batches;
mod ledger_order;
mod merged;
mod migrations;
mod orders;
mod requirements;
mod server_errors;
mod servers;
mod upgrades;
