//! The statements of PostgreSQL, and the channel that wakes waiters.
//!
//! sqlx sends several statements in one message only as text, so names and owners are written in
//! hexadecimal.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection, Executor, FromRow, PgConnection, Result, raw_sql};

use super::session::{
    ABANDONED, Ask, BURIED, BURIED_MAX, Row, SWEPT_MOST, Session, Stored, hex, revoked, trusted,
};

/// The channel on which the names of released locks are published, if a client waits for them.
pub(super) const CHANNEL: &str = "distributed_lock";

pub(super) const SCHEMA: &str = include_str!("schema/postgres.sql");

/// The clock, read once per statement, and not at the start of the transaction. A statement that waits
/// for a row uses the time before the wait, so a lock is not taken over too soon.
macro_rules! clock {
    () => {
        "clock AS (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now)"
    };
}

/// Parameters: names, nonces, lease. No nonce is used for two names.
const RENEW: &str = concat!(
    "WITH ",
    clock!(),
    " UPDATE distributed_lock
SET expires_at = greatest(expires_at, now + $3) FROM clock
WHERE name = ANY($1) AND nonce = ANY($2) AND expires_at > now RETURNING nonce"
);

/// Wakes the waiters of a released lock, if there are some.
macro_rules! notify {
    () => {
        "SELECT CASE WHEN is_awaited THEN pg_notify('distributed_lock', $1)::text END FROM "
    };
}

/// Parameters: name, nonce. A row whose buried nonces are recent stays.
const REMOVE: &str = concat!(
    "WITH ",
    clock!(),
    ", removed AS (
    DELETE FROM distributed_lock USING clock
    WHERE name = $1 AND nonce = $2 AND gone_until <= now RETURNING is_awaited) ",
    notify!(),
    "removed"
);

/// Parameters: name, nonce. The row stays.
const FREE: &str = concat!(
    "WITH freed AS (
    UPDATE distributed_lock SET nonce = '', owner = '', expires_at = 0
    WHERE name = $1 AND nonce = $2 RETURNING is_awaited) ",
    notify!(),
    "freed"
);

/// The buried nonces of a row, without those that are old.
macro_rules! buried {
    () => {
        "CASE WHEN l.gone_until > excluded.gone_until - $3 THEN l.gone ELSE '' END"
    };
}

/// Parameters: name, nonce, how long, the longest list. Returns whether the nonce held the lock.
const BURY: &str = concat!(
    "WITH ",
    clock!(),
    ", held AS (SELECT FROM distributed_lock WHERE name = $1 AND nonce = $2),
buried AS (
    INSERT INTO distributed_lock AS l (name, nonce, owner, token, expires_at, gone, gone_until)
    SELECT $1, '', '', 0, 0, $2, now + $3 FROM clock
    ON CONFLICT (name) DO UPDATE SET
        nonce = CASE WHEN l.nonce = $2 THEN '' ELSE l.nonce END,
        owner = CASE WHEN l.nonce = $2 THEN '' ELSE l.owner END,
        expires_at = CASE WHEN l.nonce = $2 THEN 0 ELSE l.expires_at END,
        gone = right(",
    buried!(),
    " || $2, $4), gone_until = greatest(l.gone_until, excluded.gone_until)
    RETURNING nonce, is_awaited)
SELECT EXISTS (SELECT FROM held),
    CASE WHEN is_awaited AND nonce = '' THEN pg_notify('distributed_lock', $1)::text END
FROM buried"
);

/// Parameters: name, nonce, what is added, how long, the longest list.
const REVOKE: &str = concat!(
    "WITH ",
    clock!(),
    ", revoked AS (
    UPDATE distributed_lock SET nonce = '', owner = '', expires_at = 0,
        gone = right(CASE WHEN gone_until > now THEN gone ELSE '' END || $3, $5),
        gone_until = greatest(gone_until, expires_at, now + $4)
    FROM clock WHERE name = $1 AND nonce = $2 AND expires_at > now RETURNING is_awaited) ",
    notify!(),
    "revoked"
);

/// Parameters: how long after its expiry the lock of a dead holder is removed, how many rows at most.
const SWEEP: &str = concat!(
    "WITH ",
    clock!(),
    " DELETE FROM distributed_lock WHERE name IN (
    SELECT name FROM distributed_lock, clock
    WHERE (nonce = '' AND gone_until <= now) OR greatest(expires_at, gone_until) <= now - $1
    LIMIT $2 FOR UPDATE OF distributed_lock SKIP LOCKED)"
);

