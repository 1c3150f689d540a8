//! PostgreSQL.
//!
//! Guarantees: a statement that waited for a row checks its condition against the row's new values.
//! The server limits how long a session waits for locks, runs a statement, or idles in a
//! transaction.

use sqlx::postgres::PgDatabaseError;

use super::conditional_write::{ConditionalWrite, deducted};
use super::dialect::Dialect;
use super::errors::{Verdict, classify, in_autocommit, waited_for_the_ledger};
use super::pool::PooledConnection;
use super::statement::Statement;
use super::statements::{INSERT_COLUMNS, INSERT_PARAMETERS, Words};
use super::write::{Session, Write, Written};
use crate::{AttemptOutcome, Result, StoreError};

mod connect;
mod requirements;
mod write;

pub(super) use connect::PostgresServer;
use requirements::complaints;

const SETTINGS: &str = "SELECT current_setting('synchronous_commit'),
        current_setting('synchronous_standby_names'),
        current_setting('fsync'), current_setting('full_page_writes')";

/// Superusers have no limit of their own. -1 means no limit.
const CONNECTION_LIMITS: &str = "SELECT limits.name, limits.connections
    FROM pg_roles CROSS JOIN pg_database CROSS JOIN LATERAL (VALUES
        ('max_connections', current_setting('max_connections')::bigint - CASE WHEN rolsuper THEN 0
            ELSE current_setting('superuser_reserved_connections')::bigint END),
        ('the CONNECTION LIMIT of the user', CASE WHEN NOT rolsuper THEN rolconnlimit END),
        ('the CONNECTION LIMIT of the database', CASE WHEN NOT rolsuper THEN datconnlimit END)
    ) AS limits (name, connections)
    WHERE rolname = session_user AND datname = current_database() AND limits.connections >= 0";

impl Dialect for PostgresServer {
    const NAME: &'static str = "postgres";

    const WORDS: Words = Words {
        begin: "BEGIN",
        begin_snapshot: "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY",
        // Row locks do not cover rows that do not exist yet. Without this lock, two transactions
        // could both find a SKU absent and create it, although both asked for that.
        lock_sku: Some("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))"),
        waits_for_inserts: false,
        lock_rows: " FOR UPDATE",
        lock_rows_now: " FOR UPDATE NOWAIT",
        lock_free_rows: " FOR UPDATE OF stock SKIP LOCKED",
        join_stock: "JOIN stock",
        begin_brief: "BEGIN; SET LOCAL lock_timeout = 100",
        soon: "",
        // `now()` is the time at the start of the transaction.
        now: "extract(epoch FROM clock_timestamp()) * 1000",
        created_at: r#"to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"#,
        integer: "bigint",
        no_table: "",
        use_index: "",
        begin_read_uncommitted: None,
        wanted: "(SELECT value ->> 0 AS text_1, value ->> 1 AS text_2, (value ->> 0)::uuid AS bytes
            FROM json_array_elements($1::json)) AS wanted",
        plans_for_any_size: false,
    };

    async fn conditional_write(
        mut connection: PooledConnection<Self>,
        write: &mut ConditionalWrite<'_>,
    ) -> Result<Option<AttemptOutcome>> {
        write.send_on(&connection);
        // `fetch` reads the complete answer. Its last message confirms the commit.
        let statement = Statement::built(update_and_insert(write));
        let written = connection.fetch(statement, &write.values()).await;
        match written {
            Ok(mut rows) => Ok(rows.pop().map(|(available,)| deducted(available))),
            Err(error) if classify(&error) == Verdict::Duplicate => {
                Ok(Some(AttemptOutcome::Duplicate))
            }
            Err(error) if is_undone(&error) => Ok(None),
            Err(error) if write.has_key() && waited_for_the_ledger(&error) => {
                Err(StoreError::KeyInFlight(Box::new(error)))
            }
            Err(error) => Err(in_autocommit(error)),
        }
    }

    async fn write(session: Session<Self>, write: &Write<'_>) -> Result<Written> {
        write::write(session, write).await
    }

    async fn unsafe_settings(connection: &mut PooledConnection<Self>) -> sqlx::Result<Vec<String>> {
        let found: Vec<(String, String, String, String)> = connection.fetch(SETTINGS, &[]).await?;
        let found = found.iter();
        Ok(found
            .flat_map(|(commit, standbys, fsync, pages)| complaints(commit, standbys, fsync, pages))
            .collect())
    }

    async fn connection_limits(
        connection: &mut PooledConnection<Self>,
    ) -> sqlx::Result<Vec<(String, i64)>> {
        connection.fetch(CONNECTION_LIMITS, &[]).await
    }
}

/// Updates the level and inserts the movement in one statement, which is a transaction by itself.
/// It takes one round trip, and the row is not locked while messages travel.
fn update_and_insert(write: &ConditionalWrite<'_>) -> String {
    let now = PostgresServer::WORDS.now;
    format!(
        "WITH written AS ({update}, {in_time_still}),
            recorded AS (
                INSERT INTO movement ({columns}) SELECT {known}, available, version FROM written
                RETURNING 1
            )
        SELECT available, {is_recorded} FROM written",
        is_recorded = unless_missing("EXISTS (SELECT FROM recorded)", "version"),
        update = write.update(now),
        in_time_still = after_the_wait(&ConditionalWrite::in_time(now)),
        columns = *INSERT_COLUMNS,
        known = *INSERT_PARAMETERS,
    )
}

/// A column: a division by zero undoes the statement if the condition does not hold. In what an `UPDATE`
/// returns, it is evaluated after the wait for the row.
///
/// The condition of the `UPDATE` is evaluated before that wait, and not again if the holder of the lock
/// rolls back. A `SELECT … FOR UPDATE` before it would lock the row twice.
fn after_the_wait(condition: &str) -> String {
    format!("1 / ({condition})::integer")
}

/// A column that undoes the statement, by reading a text as a number, if movements are missing: a trigger may
/// leave them out. That is an error, and no refusal. Without a column in the text, the planner would read it.
fn unless_missing(condition: &str, column: &str) -> String {
    format!(
        "CASE WHEN {condition} THEN 0
            ELSE ('movements are missing beside ' || {column})::integer END"
    )
}

/// Whether a statement has undone itself because a condition of [`after_the_wait`] does not hold. A division by
/// zero in a trigger has a context.
fn is_undone(error: &sqlx::Error) -> bool {
    let error = error.as_database_error();
    let error = error.and_then(|error| error.try_downcast_ref::<PgDatabaseError>());
    error.is_some_and(|error| error.code() == "22012" && error.r#where().is_none())
}

#[cfg(test)]
mod tests {
    use super::update_and_insert;
    use crate::sql::conditional_write::tests::sample;

    /// `make bench` sends this with the database's own load tool.
    #[test]
    fn single_sql() {
        insta::assert_snapshot!(update_and_insert(&sample()));
    }
}
