//! The contract of every store: one list of tests that runs on SQLite, MariaDB, PostgreSQL and
//! Redis. A test names a back end only if the back ends differ.

mod changes;
mod contention;
mod creations;
mod deadlines;
mod deductions;
mod duplicates;
mod differential;
mod fenced;
pub(crate) mod fixture;
mod ledger;
mod migrations;
mod requirements;
mod servers;
mod upgrades;
