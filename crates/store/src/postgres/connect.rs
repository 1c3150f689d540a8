//! `PostgreSQL`: how to connect, what each session is set to, and what the server must be set to.

use std::str::FromStr;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection, Executor, PgConnection};

use super::sql;
use crate::pool::{self, Server};
use crate::{StoreError, StoreOptions, migration};

/// How long a transaction of ours may be idle before the server ends it and frees its rows: we
/// never pause inside of one, so whoever does is gone.
const IDLE_TRANSACTION_LIMIT: Duration = Duration::from_secs(10);

fn options(url: &str) -> Result<PgConnectOptions, String> {
    let options = PgConnectOptions::from_str(url)
        .map_err(|error| error.to_string())?
        // A statement may wait a second for a row: that is counted, and no warning each time.
        .disable_statement_logging();
    Ok(match options.get_application_name() {
        Some(_) => options,
        None => options.application_name("stocklock"),
    })
}

/// The server, and how its sessions are set up.
#[derive(Debug, Clone)]
pub(super) struct PostgresServer(PgConnectOptions);

impl PostgresServer {
    pub(super) fn at(url: &str, store: &StoreOptions) -> Result<Self, String> {
        Ok(Self(options(url)?.options(session(store.wait_limit))))
    }
}

impl Server for PostgresServer {
    type Connection = PgConnection;

    async fn open(&self) -> sqlx::Result<PgConnection> {
        self.0.connect().await
    }

    async fn run(connection: &mut PgConnection, statement: &'static str) -> sqlx::Result<()> {
        connection.execute(statement).await.map(drop)
    }

    /// Where there is nothing to roll back, a `ROLLBACK` alone would be answered by a WARNING, in
    /// the server's log too.
    async fn end_transaction(connection: &mut PgConnection) -> sqlx::Result<()> {
        match Self::run(connection, "BEGIN; ROLLBACK").await {
            // In a transaction that has failed, even `BEGIN` is refused.
            Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("25P02") => {
                Self::run(connection, "ROLLBACK").await
            }
            ended => ended,
        }
    }
}

/// The settings of every session but a migration's. `synchronous_commit` is the server's to
/// decide, and is checked at start.
fn session(wait_limit: Duration) -> [(&'static str, String); 4] {
    let milliseconds = |limit: Duration| limit.as_millis().max(1).to_string(); // Zero is "never".
    [
        ("default_transaction_isolation", "read committed".to_owned()),
        ("lock_timeout", milliseconds(wait_limit)),
        // A backstop for everything that is not a lock.
        (
            "statement_timeout",
            milliseconds(pool::statement_limit(wait_limit)),
        ),
        (
            "idle_in_transaction_session_timeout",
            milliseconds(IDLE_TRANSACTION_LIMIT),
        ),
    ]
}

/// Settings under which an acknowledged sale can be lost.
pub(super) async fn unsafe_settings(
    connection: &mut PgConnection,
) -> Result<Vec<String>, StoreError> {
    let (commit, standbys, fsync, full_pages): (String, String, String, String) =
        sqlx::query_as(sql::SETTINGS)
            .fetch_one(connection)
            .await
            .map_err(pool::failed)?;
    Ok(complaints(&commit, &standbys, &fsync, &full_pages))
}

/// One sentence for each setting that is unsafe.
fn complaints(commit: &str, standbys: &str, fsync: &str, full_pages: &str) -> Vec<String> {
    let mut found = Vec::new();
    if commit == "off" {
        found.push(
            "synchronous_commit is off: a crash loses sales that were acknowledged; set \
             synchronous_commit = on"
                .to_owned(),
        );
    } else if !standbys.is_empty() && matches!(commit, "local" | "remote_write") {
        found.push(format!(
            "synchronous_commit is {commit}: a sale is acknowledged before the standby has it on \
             disk, so a failover may lose it; set synchronous_commit = on"
        ));
    }
    if fsync == "off" {
        found.push("fsync is off: a power cut may destroy the database; set fsync = on".to_owned());
    }
    if full_pages == "off" {
        found.push(
            "full_page_writes is off: a power cut may leave half-written pages; set \
             full_page_writes = on"
                .to_owned(),
        );
    }
    found
}

/// Brings the schema up to date. Processes that do so at once take turns by sqlx's advisory lock.
pub(crate) async fn migrate(url: &str) -> Result<(), String> {
    let options = options(url)?;
    let server = format!("{}:{}", options.get_host(), options.get_port());
    let database = options.get_database().unwrap_or(options.get_username());
    let create_database = format!("CREATE DATABASE \"{database}\"");
    migration::until_settled(&server, migration::may_pass_on_a_server, || {
        let options = options.clone();
        async move {
            let mut connection = options.connect().await?;
            sqlx::migrate!("../../migrations/postgres")
                .run_direct(None, &mut connection, false)
                .await?;
            Ok(connection.close().await?)
        }
    })
    .await
    .map_err(|error| migration::explain(&error, &server, &create_database))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unsafe_setting_is_told_with_what_to_set() {
        for (settings, told) in [
            (("on", "", "on", "on"), &[][..]),
            (("local", "", "on", "on"), &[]),
            (("remote_apply", "standby", "on", "on"), &[]),
            (("off", "", "on", "on"), &["synchronous_commit = on"]),
            (("local", "s", "on", "on"), &["synchronous_commit = on"]),
            (("on", "", "off", "on"), &["fsync = on"]),
            (
                ("off", "", "off", "off"),
                &[
                    "synchronous_commit = on",
                    "fsync = on",
                    "full_page_writes = on",
                ],
            ),
        ] {
            let (commit, standbys, fsync, full_pages) = settings;
            let found = complaints(commit, standbys, fsync, full_pages);
            assert_eq!(found.len(), told.len(), "{settings:?}: {found:?}");
            for (found, set) in found.iter().zip(told) {
                assert!(found.ends_with(&format!("set {set}")), "{found}");
            }
        }
    }

    #[test]
    fn no_limit_of_a_session_is_ever_zero_which_would_be_none() {
        for (name, value) in session(Duration::ZERO) {
            assert_ne!(value, "0", "{name}");
        }
    }
}
