//! The statements of PostgreSQL, and the channel that wakes waiters.
//!
//! sqlx sends several statements in one message only as text, so names and owners are written in
//! hexadecimal.

use std::time::Duration;

use const_format::formatcp;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection, Executor, FromRow, PgConnection, Result, raw_sql};

use super::{Ask, Row, Session, Statements, hex, trusted};

/// The channel on which the names of released locks are published, if a client waits for them.
pub(in super::super) const CHANNEL: &str = "distributed_lock";

pub(in super::super) const SCHEMA: &str = include_str!("../schema/postgres.sql");

/// The clock, read once per statement, and not at the start of the transaction. A statement that waits
/// for a row uses the time before the wait, so a lock is not taken over too soon.
const CLOCK: &str =
    "clock AS (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now)";

/// Parameters: names, nonces, lease. No nonce is used for two names.
const RENEW: &str = formatcp!(
    "WITH {CLOCK}
    UPDATE distributed_lock SET expires_at = greatest(expires_at, now + $3) FROM clock
    WHERE name = ANY($1) AND nonce = ANY($2) AND expires_at > now RETURNING nonce"
);

/// Wakes the waiters of a released lock, if there are some. This returns one row for each lock.
const NOTIFY: &str =
    "SELECT CASE WHEN is_awaited THEN pg_notify('distributed_lock', name)::text END FROM";

pub(super) const STATEMENTS: Statements = Statements {
    remove: formatcp!(
        "WITH {CLOCK}, removed AS (
            DELETE FROM distributed_lock USING clock
            WHERE name = $1 AND nonce = $2 AND gone_until <= now RETURNING name, is_awaited)
        {NOTIFY} removed"
    ),
    free: formatcp!(
        "WITH freed AS (
            UPDATE distributed_lock SET nonce = '', owner = '', expires_at = 0
            WHERE name = $1 AND nonce = $2 RETURNING name, is_awaited)
        {NOTIFY} freed"
    ),
    bury: formatcp!(
        "WITH {CLOCK}, buried AS (
            INSERT INTO distributed_lock AS l
                (name, nonce, owner, token, expires_at, gone, gone_until)
            SELECT $1, '', '', 0, 0, $2, now + $3 FROM clock
            ON CONFLICT (name) DO UPDATE SET
                nonce = CASE WHEN l.nonce = $2 THEN '' ELSE l.nonce END,
                owner = CASE WHEN l.nonce = $2 THEN '' ELSE l.owner END,
                expires_at = CASE WHEN l.nonce = $2 THEN 0 ELSE l.expires_at END,
                gone = right(CASE WHEN l.gone_until > excluded.gone_until - $3
                    THEN l.gone ELSE '' END || $2, $4),
                gone_until = greatest(l.gone_until, excluded.gone_until)
            RETURNING name, is_awaited AND nonce = '' AS is_awaited)
        {NOTIFY} buried"
    ),
    revoke: formatcp!(
        "WITH {CLOCK}, revoked AS (
            UPDATE distributed_lock SET nonce = '', owner = '', expires_at = 0,
                gone = right(CASE WHEN gone_until > now THEN gone ELSE '' END || $1, $2),
                gone_until = greatest(gone_until, expires_at, now + $3)
            FROM clock WHERE name = $4 AND nonce = $5 AND expires_at > now
            RETURNING name, is_awaited)
        {NOTIFY} revoked"
    ),
    read: formatcp!(
        "WITH {CLOCK}
        SELECT nonce, owner, token, expires_at - now AS rest, now - token AS age, gone
        FROM distributed_lock, clock WHERE name = $1"
    ),
    store_source: "INSERT INTO distributed_lock_source VALUES (1, $1) ON CONFLICT DO NOTHING",
    check_writable: "DO $$ BEGIN
        IF current_setting('transaction_read_only')::boolean THEN
            RAISE read_only_sql_transaction;
        END IF; END $$",
};

