//! The statements of SQLite. They run in this process, so several cost no round trips.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, Executor, QueryBuilder, Result, Sqlite, SqliteConnection};

use super::session::{
    ABANDONED, Ask, BURIED, BURIED_MAX, Row, SWEPT_MOST, Session, Stored, revoked,
};

pub(super) const SCHEMA: &str = include_str!("schema/sqlite.sql");

/// The clock, which stands still during a statement, and counts in milliseconds.
macro_rules! now {
    () => {
        "CAST(round(unixepoch('now', 'subsec') * 1000) * 1000 AS INTEGER)"
    };
}

/// The row may be taken: it is free or expired, and the nonce is not buried in it.
macro_rules! takes {
    () => {
        "((l.nonce = '' OR l.expires_at <= excluded.expires_at - ?4)
         AND instr(l.gone, excluded.nonce) = 0)"
    };
}

/// Parameters: name, nonce, owner, lease, lowest token.
const ACQUIRE: &str = concat!(
    "INSERT INTO distributed_lock AS l (name, nonce, owner, token, expires_at)
    SELECT ?1, ?2, ?3, max(now, ?5, token + 1), now + ?4
    FROM (SELECT ",
    now!(),
    " AS now, coalesce((SELECT token FROM distributed_lock_source), 0) AS token) WHERE true
    ON CONFLICT (name) DO UPDATE SET
        nonce = iif(",
    takes!(),
    ", excluded.nonce, l.nonce),
        owner = iif(",
    takes!(),
    ", excluded.owner, l.owner),
        token = iif(",
    takes!(),
    ", max(excluded.token, l.token + 1), l.token),
        expires_at = iif(",
    takes!(),
    ", excluded.expires_at, max(l.expires_at, excluded.expires_at)),
        gone = iif(l.gone_until <= excluded.expires_at - ?4, '', l.gone)
    WHERE ",
    takes!(),
    " OR l.nonce = excluded.nonce
    RETURNING nonce, token, ?4, 0"
);

/// Parameters: name, nonce.
const READ: &str = concat!(
    "SELECT nonce, token, expires_at - ",
    now!(),
    ", instr(gone, ?2) > 0 FROM distributed_lock WHERE name = ?1"
);

/// Parameters: name, nonce, how long. The nonce is appended to those that are not old.
const BURY: &str = concat!(
    "INSERT INTO distributed_lock AS l (name, nonce, owner, token, expires_at, gone, gone_until)
    VALUES (?1, '', '', 0, 0, ?2, ",
    now!(),
    " + ?3)
    ON CONFLICT (name) DO UPDATE SET
        nonce = iif(l.nonce = ?2, '', l.nonce),
        owner = iif(l.nonce = ?2, '', l.owner),
        expires_at = iif(l.nonce = ?2, 0, l.expires_at),
        gone = substr(
            iif(l.gone_until > excluded.gone_until - ?3, l.gone, '') || excluded.gone, -?4),
        gone_until = max(l.gone_until, excluded.gone_until)"
);

/// Parameters: name, nonce, what is added, how long, the longest list.
const REVOKE: &str = concat!(
    "UPDATE distributed_lock SET nonce = '', owner = '', expires_at = 0,
        gone = substr(iif(gone_until > ",
    now!(),
    ", gone, '') || ?3, -?5),
        gone_until = max(gone_until, expires_at, ",
    now!(),
    " + ?4)
    WHERE name = ?1 AND nonce = ?2 AND expires_at > ",
    now!()
);

/// Parameters: how long after its expiry the lock of a dead holder is removed, how many rows at most.
const SWEEP: &str = concat!(
    "DELETE FROM distributed_lock WHERE name IN (SELECT name FROM distributed_lock
    WHERE (nonce = '' AND gone_until <= ",
    now!(),
    ") OR max(expires_at, gone_until) <= ",
    now!(),
    " - ?1 LIMIT ?2)"
);

/// Opens the file. `NORMAL`: a power cut may lose the last commits, but it also ends every process
/// that holds a lock in this file.
pub(super) async fn connect(
    options: &SqliteConnectOptions,
    limit: Duration,
) -> Result<Box<dyn Session>> {
    let options = options.clone().busy_timeout(limit);
    let options = options.journal_mode(SqliteJournalMode::Wal);
    let options = options.synchronous(SqliteSynchronous::Normal);
    Ok(Box::new(options.connect().await?))
}

#[async_trait]
impl Session for SqliteConnection {
    async fn acquire(&mut self, ask: &Ask) -> Result<Option<Row>> {
        let acquire = sqlx::query_as(ACQUIRE)
            .bind(&ask.name)
            .bind(&ask.nonce)
            .bind(&ask.owner)
            .bind(ask.lease)
            .bind(ask.floor);
        // A statement commits when its last row has been read.
        let mut rows: Vec<Row> = acquire.fetch_all(&mut *self).await?;
        if let Some(row) = rows.pop() {
            return Ok(Some(row));
        }
        let read = sqlx::query_as(READ).bind(&ask.name).bind(&ask.nonce);
        read.fetch_optional(self).await
    }

    async fn renew(
        &mut self,
        names: &[String],
        nonces: &[String],
        lease: i64,
    ) -> Result<Vec<String>> {
        let mut renew = QueryBuilder::new(concat!(
            "UPDATE distributed_lock SET expires_at = max(expires_at, ",
            now!(),
            " + "
        ));
        renew.push_bind(lease).push(")");
        push_names(&mut renew, names);
        renew.push(" AND nonce IN (");
        let mut list = renew.separated(", ");
        for nonce in nonces {
            list.push_bind(nonce.clone());
        }
        renew.push(concat!(") AND expires_at > ", now!(), " RETURNING nonce"));
        let renew = renew.build_query_scalar().persistent(false);
        renew.fetch_all(self).await
    }

    async fn release(&mut self, name: &str, nonce: &str) -> Result<bool> {
        const REMOVE: &str = concat!(
            "DELETE FROM distributed_lock WHERE name = ? AND nonce = ? AND gone_until <= ",
            now!()
        );
        let remove = sqlx::query(REMOVE).bind(name).bind(nonce);
        if remove.execute(&mut *self).await?.rows_affected() > 0 {
            return Ok(true);
        }
        free(self, name, nonce).await
    }

    /// The second statement also frees the row if a late request takes the lock after the first one.
    async fn bury(&mut self, name: &str, nonce: &str) -> Result<bool> {
        let held = free(self, name, nonce).await?;
        let bury = sqlx::query(BURY).bind(name).bind(nonce).bind(BURIED);
        bury.bind(BURIED_MAX).execute(self).await?;
        Ok(held)
    }

    async fn revoke(&mut self, name: &str, nonce: &str) -> Result<bool> {
        let revoke = sqlx::query(REVOKE).bind(name).bind(nonce);
        let revoke = revoke.bind(revoked(nonce)).bind(BURIED);
        let updated = revoke.bind(BURIED_MAX).execute(self).await?;
        Ok(updated.rows_affected() > 0)
    }

    async fn gone(&mut self, names: &[String]) -> Result<Vec<String>> {
        let mut gone = QueryBuilder::new("SELECT gone FROM distributed_lock");
        push_names(&mut gone, names);
        let gone = gone.build_query_scalar().persistent(false);
        gone.fetch_all(self).await
    }

    async fn read(&mut self, name: &str) -> Result<Option<Stored>> {
        const READ: &str = concat!(
            "SELECT nonce, owner, token, expires_at - ",
            now!(),
            " AS rest, ",
            now!(),
            " - token AS age, gone FROM distributed_lock WHERE name = ?"
        );
        sqlx::query_as(READ).bind(name).fetch_optional(self).await
    }

    async fn source(&mut self, candidate: &str) -> Result<String> {
        const READ: &str = "SELECT id FROM distributed_lock_source";
        const STORE: &str = "INSERT OR IGNORE INTO distributed_lock_source VALUES (1, ?, 0)";
        if let Some(id) = sqlx::query_scalar(READ).fetch_optional(&mut *self).await? {
            return Ok(id);
        }
        let store = sqlx::query(STORE).bind(candidate);
        store.execute(&mut *self).await?;
        sqlx::query_scalar(READ).fetch_one(self).await
    }

    async fn sweep(&mut self) -> Result<bool> {
        let sweep = sqlx::query(SWEEP).bind(ABANDONED).bind(SWEPT_MOST);
        let swept = sweep.execute(self).await?.rows_affected();
        Ok(swept == u64::from(SWEPT_MOST))
    }

    async fn ping(&mut self) -> Result<()> {
        const PING: &str = "SELECT id FROM distributed_lock_source";
        self.execute(PING).await.map(drop)
    }

    async fn create_tables(&mut self) -> Result<()> {
        let mut transaction = self.begin_with("BEGIN IMMEDIATE").await?;
        let exists = "SELECT count(*) > 0 FROM sqlite_schema WHERE name = 'distributed_lock'";
        let exists: bool = sqlx::query_scalar(exists)
            .fetch_one(&mut *transaction)
            .await?;
        if !exists {
            transaction.execute(SCHEMA).await?;
        }
        transaction.commit().await
    }
}

/// Frees the lock if this nonce holds it. The row stays.
async fn free(connection: &mut SqliteConnection, name: &str, nonce: &str) -> Result<bool> {
    const FREE: &str = "UPDATE distributed_lock SET nonce = '', owner = '', expires_at = 0
        WHERE name = ? AND nonce = ?";
    let free = sqlx::query(FREE).bind(name).bind(nonce);
    Ok(free.execute(connection).await?.rows_affected() > 0)
}

/// Selects the rows of these locks.
fn push_names(query: &mut QueryBuilder<Sqlite>, names: &[String]) {
    query.push(" WHERE name IN (");
    let mut list = query.separated(", ");
    for name in names {
        list.push_bind(name.clone());
    }
    query.push(")");
}
