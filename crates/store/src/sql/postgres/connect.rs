//! PostgreSQL: opens connections, sets up their sessions, checks the server's settings, and migrates
//! the schema.

use std::str::FromStr;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Executor, PgConnection};

use crate::StoreOptions;
use crate::sql::dialect::Dialect;
use crate::sql::pool::{self, Server};
use crate::sql::{migration, statements};

/// How long a transaction may be idle before the server ends it and frees its rows. This service
/// never pauses inside a transaction, so an idle one has lost its client.
const IDLE_TRANSACTION_LIMIT: Duration = Duration::from_secs(10);

fn options(url: &str) -> Result<PgConnectOptions, String> {
    let options = PgConnectOptions::from_str(url)
        .map_err(|error| error.to_string())?
        // A statement may wait a second for a row. That needs no warning.
        .disable_statement_logging();
    Ok(match options.get_application_name() {
        Some(_) => options,
        None => options.application_name("stocklock"),
    })
}

/// The server, and the settings of its sessions.
#[derive(Debug, Clone)]
pub(crate) struct PostgresServer(PgConnectOptions);

impl PostgresServer {
    pub(crate) fn at(url: &str, store: &StoreOptions) -> Result<Self, String> {
        Ok(Self(options(url)?.options(session(store.wait_limit))))
    }
}

impl Server for PostgresServer {
    const EMBEDDED: bool = false;

    type Connection = PgConnection;

    async fn open(&self) -> sqlx::Result<PgConnection> {
        self.0.connect().await
    }

    async fn run(connection: &mut PgConnection, statement: &'static str) -> sqlx::Result<()> {
        connection.execute(statement).await.map(drop)
    }

    async fn read_clock(connection: &mut PgConnection) -> sqlx::Result<i64> {
        let clock = statements::clock(&Self::WORDS).text;
        sqlx::query_scalar(clock).fetch_one(connection).await
    }
}

/// The settings of every session except a migration's. The server sets `synchronous_commit`, which is
/// checked at start.
fn session(wait_limit: Duration) -> [(&'static str, String); 4] {
    let milliseconds = |limit: Duration| limit.as_millis().max(1).to_string(); // Zero means no limit.
    [
        ("default_transaction_isolation", "read committed".to_owned()),
        ("lock_timeout", milliseconds(wait_limit)),
        // Bounds everything that is not a lock.
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

/// One sentence for each setting under which an acknowledged sale can be lost.
pub(super) fn complaints(
    commit: &str,
    standbys: &str,
    fsync: &str,
    full_pages: &str,
) -> Vec<String> {
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

/// Brings the schema up to date. Several processes take turns by sqlx's advisory lock.
pub(crate) async fn migrate(url: &str) -> Result<(), String> {
    let options = options(url)?;
    let server = format!("{}:{}", options.get_host(), options.get_port());
    let database = options.get_database().unwrap_or(options.get_username());
    let create_database = format!("CREATE DATABASE \"{database}\"");
    let migrator = sqlx::migrate!("../../migrations/postgres");
    migration::run(
        &options,
        migrator,
        &server,
        migration::is_transient_on_server,
    )
    .await
    .map_err(|error| migration::explain(&error, &server, &create_database))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_setting_is_reported_with_its_remedy() {
        for (settings, remedies) in [
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
            assert_eq!(found.len(), remedies.len(), "{settings:?}: {found:?}");
            for (found, set) in found.iter().zip(remedies) {
                assert!(found.ends_with(&format!("set {set}")), "{found}");
            }
        }
    }

    #[test]
    fn no_session_limit_is_zero() {
        for (name, value) in session(Duration::ZERO) {
            assert_ne!(value, "0", "{name}");
        }
    }
}
