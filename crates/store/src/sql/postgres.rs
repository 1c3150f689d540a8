//! PostgreSQL.
//!
//! Guarantees: a statement that waited for a row checks its condition against the row's new values.
//! The server limits how long a session waits for locks, runs a statement, or idles in a
//! transaction.

use sqlx::{PgConnection, Postgres, Row as _};

use super::batch::{self, BatchWrite, Written};
use super::conditional_write::{ConditionalWrite, deducted};
use super::dialect::{AnyRow, Dialect, Statement, Value, fetch, query, trusted};
use super::errors::{Verdict, before_commit, classify, in_autocommit, waited_for_the_ledger};
use super::ledger_row::LedgerRow;
use super::merged::{MergedWrite, WrittenLevel};
use super::pool::{Pool, PooledConnection, Transaction};
use super::statements::{INSERT_COLUMNS, INSERT_PARAMETERS, NEXT_PARAMETERS, Words};
use crate::{AttemptOutcome, Result, StoreError};
use stocklock_core::stock::Remarks;

mod batches;
mod connect;
mod requirements;

use batches::{KEY_WAIT_MILLIS, bind_sales, sales_as_table};
pub(super) use connect::PostgresServer;
use requirements::complaints;

const SETTINGS: &str = "SELECT current_setting('synchronous_commit'),
        current_setting('synchronous_standby_names'),
        current_setting('fsync'), current_setting('full_page_writes')";

impl Dialect for PostgresServer {
    const NAME: &'static str = "postgres";

    const WORDS: Words = Words {
        begin: "BEGIN",
        begin_snapshot: "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY",
        // Row locks do not cover rows that do not exist yet. Without this lock, two transactions
        // could both find a SKU absent and give it two homes.
        lock_sku: Some("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))"),
        waits_for_inserts: false,
        lock_rows: " FOR UPDATE",
        share_rows: " FOR SHARE",
        // `now()` is the time at the start of the transaction.
        now: "extract(epoch FROM clock_timestamp()) * 1000",
        created_at: r#"to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"#,
        integer: "bigint",
        entry_time: "to_timestamp($millis / 1000.0)",
        upsert_levels: "$list ON CONFLICT (sku, warehouse) DO UPDATE SET",
        upserted: "excluded.$column",
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

    /// With one array parameter per column, so that the text is always the same.
    async fn fetch_list<T: AnyRow>(
        connection: &mut PgConnection,
        text: &str,
        list: &[Vec<Value<'_>>],
    ) -> sqlx::Result<Vec<T>> {
        let types = list[0].iter().map(type_name).zip(1..);
        let arrays = types.map(|(name, number)| format!("${number}::{name}[]"));
        let arrays = arrays.collect::<Vec<_>>().join(", ");
        let text = text.replace("$list", &format!("SELECT * FROM unnest({arrays})"));
        let mut query = sqlx::query(trusted(text));
        for (number, first) in list[0].iter().enumerate() {
            macro_rules! bind_column {
                ($variant:ident) => {
                    query.bind(column(list, |row| match row[number] {
                        Value::$variant(value) => value,
                        other => unreachable!("{other:?} is not of the type of {first:?}"),
                    }))
                };
            }
            query = match first {
                Value::Int(_) => bind_column!(Int),
                Value::Text(_) => bind_column!(Text),
                Value::Bytes(_) => bind_column!(Bytes),
                Value::Uuid(_) => bind_column!(Uuid),
            };
        }
        let rows = query.fetch_all(connection).await?;
        rows.iter().map(T::from_row).collect()
    }

    async fn conditional_write(
        pool: &Pool<Self>,
        write: &ConditionalWrite<'_>,
    ) -> Result<Option<AttemptOutcome>> {
        let mut connection = pool.acquire().await?;
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

    async fn insert_entries(tx: &mut Transaction<Self>, rows: &[LedgerRow]) -> sqlx::Result<()> {
        let mut query = sqlx::query(trusted(insert_entries()))
            .bind(column(rows, |row| row.operation_id))
            .bind(column(rows, |row| row.sku.as_str()))
            .bind(column(rows, |row| row.warehouse.as_str()))
            .bind(column(rows, |row| row.kind.as_str()))
            .bind(column(rows, |row| row.delta))
            .bind(column(rows, |row| row.read_version))
            .bind(column(rows, |row| row.strategy.as_deref()))
            .bind(column(rows, |row| &*row.durability))
            .bind(column(rows, |row| &*row.caller))
            .bind(column(rows, |row| row.idempotency_key.as_deref()))
            .bind(column(rows, |row| row.request_hash.as_deref()));
        for remark in 0..Remarks::NAMES.len() {
            query = query.bind(column(rows, |row| row.remarks.texts()[remark]));
        }
        let query = query
            .bind(column(rows, |row| row.available_after))
            .bind(column(rows, |row| row.level_version))
            .bind(column(rows, |row| row.entry.millis))
            .bind(column(rows, |row| row.entry.number));
        let inserted = query.execute(tx.send()).await;
        tx.received(inserted).map(drop)
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
}

/// Inserts any number of rows with one array parameter per column. The text is therefore always the
/// same, and each connection prepares it once.
fn insert_entries() -> String {
    let remarks = Remarks::NAMES.join(", ");
    let remark_values = (12..=LedgerRow::KNOWN).map(|number| format!("${number}::text[]"));
    let remark_values = remark_values.collect::<Vec<_>>().join(", ");
    let [available, level_version, millis, number, ..] = &*NEXT_PARAMETERS;
    format!(
        "INSERT INTO movement ({columns}, created_at, journal_millis, journal_number)
        SELECT operation_id, 0, sku, warehouse, kind, delta, read_version, strategy, durability,
            caller, idempotency_key, request_hash, {remarks}, available_after, level_version,
            to_timestamp(journal_millis / 1000.0), journal_millis, journal_number
        FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[],
                $7::text[], $8::text[], $9::text[], $10::text[], $11::bytea[], {remark_values},
                {available}::bigint[], {level_version}::bigint[], {millis}::bigint[],
                {number}::bigint[])
            AS row (operation_id, sku, warehouse, kind, delta, read_version, strategy, durability,
                caller, idempotency_key, request_hash, {remarks}, available_after, level_version,
                journal_millis, journal_number)",
        columns = *INSERT_COLUMNS,
    )
}

fn type_name(value: &Value<'_>) -> &'static str {
    match value {
        Value::Int(_) => "bigint",
        Value::Text(_) => "text",
        Value::Bytes(_) => "bytea",
        Value::Uuid(_) => "uuid",
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
