//! SQLite, embedded: one writer connection, and readers beside it.
//!
//! Guarantees: WAL with `synchronous=FULL`, so that an acknowledged sale survives a power cut. Every
//! write begins with `BEGIN IMMEDIATE`, because SQLite refuses the first write of a read
//! transaction if another connection has written since. `BEGIN IMMEDIATE` also locks every row.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use sqlx::migrate::{MigrateError, Migration};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Sqlite, SqliteConnection};

use super::conditional_write::ConditionalWrite;
use super::dialect::Dialect;
use super::errors::{self, Inserted};
use super::migration::{self, Exclusion, MigrationServer, migrations};
use super::pool::{self, PooledConnection, Server, StatementEnd};
use super::statement::{query, values};
use super::statements::{Files, driver};
use super::write::{Session, Write, Written, json};
use crate::{AttemptOutcome, Result};

impl Dialect for SqliteFile {
    const NAME: &'static str = "sqlite";

    const FILES: Files = [
        include_str!("sqlite/words.sql"),
        include_str!("sqlite/write.sql"),
    ];

    const KEEPS_PLANS: bool = true;

    const WAITS_FOR_INSERTS: bool = false;

    /// No message limits it. The more deductions share a commit, the fewer wait for the disk.
    const MAX_BATCH: usize = 1_000;

    /// One transaction with several statements. SQLite runs in this process, so one combined
    /// statement would save no round trip.
    async fn conditional_write(
        connection: PooledConnection<Self>,
        write: &mut ConditionalWrite<'_>,
    ) -> Result<Option<AttemptOutcome>> {
        let mut tx = connection.begin(Self::texts().begin.as_str()).await?;
        write.send_on(&tx);
        let update = (write.statement)(Self::texts());
        let mut updated = tx.rows(update, &write.values()).await?;
        let Some((available, level_version)) = updated.pop() else {
            tx.roll_back().await;
            return Ok(None);
        };
        let mut row = write.row;
        row.available_after = available;
        row.level_version = level_version;
        let recorded = tx.record_and_commit(&row, write.deadline).await?;
        Ok(Some(match recorded {
            Inserted::New => AttemptOutcome::Deducted {
                remaining: available,
            },
            Inserted::Duplicate => AttemptOutcome::Duplicate,
        }))
    }

    /// One transaction with several statements, as for one deduction.
    async fn write(session: Session<Self>, write: &Write<'_>) -> Result<Written> {
        let mut tx = match session {
            Session::Fresh(connection) => connection.begin(Self::texts().begin.as_str()).await?,
            Session::Open(tx) => tx,
        };
        let (own, levels) = (Self::texts(), write.levels_json());
        let values = values![&*levels, write.expires_at];
        let updated: Vec<(String, String, i64, i64)> = tx.rows(&own.update_levels, &values).await?;
        if updated.is_empty() || (write.is_whole() && updated.len() < write.levels().len()) {
            tx.roll_back().await;
            return Ok(Written::Levels(Vec::new()));
        }
        let after: HashMap<_, _> = updated
            .iter()
            .map(|(sku, warehouse, available, version)| {
                ((sku.as_str(), warehouse.as_str()), (*available, *version))
            })
            .collect();
        let only = write.only_level();
        let all_hold =
            only.is_some() && write.movements().all(|movement| movement.held().is_some());
        let movements = write.movements().filter_map(|movement| {
            let place = write.place(movement.level);
            let (available, version) = after.get(&place)?;
            let usual = movement.usual(
                available + movement.units_after,
                version - movement.movements_after,
            );
            Some((movement, usual, only.is_none().then_some(place)))
        });
        let rows: Vec<_> = movements.collect();
        let number = rows.len() as u64;
        let (insert, rows) = if all_hold {
            let held = rows.into_iter().map(|(row, usual, _)| (usual, row.held()));
            (&own.insert_held, json(held))
        } else {
            let rows = rows.into_iter();
            let rows: Vec<_> = rows
                .map(|(row, usual, level)| (usual, row.rest(None), level))
                .collect();
            let insert = match (rows.iter().any(|(_, rest, _)| rest.is_some()), &only) {
                (false, Some(_)) => &own.insert_plain,
                (true, Some(_)) => &own.insert_rest,
                (false, None) => &own.insert_plain_of_levels,
                (true, None) => &own.insert_rest_of_levels,
            };
            (insert, json(rows.into_iter()))
        };
        let (sku, warehouse) = only
            .map(|level| (level.sku.as_str(), level.warehouse.as_str()))
            .unzip();
        let values = values![&*rows, write.strategy(), write.expires_at, sku, warehouse];
        let inserted = tx.execute(insert, &values).await;
        // Each row compares the clock with the expiry.
        let is_late = matches!(inserted, Ok(rows) if rows != number);
        match errors::inserted(inserted, false)? {
            Inserted::New if !is_late => {
                tx.commit().await?;
                let available = |(place, _)| {
                    let (available, _) = after.get(&write.place(place))?;
                    Some((place, *available))
                };
                Ok(Written::Levels(
                    write.levels().filter_map(available).collect(),
                ))
            }
            Inserted::New => {
                tx.roll_back().await;
                Ok(Written::Levels(Vec::new()))
            }
            Inserted::Duplicate => {
                tx.roll_back().await;
                Ok(Written::Duplicate)
            }
        }
    }