/// Connects, and bounds what a statement may take: the server ends one that has lost its client.
pub(super) async fn connect(
    options: &PgConnectOptions,
    limit: Duration,
) -> Result<Box<dyn Session>> {
    let mut connection = options.connect().await?;
    let limit = limit.as_millis().max(1);
    let session = format!(
        "SET default_transaction_isolation = 'read committed'; SET statement_timeout = {limit}"
    );
    connection.execute(trusted(session)).await?;
    Ok(Box::new(connection))
}

#[async_trait]
impl Session for PgConnection {
    /// One message, so one transaction. The first statement inserts a free row, unless there is a row.
    /// The clock is read after that: a client that waited for a row to be deleted gets a later token
    /// than the holders of that row. Only the second statement grants the lock, because it decides on
    /// the latest version of the row.
    async fn acquire(&mut self, ask: &Ask) -> Result<Option<Row>> {
        let text = |text| format!("convert_from(decode('{}', 'hex'), 'UTF8')", hex(text));
        let (name, nonce, owner) = (text(&ask.name), &ask.nonce, text(&ask.owner));
        let (lease, floor, clock) = (ask.lease, ask.floor, clock!());
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
        let rows = raw_sql(trusted(message)).fetch_all(self).await?;
        rows.first().map(Row::from_row).transpose()
    }

    async fn renew(
        &mut self,
        names: &[String],
        nonces: &[String],
        lease: i64,
    ) -> Result<Vec<String>> {
        let renew = sqlx::query_scalar(RENEW).bind(names).bind(nonces);
        renew.bind(lease).fetch_all(self).await
    }

    async fn release(&mut self, name: &str, nonce: &str) -> Result<bool> {
        let remove = sqlx::query(REMOVE).bind(name).bind(nonce);
        if !remove.fetch_all(&mut *self).await?.is_empty() {
            return Ok(true);
        }
        // A nonce may have been buried while the first statement waited for the row. Only another
        // statement reads what was committed since.
        let free = sqlx::query(FREE).bind(name).bind(nonce);
        Ok(!free.fetch_all(self).await?.is_empty())
    }

    async fn bury(&mut self, name: &str, nonce: &str) -> Result<bool> {
        let bury = sqlx::query_as(BURY).bind(name).bind(nonce).bind(BURIED);
        let bury = bury.bind(i32::try_from(BURIED_MAX).expect("it is small"));
        let (held, _woken): (bool, Option<String>) = bury.fetch_one(self).await?;
        Ok(held)
    }

    async fn revoke(&mut self, name: &str, nonce: &str) -> Result<bool> {
        let revoke = sqlx::query(REVOKE).bind(name).bind(nonce);
        let revoke = revoke.bind(revoked(nonce)).bind(BURIED);
        let revoke = revoke.bind(i32::try_from(BURIED_MAX).expect("it is small"));
        Ok(!revoke.fetch_all(self).await?.is_empty())
    }

    async fn gone(&mut self, names: &[String]) -> Result<Vec<String>> {
        const GONE: &str = "SELECT gone FROM distributed_lock WHERE name = ANY($1)";
        sqlx::query_scalar(GONE).bind(names).fetch_all(self).await
    }

    async fn read(&mut self, name: &str) -> Result<Option<Stored>> {
        const READ: &str = concat!(
            "WITH ",
            clock!(),
            " SELECT nonce, owner, token, expires_at - now AS rest, now - token AS age, gone
            FROM distributed_lock, clock WHERE name = $1"
        );
        sqlx::query_as(READ).bind(name).fetch_optional(self).await
    }

    async fn source(&mut self, candidate: &str) -> Result<String> {
        const READ: &str = "SELECT id FROM distributed_lock_source";
        const STORE: &str = "INSERT INTO distributed_lock_source VALUES (1, $1)
            ON CONFLICT DO NOTHING";
        if let Some(id) = sqlx::query_scalar(READ).fetch_optional(&mut *self).await? {
            return Ok(id);
        }
        let store = sqlx::query(STORE).bind(candidate);
        store.execute(&mut *self).await?;
        sqlx::query_scalar(READ).fetch_one(self).await
    }

    async fn sweep(&mut self) -> Result<bool> {
        let sweep = sqlx::query(SWEEP)
            .bind(ABANDONED)
            .bind(i64::from(SWEPT_MOST));
        let swept = sweep.execute(self).await?.rows_affected();
        Ok(swept == u64::from(SWEPT_MOST))
    }

    async fn ping(&mut self) -> Result<()> {
        const PING: &str = "SELECT FROM distributed_lock_source";
        self.execute(PING).await.map(drop)
    }

    /// Two processes may start at the same time: one of them waits, and then finds the tables.
    async fn create_tables(&mut self) -> Result<()> {
        let mut transaction = self.begin().await?;
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
}
