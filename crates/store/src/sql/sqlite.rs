//! SQLite, embedded: one writer connection, and readers beside it.
//!
//! Guarantees: WAL with `synchronous=FULL`, so that an acknowledged sale survives a power cut. Every
//! write begins with `BEGIN IMMEDIATE`, because a read transaction cannot become a writing one while
//! others write. `BEGIN IMMEDIATE` also locks every row.

use sqlx::Sqlite;

use super::conditional_write::{ConditionalWrite, WriteOutcome};
use super::dialect::{Dialect, Statement, query, run_statements};
use super::errors::{Inserted, before_commit};
use super::journal_sink::insert_entry;
use super::ledger_row::LedgerRow;
use super::pool::{Pool, PooledConnection, Transaction};
use super::statements::Words;
use crate::Result;

mod connect;

pub(super) use connect::{SqliteFile, migrate};

impl Dialect for SqliteFile {
    const NAME: &'static str = "sqlite";

    const WORDS: Words = Words {
        begin: "BEGIN IMMEDIATE",
        begin_set_level: "BEGIN IMMEDIATE",
        begin_snapshot: "BEGIN",
        lock_sku: None,
        lock_rows: "",
        created_at: "created_at",
        integer: "integer",
        entry_time: "strftime('%Y-%m-%dT%H:%M:%fZ', $millis / 1000.0, 'unixepoch')",
        no_table: "",
    };

    run_statements!(query::<Sqlite>);

    /// One transaction. There are no messages to save.
    async fn conditional_write(
        pool: &Pool<Self>,
        write: &ConditionalWrite<'_>,
    ) -> Result<WriteOutcome> {
        let mut tx = pool.begin(Self::WORDS.begin).await?;
        let updated = tx
            .fetch(Statement::built(write.update()), &write.values())
            .await;
        let updated: Vec<(i64,)> = updated.map_err(before_commit)?;
        let Some(&(available,)) = updated.first() else {
            tx.roll_back().await;
            return Ok(WriteOutcome::Refused);
        };
        let mut row = write.row.clone();
        row.available_after = available;
        Ok(match tx.record_and_commit(&row).await? {
            Inserted::New => WriteOutcome::Written { available },
            Inserted::Duplicate => WriteOutcome::Duplicate,
        })
    }

    /// One by one. A duplicate is skipped.
    async fn insert_entries(tx: &mut Transaction<Self>, rows: &[&LedgerRow]) -> sqlx::Result<()> {
        for row in rows {
            insert_entry(tx, row).await?;
        }
        Ok(())
    }

    /// None: each connection sets what matters when it is opened.
    async fn unsafe_settings(_: &mut PooledConnection<Self>) -> sqlx::Result<Vec<String>> {
        Ok(Vec::new())
    }
}