    /// Always empty, because this process sets the relevant settings when it opens a connection.
    async fn unsafe_settings(_: &mut PooledConnection<Self>) -> sqlx::Result<Vec<String>> {
        Ok(Vec::new())
    }
}

/// Whether each connection would get a separate database. sqlx's names for this are `:memory:` and
/// `mode=memory`; SQLite's is an empty file name.
fn is_in_memory(url: &str) -> bool {
    let rest = url.strip_prefix("sqlite:").unwrap_or(url);
    let rest = rest.strip_prefix("//").unwrap_or(rest);
    let (file, parameters) = rest.split_once('?').unwrap_or((rest, ""));
    matches!(file, "" | ":memory:")
        || form_urlencoded::parse(parameters.as_bytes())
            .any(|(key, value)| key == "mode" && value == "memory")
}

fn options(url: &str) -> Result<SqliteConnectOptions, String> {
    let options = SqliteConnectOptions::from_str(url).map_err(|error| error.to_string())?;
    if is_in_memory(url) {
        return Err(
            "each connection to an in-memory SQLite database opens a separate database: \
             name a file, as in sqlite://stocklock.db"
                .to_owned(),
        );
    }
    Ok(options
        .create_if_missing(true)
        // Otherwise sqlx warns about a statement that takes a second. Waiting that long for another
        // writer is normal.
        .disable_statement_logging()
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full))
}

/// How many steps of its virtual machine SQLite makes before it asks whether a statement must end: less
/// than a millisecond of work.
const STEPS: i32 = 1_000;

/// The file, and how long its connections wait for locks of other processes.
#[derive(Debug, Clone)]
pub(crate) struct SqliteFile {
    options: SqliteConnectOptions,
    /// How long a statement may take, if that is limited.
    limit: Option<Duration>,
}

impl From<SqliteConnectOptions> for SqliteFile {
    fn from(options: SqliteConnectOptions) -> Self {
        Self {
            options,
            limit: None,
        }
    }
}

impl SqliteFile {
    pub(crate) fn at(url: &str) -> Result<Self, String> {
        Ok(options(url)?.into())
    }

    /// Without a busy timeout. The pool waits for the write lock, so no thread blocks in SQLite.
    ///
    /// SQLite keeps the old pages of a statement with many rows until its end: here in memory, not in a file
    /// of their own. A checkpoint writes each changed page once, so a long log (32 MiB) has fewer of them.
    pub(crate) fn for_writer(&self) -> Self {
        let options = self.options.clone().busy_timeout(Duration::ZERO);
        let options = options.pragma("temp_store", "memory");
        let options = options.pragma("wal_autocheckpoint", "8000");
        options.pragma("cache_size", "-16384").into()
    }

    /// With the time limit that servers have for statements. The writer has none.
    pub(crate) fn for_readers(&self, wait_limit: Duration) -> Self {
        Self {
            options: self.options.clone().busy_timeout(wait_limit),
            limit: Some(pool::statement_limit(wait_limit)),
        }
    }

    pub(crate) fn for_migration(url: &str) -> Result<Self, String> {
        Ok(options(url)?.busy_timeout(migration::LOCK_LIMIT).into())
    }
}

impl Server for SqliteFile {
    const EMBEDDED: bool = true;

    /// A statement that writes would wait for other writers.
    const CHECK_WRITABLE: &'static str = "SELECT 1";

    type Connection = SqliteConnection;

    driver!(query::<Sqlite>);

    async fn open(&self) -> sqlx::Result<SqliteConnection> {
        self.options.connect().await
    }

    async fn limit_statements(
        &self,
        connection: &mut SqliteConnection,
    ) -> sqlx::Result<Option<Arc<StatementEnd>>> {
        let Some(limit) = self.limit else {
            return Ok(None);
        };
        let end = Arc::new(StatementEnd::new(limit));
        let asked = Arc::clone(&end);
        let mut handle = connection.lock_handle().await?;
        handle.set_progress_handler(STEPS, move || !asked.is_over());
        Ok(Some(end))
    }
}

impl MigrationServer for SqliteFile {
    fn migrations() -> Vec<Migration> {
        migrations!(
            1 "initial" "sqlite/0001_initial.sql",
            3 "holds" "sqlite/0003_holds.sql",
            4 "keys" "sqlite/0004_keys.sql",
            5 "events" "sqlite/0005_events.sql",
        )
    }

    async fn refusals(&self, _: &mut SqliteConnection) -> sqlx::Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// SQLite has no lock that outlives a transaction, so one of two processes that start together
    /// may fail. When it tries again, the other one is done.
    async fn try_lock(&self, _: &mut SqliteConnection) -> Result<Option<Exclusion>, MigrateError> {
        Ok(Some(migration::until_closed()))
    }

    /// Each migration is one transaction.
    async fn prepare(_: &mut SqliteConnection, _: &Migration) -> sqlx::Result<()> {
        Ok(())
    }

    async fn check_schema(_: &mut SqliteConnection) -> sqlx::Result<()> {
        Ok(())
    }

    fn explain(&self, error: &MigrateError) -> String {
        let file = self.options.get_filename().display().to_string();
        migration::explain_file(error, &file)
    }
}

#[cfg(test)]
mod tests;
