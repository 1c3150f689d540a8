//! The SQL stores: SQLite, MariaDB/MySQL and PostgreSQL.

pub(crate) mod ledger_row;
pub(crate) mod rows;
