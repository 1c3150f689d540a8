//! PostgreSQL.
//!
//! Guarantees: a statement that waited for a row checks its condition against the row's new values.
//! The server limits how long a session waits for locks, runs a statement, or idles in a
//! transaction.

use sqlx::{Postgres, Row as _};

use super::batch::{self, BatchWrite, Written};
use super::conditional_write::{ConditionalWrite, deducted};
use super::dialect::{Dialect, Statement, Value, fetch, query};
use super::errors::{Verdict, before_commit, classify, in_autocommit, waited_for_the_ledger};
use super::merged::{MergedWrite, WrittenLevel};
use super::pool::{PooledConnection, Transaction};
use super::statements::{INSERT_COLUMNS, INSERT_PARAMETERS, Words};
use crate::{AttemptOutcome, Result, StoreError};

mod batches;
mod connect;
mod requirements;

use batches::{KEY_WAIT_MILLIS, bind_sales, sales_as_table};
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
        idle_limit: "extract(epoch FROM
            current_setting('idle_in_transaction_session_timeout')::interval) * 1000",
        wait_for_movements: "",
        // A transaction keeps its lock until others can see what it has written, even while its COMMIT
        // waits for a standby. The start of another role's transaction is not shown.
        oldest_write: "(SELECT min(coalesce(extract(epoch FROM xact_start) * 1000, 0))
            FROM pg_locks lock LEFT JOIN pg_stat_activity activity ON activity.pid = lock.pid
            WHERE lock.relation = 'movement'::regclass AND lock.mode = 'RowExclusiveLock'
                AND lock.database = (SELECT oid FROM pg_database WHERE datname = current_database()))",
    };

    fetch!(query::<Postgres>);

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
            Err(error) if has_expired(&error) => Ok(None),
            Err(error) if write.has_key() && waited_for_the_ledger(&error) => {
                Err(StoreError::KeyInFlight(Box::new(error)))
            }
            Err(error) => Err(in_autocommit(error)),
        }
    }

    async fn write_batch(
        mut connection: PooledConnection<Self>,
        write: &BatchWrite<'_>,
    ) -> Result<Written> {
        let in_time = format!("{} < $5", Self::WORDS.now);
        let text = format!(
            "WITH written AS (
                    {update}
                    RETURNING on_hand - held + backorder_limit AS available, version - $7 AS version,
                        {in_time_still}, set_config('lock_timeout', '{KEY_WAIT_MILLIS}', true)
                ), recorded AS (
                    {insert}
                )
            SELECT available FROM written",
            update = batch::update(&in_time),
            in_time_still = after_the_wait(&in_time),
            insert = batch::insert::<Self>(
                &format!("written, {}", sales_as_table(None)),
                ["$1", "$2", "written.available", "written.version"],
                "$3",
                "",
            ),
        );
        let query = query::<Postgres>(Statement::built(text), &write.guarded());
        let query = bind_sales(
            query.map_err(before_commit)?,
            &write.sold().collect::<Vec<_>>(),
        );
        let rows = query.fetch_all(connection.send()).await;
        let available = connection.received(rows).and_then(|rows| {
            let row = rows.first();
            row.map(|row| row.try_get(0)).transpose()
        });
        match available {
            Ok(Some(available)) => Ok(Written::Committed(available)),
            Ok(None) => Ok(Written::Refused),
            Err(error) if classify(&error) == Verdict::Duplicate => Ok(Written::Duplicate),
            Err(error) if has_expired(&error) => Ok(Written::Refused),
            Err(error) if waited_for_the_ledger(&error) => {
                Err(StoreError::KeyInFlight(Box::new(error)))
            }
            Err(error) => Err(in_autocommit(error)),
        }
    }

    async fn write_merged(
        connection: PooledConnection<Self>,
        write: &MergedWrite<'_>,
    ) -> Result<Option<Vec<WrittenLevel>>> {
        batches::write_merged(connection, write).await
    }

    async fn insert_batch(
        tx: &mut Transaction<Self>,
        write: &BatchWrite<'_>,
        values: &[Value<'_>],
    ) -> sqlx::Result<u64> {
        let text = batch::insert_in_time::<Self>(&sales_as_table(None));
        let query = query::<Postgres>(Statement::built(text), values)?;
        let query = bind_sales(query, &write.sold().collect::<Vec<_>>());
        let executed = query.execute(tx.send()).await;
        Ok(tx.received(executed)?.rows_affected())
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

/// The values of one column, in the order of the rows.
fn column<'a, R, T>(rows: &'a [R], value: impl Fn(&'a R) -> T) -> Vec<T> {
    rows.iter().map(value).collect()
}

/// Updates the level and inserts the movement in one statement, which is a transaction by itself.
/// It takes one round trip, and the row is not locked while messages travel.
fn update_and_insert(write: &ConditionalWrite<'_>) -> String {
    let now = PostgresServer::WORDS.now;
    format!(
        "WITH written AS ({update}, {in_time_still})
            INSERT INTO movement ({columns})
            SELECT {known}, available, version
            FROM written RETURNING available_after",
        update = write.update(now),
        in_time_still = after_the_wait(&ConditionalWrite::in_time(now)),
        columns = *INSERT_COLUMNS,
        known = *INSERT_PARAMETERS,
    )
}

/// A column that an `UPDATE` returns: a division by zero undoes the statement if the condition does not
/// hold after the wait for the row.
///
/// The condition of the `UPDATE` is evaluated before that wait, and not again if the holder of the lock
/// rolls back. A `SELECT … FOR UPDATE` before it would lock the row twice.
fn after_the_wait(condition: &str) -> String {
    format!("1 / ({condition})::integer")
}

/// Whether an attempt expired while it waited for the row, by [`after_the_wait`].
fn has_expired(error: &sqlx::Error) -> bool {
    let error = error.as_database_error();
    error.is_some_and(|error| error.code().as_deref() == Some("22012"))
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
