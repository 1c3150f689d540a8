//! The statements of SQLite. They run in this process, so several cost no round trips.

use std::time::Duration;

use const_format::formatcp;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, Executor, QueryBuilder, Result, SqliteConnection};

use super::{Ask, Row, Session, Statements, push_list};

pub(in super::super) const SCHEMA: &str = include_str!("../schema/sqlite.sql");

/// The clock in microseconds since 1970. It stands still during a statement; its resolution is a
/// millisecond.
const NOW: &str = "CAST(round(unixepoch('now', 'subsec') * 1000) * 1000 AS INTEGER)";

/// The row may be taken: it is free or expired, and the nonce is not buried in it.
const TAKES: &str = "((l.nonce = '' OR l.expires_at <= excluded.expires_at - ?4)
    AND instr(l.gone, excluded.nonce) = 0)";

/// Parameters: name, nonce, owner, lease, lowest token.
const ACQUIRE: &str = formatcp!(
    "INSERT INTO distributed_lock AS l (name, nonce, owner, token, expires_at)
    SELECT ?1, ?2, ?3, max(now, ?5, token + 1), now + ?4
    FROM (SELECT {NOW} AS now,
        coalesce((SELECT token FROM distributed_lock_source), 0) AS token) WHERE true
    ON CONFLICT (name) DO UPDATE SET
        nonce = iif({TAKES}, excluded.nonce, l.nonce),
        owner = iif({TAKES}, excluded.owner, l.owner),
        token = iif({TAKES}, max(excluded.token, l.token + 1), l.token),
        expires_at = iif({TAKES}, excluded.expires_at, max(l.expires_at, excluded.expires_at)),
        gone = iif(l.gone_until <= excluded.expires_at - ?4, '', l.gone)
    WHERE {TAKES} OR l.nonce = excluded.nonce
    RETURNING nonce, token, ?4, 0"
);

/// Parameters: name, nonce.
const READ: &str = formatcp!(
    "SELECT nonce, token, expires_at - {NOW}, instr(gone, ?2) > 0
    FROM distributed_lock WHERE name = ?1"
);

pub(super) const STATEMENTS: Statements = Statements {
    remove: formatcp!(
        "DELETE FROM distributed_lock WHERE name = ? AND nonce = ? AND gone_until <= {NOW}"
    ),
    free: "UPDATE distributed_lock SET nonce = '', owner = '', expires_at = 0
        WHERE name = ? AND nonce = ?",
    bury: formatcp!(
        "INSERT INTO distributed_lock AS l (name, nonce, owner, token, expires_at, gone, gone_until)
        VALUES (?1, '', '', 0, 0, ?2, {NOW} + ?3)
        ON CONFLICT (name) DO UPDATE SET
            nonce = iif(l.nonce = ?2, '', l.nonce),
            owner = iif(l.nonce = ?2, '', l.owner),
            expires_at = iif(l.nonce = ?2, 0, l.expires_at),
            gone = substr(
                iif(l.gone_until > excluded.gone_until - ?3, l.gone, '') || excluded.gone, -?4),
            gone_until = max(l.gone_until, excluded.gone_until)"
    ),
    revoke: formatcp!(
        "UPDATE distributed_lock SET nonce = '', owner = '', expires_at = 0,
            gone = substr(iif(gone_until > {NOW}, gone, '') || ?1, -?2),
            gone_until = max(gone_until, expires_at, {NOW} + ?3)
        WHERE name = ?4 AND nonce = ?5 AND expires_at > {NOW}"
    ),
    read: formatcp!(
        "SELECT nonce, owner, token, expires_at - {NOW} AS rest, {NOW} - token AS age, gone
        FROM distributed_lock WHERE name = ?"
    ),
    store_source: "INSERT OR IGNORE INTO distributed_lock_source VALUES (1, ?, 0)",
    check_writable: "BEGIN IMMEDIATE; ROLLBACK",
};

/// Parameters: how long after its expiry the lock of a dead holder is removed, how many rows at most.
pub(super) const SWEEP: &str = formatcp!(
    "DELETE FROM distributed_lock WHERE name IN (SELECT name FROM distributed_lock
    WHERE (nonce = '' AND gone_until <= {NOW}) OR max(expires_at, gone_until) <= {NOW} - ?1
    LIMIT ?2)"
);

/// Opens the file. `NORMAL`: a power cut may lose the last commits, but it also ends every process
/// that holds a lock in this file.
pub(in super::super) async fn connect(
    options: &SqliteConnectOptions,
    limit: Duration,
) -> Result<Session> {
    let options = options.clone().busy_timeout(limit);
    let options = options.journal_mode(SqliteJournalMode::Wal);
    let options = options.synchronous(SqliteSynchronous::Normal);
    Ok(Session::Sqlite(Box::new(options.connect().await?)))
}

pub(super) async fn acquire(connection: &mut SqliteConnection, ask: &Ask) -> Result<Option<Row>> {
    let acquire = sqlx::query_as(ACQUIRE)
        .bind(&ask.name)
        .bind(&ask.nonce)
        .bind(&ask.owner)
        .bind(ask.lease)
        .bind(ask.floor);
    // A statement commits when its last row has been read.
    let mut rows: Vec<Row> = acquire.fetch_all(&mut *connection).await?;
    if let Some(row) = rows.pop() {
        return Ok(Some(row));
    }
    let read = sqlx::query_as(READ).bind(&ask.name).bind(&ask.nonce);
    read.fetch_optional(connection).await
}

pub(super) async fn renew(
    connection: &mut SqliteConnection,
    names: &[String],
    nonces: &[String],
    lease: i64,
) -> Result<Vec<String>> {
    let mut renew = QueryBuilder::new(formatcp!(
        "UPDATE distributed_lock SET expires_at = max(expires_at, {NOW} + "
    ));
    renew.push_bind(lease).push(") WHERE name IN (");
    push_list(&mut renew, names);
    renew.push(") AND nonce IN (");
    push_list(&mut renew, nonces);
    renew.push(formatcp!(") AND expires_at > {NOW} RETURNING nonce"));
    let renew = renew.build_query_scalar().persistent(false);
    renew.fetch_all(connection).await
}

pub(super) async fn create_tables(connection: &mut SqliteConnection) -> Result<()> {
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    let exists = "SELECT count(*) > 0 FROM sqlite_schema WHERE name = 'distributed_lock'";
    let exists: bool = sqlx::query_scalar(exists)
        .fetch_one(&mut *transaction)
        .await?;
    if !exists {
        transaction.execute(SCHEMA).await?;
    }
    transaction.commit().await
}