/// Parameters: how long after its expiry the lock of a dead holder is removed, how many rows at most.
pub(super) const SWEEP: &str = formatcp!(
    "WITH {CLOCK} DELETE FROM distributed_lock WHERE name IN (
    SELECT name FROM distributed_lock, clock
    WHERE (nonce = '' AND gone_until <= now) OR greatest(expires_at, gone_until) <= now - $1
    LIMIT $2 FOR UPDATE OF distributed_lock SKIP LOCKED)"
);

/// Connects, and bounds the time of a statement: so the server ends one that has lost its client.
pub(in super::super) async fn connect(
    options: &PgConnectOptions,
    limit: Duration,
) -> Result<Session> {
    let mut connection = options.connect().await?;
    let limit = limit.as_millis().max(1);
    let session = format!(
        "SET default_transaction_isolation = 'read committed'; SET statement_timeout = {limit}"
    );
    connection.execute(trusted(session)).await?;
    Ok(Session::Postgres(Box::new(connection)))
}

/// One message, so one transaction. The first statement inserts a free row, unless there is a row.
/// The clock is read after that: a client that waited for a row to be deleted gets a later token
/// than the holders of that row. Only the second statement grants the lock, because it decides on
/// the latest version of the row.
pub(super) async fn acquire(connection: &mut PgConnection, ask: &Ask) -> Result<Option<Row>> {
    let text = |text| format!("convert_from(decode('{}', 'hex'), 'UTF8')", hex(text));
    let (name, nonce, owner) = (text(&ask.name), &ask.nonce, text(&ask.owner));
    let (lease, floor, clock) = (ask.lease, ask.floor, CLOCK);
    let wait = if ask.is_waiting {
        format!(
            "UPDATE distributed_lock SET is_awaited = true
            WHERE name = {name} AND nonce <> '{nonce}' AND NOT is_awaited;"
        )
    } else {
        String::new()
    };
    let message = format!(
        "INSERT INTO distributed_lock (name, nonce, owner, token, expires_at)
        VALUES ({name}, '', '', 0, 0) ON CONFLICT (name) DO NOTHING;
        WITH {clock} UPDATE distributed_lock SET
            token = CASE WHEN nonce = '{nonce}' THEN token
                ELSE greatest(now, {floor}, token + 1) END,
            nonce = '{nonce}',
            owner = {owner},
            expires_at = greatest(expires_at, now + {lease}),
            is_awaited = is_awaited AND nonce = '{nonce}',
            gone = CASE WHEN gone_until <= now THEN '' ELSE gone END
        FROM clock WHERE name = {name} AND (nonce = '{nonce}' OR
            (nonce = '' OR expires_at <= now) AND position('{nonce}' IN gone) = 0)
        RETURNING nonce, token, expires_at - now, false;
        {wait}
        WITH {clock} SELECT nonce, token, expires_at - now, position('{nonce}' IN gone) > 0
        FROM distributed_lock, clock WHERE name = {name} AND nonce <> '{nonce}'"
    );
    let rows = raw_sql(trusted(message)).fetch_all(connection).await?;
    rows.first().map(Row::from_row).transpose()
}

pub(super) async fn renew(
    connection: &mut PgConnection,
    names: &[String],
    nonces: &[String],
    lease: i64,
) -> Result<Vec<String>> {
    let renew = sqlx::query_scalar(RENEW).bind(names).bind(nonces);
    renew.bind(lease).fetch_all(connection).await
}

/// Two processes may start at the same time: one of them waits, and then finds the tables.
pub(super) async fn create_tables(connection: &mut PgConnection) -> Result<()> {
    let mut transaction = connection.begin().await?;
    let lock = "SELECT pg_advisory_xact_lock(hashtextextended('distributed_lock', 0))";
    transaction.execute(lock).await?;
    let exists = "SELECT to_regclass('distributed_lock') IS NOT NULL";
    let exists: bool = sqlx::query_scalar(exists)
        .fetch_one(&mut *transaction)
        .await?;
    if !exists {
        transaction.execute(SCHEMA).await?;
    }
    transaction.commit().await
}
