//! The statements of MariaDB and MySQL.
//!
//! An acquisition is one message with several statements, so it takes one round trip. sqlx sends them
//! only as text, so names and owners are written in hexadecimal.

use std::time::Duration;

use const_format::formatcp;
use sqlx::mysql::MySqlConnectOptions;
use sqlx::{
    ConnectOptions, Executor, FromRow, MySql, MySqlConnection, QueryBuilder, Result, raw_sql,
};

use super::{ABANDONED, Ask, Row, SWEPT_MOST, Session, Statements, hex, push_list, trusted};

pub(in super::super) const SCHEMA: &str = include_str!("../schema/mysql.sql");

/// The clock, which stands still during a statement. A statement that waits for a row uses the time
/// before the wait. sqlx sets the time zone of the session to UTC.
const NOW: &str = "CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)";

/// MySQL assigns the columns in the order of each statement.
pub(super) const STATEMENTS: Statements = Statements {
    remove: formatcp!(
        "DELETE FROM distributed_lock WHERE name = ? AND nonce = ? AND gone_until <= {NOW}"
    ),
    free: "UPDATE distributed_lock SET nonce = '', owner = '', expires_at = 0
        WHERE name = ? AND nonce = ?",
    bury: formatcp!(
        "INSERT INTO distributed_lock (name, nonce, owner, token, expires_at, gone, gone_until)
        VALUES (?, '', '', 0, 0, ?, {NOW} + ?)
        ON DUPLICATE KEY UPDATE
            gone = RIGHT(CONCAT(IF(gone_until > {NOW}, gone, ''), VALUES(gone)), ?),
            gone_until = GREATEST(gone_until, VALUES(gone_until)),
            expires_at = IF(nonce = VALUES(gone), 0, expires_at),
            nonce = IF(nonce = VALUES(gone), '', nonce)"
    ),
    revoke: formatcp!(
        "UPDATE distributed_lock SET
            gone = RIGHT(CONCAT(IF(gone_until > {NOW}, gone, ''), ?), ?),
            gone_until = GREATEST(gone_until, expires_at, {NOW} + ?),
            nonce = '', owner = '', expires_at = 0
        WHERE name = ? AND nonce = ? AND expires_at > {NOW}"
    ),
    read: formatcp!(
        "SELECT nonce, owner, token, expires_at - {NOW} AS rest, {NOW} - token AS age, gone
        FROM distributed_lock WHERE name = ?"
    ),
    store_source: "INSERT IGNORE INTO distributed_lock_source VALUES (1, ?)",
    check_writable: "START TRANSACTION READ WRITE; ROLLBACK",
};

/// Connects, and bounds what a statement may take: the server ends one that has lost its client.
/// MariaDB and MySQL each read their own line. The other settings have these values by default, but an
/// operator can change them for all sessions: a text that is empty would be NULL, writes would be refused,
/// COMMIT would end the session, or results would lack rows.
pub(in super::super) async fn connect(
    options: &MySqlConnectOptions,
    limit: Duration,
) -> Result<Session> {
    let mut connection = options.connect().await?;
    let (seconds, milliseconds) = (limit.as_secs().max(1), limit.as_millis().max(1));
    let session = format!(
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
        SET SESSION autocommit = 1, SESSION innodb_lock_wait_timeout = {seconds},
            SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION',
            SESSION completion_type = 0, SESSION sql_safe_updates = 0, SESSION sql_big_selects = 1,
            SESSION sql_select_limit = 18446744073709551615
        /*M!100101 , SESSION max_statement_time = {milliseconds} / 1000 */
        /*!50708 , SESSION max_execution_time = {milliseconds} */"
    );
    connection.execute(trusted(session)).await?;
    Ok(Session::MySql(Box::new(connection)))
}

