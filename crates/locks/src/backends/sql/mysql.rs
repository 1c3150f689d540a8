//! The statements of MariaDB and MySQL.
//!
//! An acquisition is one message with several statements, so it takes one round trip. sqlx sends them
//! only as text, so names and owners are written in hexadecimal.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::mysql::MySqlConnectOptions;
use sqlx::{ConnectOptions, Executor, MySql, MySqlConnection, QueryBuilder, Result};
use sqlx::{FromRow, raw_sql};

use super::session::{
    ABANDONED, Ask, BURIED, BURIED_MAX, Row, SWEPT_MOST, Session, Stored, hex, revoked, trusted,
};

pub(super) const SCHEMA: &str = include_str!("schema/mysql.sql");

/// The clock, which stands still during a statement. A statement that waits for a row uses the time
/// before the wait. sqlx sets the time zone of the session to UTC.
macro_rules! now {
    () => {
        "CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)"
    };
}

/// Parameters: name, nonce, how long, the longest list. The nonce is appended to those that are not
/// old.
const BURY: &str = concat!(
    "INSERT INTO distributed_lock (name, nonce, owner, token, expires_at, gone, gone_until)
    VALUES (?, '', '', 0, 0, ?, ",
    now!(),
    " + ?)
    ON DUPLICATE KEY UPDATE
        gone = RIGHT(CONCAT(IF(gone_until > ",
    now!(),
    ", gone, ''), VALUES(gone)), ?),
        gone_until = GREATEST(gone_until, VALUES(gone_until)),
        expires_at = IF(nonce = VALUES(gone), 0, expires_at),
        nonce = IF(nonce = VALUES(gone), '', nonce)"
);

/// Parameters: what is added, the longest list, how long, name, nonce. MySQL assigns the columns in this order.
const REVOKE: &str = concat!(
    "UPDATE distributed_lock SET
        gone = RIGHT(CONCAT(IF(gone_until > ",
    now!(),
    ", gone, ''), ?), ?),
        gone_until = GREATEST(gone_until, expires_at, ",
    now!(),
    " + ?),
        nonce = '', owner = '', expires_at = 0
    WHERE name = ? AND nonce = ? AND expires_at > ",
    now!()
);

/// Connects, and bounds what a statement may take: the server ends one that has lost its client.
/// MariaDB and MySQL each read their own line. The other settings have these values by default, but an
/// operator can change them for all sessions: a text that is empty would be NULL, writes would be refused,
/// COMMIT would end the session, or results would lack rows.
pub(super) async fn connect(
    options: &MySqlConnectOptions,
    limit: Duration,
) -> Result<Box<dyn Session>> {
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
    Ok(Box::new(connection))
}

#[async_trait]
impl Session for MySqlConnection {
    /// The first statement locks the row, which it inserts if there is none. The clock is read after
    /// that: a client that waited for a row to be deleted gets a later token than the holders of that
    /// row.
    ///
    /// MySQL assigns the columns in this order, so `nonce` comes after `token`, which compares it.
    async fn acquire(&mut self, ask: &Ask) -> Result<Option<Row>> {
        let bytes = |text| format!("X'{}'", hex(text));
        let (name, nonce, owner) = (bytes(&ask.name), &ask.nonce, bytes(&ask.owner));
        let (lease, floor, now) = (ask.lease, ask.floor, now!());
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
        match raw_sql(trusted(message)).fetch_all(&mut *self).await {
            Ok(rows) => rows.first().map(Row::from_row).transpose(),
            Err(error) => {
                // The transaction is still open, unless the server has ended it.
                self.execute("ROLLBACK").await?;
                Err(error)
            }
        }
    }

    /// MySQL cannot return the rows that it has changed. A nonce that holds its lock now held it
    /// before, so its lease was renewed.
    async fn renew(
        &mut self,
        names: &[String],
        nonces: &[String],
        lease: i64,
    ) -> Result<Vec<String>> {
        let mut update = QueryBuilder::new(concat!(
            "UPDATE distributed_lock SET expires_at = GREATEST(expires_at, ",
            now!(),
            " + "
        ));
        update.push_bind(lease).push(")");
        push_held(&mut update, names, nonces);
        update.build().persistent(false).execute(&mut *self).await?;
        let mut held = QueryBuilder::new("SELECT nonce FROM distributed_lock");
        push_held(&mut held, names, nonces);
        let held = held.build_query_scalar().persistent(false);
        held.fetch_all(self).await
    }

    async fn release(&mut self, name: &str, nonce: &str) -> Result<bool> {
        const REMOVE: &str = concat!(
            "DELETE FROM distributed_lock WHERE name = ? AND nonce = ? AND gone_until <= ",
            now!()
        );
        let remove = sqlx::query(REMOVE).bind(name.as_bytes()).bind(nonce);
        if remove.execute(&mut *self).await?.rows_affected() > 0 {
            return Ok(true);
        }
        free(self, name, nonce).await
    }

    /// The second statement also frees the row if a late request takes the lock after the first one.
    async fn bury(&mut self, name: &str, nonce: &str) -> Result<bool> {
        let held = free(self, name, nonce).await?;
        let bury = sqlx::query(BURY).bind(name.as_bytes()).bind(nonce);
        let bury = bury.bind(BURIED).bind(BURIED_MAX);
        bury.execute(self).await?;
        Ok(held)
    }

    async fn revoke(&mut self, name: &str, nonce: &str) -> Result<bool> {
        let revoke = sqlx::query(REVOKE).bind(revoked(nonce)).bind(BURIED_MAX);
        let revoke = revoke.bind(BURIED).bind(name.as_bytes()).bind(nonce);
        Ok(revoke.execute(self).await?.rows_affected() > 0)
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
        let read = sqlx::query_as(READ).bind(name.as_bytes());
        read.fetch_optional(self).await
    }

    async fn source(&mut self, candidate: &str) -> Result<String> {
        const READ: &str = "SELECT id FROM distributed_lock_source";
        const STORE: &str = "INSERT IGNORE INTO distributed_lock_source VALUES (1, ?)";
        if let Some(id) = sqlx::query_scalar(READ).fetch_optional(&mut *self).await? {
            return Ok(id);
        }
        let store = sqlx::query(STORE).bind(candidate);
        store.execute(&mut *self).await?;
        sqlx::query_scalar(READ).fetch_one(self).await
    }

    /// A deletion locks every row that it reads, so the rows are found without locks first.
    async fn sweep(&mut self) -> Result<bool> {
        let mut find = QueryBuilder::new("SELECT name FROM distributed_lock WHERE ");
        push_useless(&mut find);
        find.push(" LIMIT ").push_bind(SWEPT_MOST);
        let find = find.build_query_scalar();
        let found: Vec<Vec<u8>> = find.fetch_all(&mut *self).await?;
        if found.is_empty() {
            return Ok(false);
        }
        let is_full = found.len() == SWEPT_MOST as usize;
        let mut remove = QueryBuilder::new("DELETE FROM distributed_lock WHERE name IN (");
        let mut list = remove.separated(", ");
        for name in found {
            list.push_bind(name);
        }
        remove.push(") AND ");
        push_useless(&mut remove);
        remove.build().persistent(false).execute(self).await?;
        Ok(is_full)
    }

    async fn ping(&mut self) -> Result<()> {
        const PING: &str = "SELECT id FROM distributed_lock_source";
        self.execute(PING).await.map(drop)
    }

    async fn create_tables(&mut self) -> Result<()> {
        self.execute(SCHEMA).await.map(drop)
    }
}

/// Frees the lock if this nonce holds it. The row stays.
async fn free(connection: &mut MySqlConnection, name: &str, nonce: &str) -> Result<bool> {
    const FREE: &str = "UPDATE distributed_lock SET nonce = '', owner = '', expires_at = 0
        WHERE name = ? AND nonce = ?";
    let free = sqlx::query(FREE).bind(name.as_bytes()).bind(nonce);
    Ok(free.execute(connection).await?.rows_affected() > 0)
}

/// Selects the locks that one of these nonces holds. No nonce is used for two names.
fn push_held(query: &mut QueryBuilder<MySql>, names: &[String], nonces: &[String]) {
    push_names(query, names);
    query.push(" AND nonce IN (");
    let mut list = query.separated(", ");
    for nonce in nonces {
        list.push_bind(nonce.clone());
    }
    query.push(concat!(") AND expires_at > ", now!()));
}

/// Selects the rows of these locks.
fn push_names(query: &mut QueryBuilder<MySql>, names: &[String]) {
    query.push(" WHERE name IN (");
    let mut list = query.separated(", ");
    for name in names {
        list.push_bind(name.clone().into_bytes());
    }
    query.push(")");
}

/// Selects rows that have no use.
fn push_useless(query: &mut QueryBuilder<MySql>) {
    query.push(concat!(
        "((nonce = '' AND gone_until <= ",
        now!(),
        ") OR GREATEST(expires_at, gone_until) <= ",
        now!(),
        " - "
    ));
    query.push_bind(ABANDONED).push(")");
}