/// The first statement locks the row, which it inserts if there is none. The clock is read after
/// that: a client that waited for a row to be deleted gets a later token than the holders of that
/// row.
///
/// MySQL assigns the columns in this order, so `nonce` comes after `token`, which compares it.
pub(super) async fn acquire(connection: &mut MySqlConnection, ask: &Ask) -> Result<Option<Row>> {
    let bytes = |text| format!("X'{}'", hex(text));
    let (name, nonce, owner) = (bytes(&ask.name), &ask.nonce, bytes(&ask.owner));
    let (lease, floor, now) = (ask.lease, ask.floor, NOW);
    let message = format!(
        "START TRANSACTION;
        INSERT INTO distributed_lock (name, nonce, owner, token, expires_at)
        VALUES ({name}, '', '', 0, 0) ON DUPLICATE KEY UPDATE token = token;
        UPDATE distributed_lock SET
            token = IF(nonce = '{nonce}', token, GREATEST({now}, {floor}, token + 1)),
            nonce = '{nonce}',
            owner = _utf8mb4 {owner},
            expires_at = GREATEST(expires_at, {now} + {lease}),
            gone = IF(gone_until <= {now}, '', gone)
        WHERE name = {name} AND (nonce = '{nonce}' OR
            (nonce = '' OR expires_at <= {now}) AND LOCATE('{nonce}', gone) = 0);
        SELECT nonce, token, expires_at - {now}, LOCATE('{nonce}', gone) > 0
        FROM distributed_lock WHERE name = {name};
        COMMIT"
    );
    match raw_sql(trusted(message)).fetch_all(&mut *connection).await {
        Ok(rows) => rows.first().map(Row::from_row).transpose(),
        Err(error) => {
            // The transaction is still open, unless the server has ended it.
            connection.execute("ROLLBACK").await?;
            Err(error)
        }
    }
}

/// MySQL cannot return the rows that it has changed. A nonce that holds its lock now held it
/// before, so its lease was renewed.
pub(super) async fn renew(
    connection: &mut MySqlConnection,
    names: &[String],
    nonces: &[String],
    lease: i64,
) -> Result<Vec<String>> {
    let mut update = QueryBuilder::new(formatcp!(
        "UPDATE distributed_lock SET expires_at = GREATEST(expires_at, {NOW} + "
    ));
    update.push_bind(lease).push(")");
    push_held(&mut update, names, nonces);
    let update = update.build().persistent(false);
    update.execute(&mut *connection).await?;
    let mut held = QueryBuilder::new("SELECT nonce FROM distributed_lock");
    push_held(&mut held, names, nonces);
    let held = held.build_query_scalar().persistent(false);
    held.fetch_all(connection).await
}

/// A deletion locks every row that it reads, so the rows are found without locks first.
pub(super) async fn sweep(connection: &mut MySqlConnection) -> Result<bool> {
    let mut find = QueryBuilder::new("SELECT name FROM distributed_lock WHERE ");
    push_useless(&mut find);
    find.push(" LIMIT ").push_bind(SWEPT_MOST);
    let find = find.build_query_scalar();
    let found: Vec<Vec<u8>> = find.fetch_all(&mut *connection).await?;
    if found.is_empty() {
        return Ok(false);
    }
    let is_full = i64::try_from(found.len()) == Ok(SWEPT_MOST);
    let mut remove = QueryBuilder::new("DELETE FROM distributed_lock WHERE name IN (");
    push_list(&mut remove, &found);
    remove.push(") AND ");
    push_useless(&mut remove);
    remove.build().persistent(false).execute(connection).await?;
    Ok(is_full)
}

pub(super) async fn create_tables(connection: &mut MySqlConnection) -> Result<()> {
    connection.execute(SCHEMA).await.map(drop)
}

/// Selects the locks that one of these nonces holds. No nonce is used for two names.
fn push_held(query: &mut QueryBuilder<MySql>, names: &[String], nonces: &[String]) {
    query.push(" WHERE name IN (");
    push_list(query, names);
    query.push(") AND nonce IN (");
    push_list(query, nonces);
    query.push(formatcp!(") AND expires_at > {NOW}"));
}

/// Selects rows that have no use.
fn push_useless(query: &mut QueryBuilder<MySql>) {
    query.push(formatcp!(
        "((nonce = '' AND gone_until <= {NOW}) OR GREATEST(expires_at, gone_until) <= {NOW} - "
    ));
    query.push_bind(ABANDONED).push(")");
}
