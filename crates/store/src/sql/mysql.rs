//! MariaDB and MySQL.
//!
//! Guarantees: the server itself bounds locks and, on MariaDB, idle transactions. A lock wait that
//! times out undoes the statement only, so every error path rolls back.

use futures_util::TryStreamExt;
use sqlx::mysql::MySqlQueryResult;
use sqlx::query::Query;
use sqlx::{Either, MySql, MySqlConnection};

use super::conditional_write::{ConditionalWrite, deducted};
use super::dialect::{self, Dialect, Statement, Value, fetch, trusted};
use super::errors::{Verdict, classify, in_autocommit, in_commit};
use super::ledger_row::LedgerRow;
use super::pool::{Pool, PooledConnection, Transaction};
use super::statements::Words;
use crate::{AttemptOutcome, Result, StoreError};

mod bulk;
mod connect;
mod parameters;
mod requirements;
mod script;

pub(super) use connect::MySqlServer;

impl Dialect for MySqlServer {
    const NAME: &'static str = "mysql";

    const WORDS: Words = Words {
        begin: "BEGIN",
        // At READ COMMITTED row locks do not cover rows that do not exist yet. At REPEATABLE READ
        // the locking read locks the gaps too, so only one of two transactions that find a SKU
        // absent can create it. Otherwise they could give it two homes.
        begin_set_level: "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; BEGIN",
        begin_snapshot: "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;
            START TRANSACTION READ ONLY, WITH CONSISTENT SNAPSHOT",
        lock_sku: None,
        lock_rows: " FOR UPDATE",
        // `now` is the time at the start of the statement.
        now: "unix_timestamp(sysdate(6)) * 1000",
        created_at: "date_format(created_at, '%Y-%m-%dT%H:%i:%s.%fZ')",
        integer: "signed",
        entry_time: "from_unixtime($millis / 1000)",
        no_table: " FROM dual",
        // MariaDB 10.11 would scan a level from its newest movement to where the page starts.
        use_index: " FORCE INDEX ($index)",
    };

    fetch!(query);

    /// One message of five statements: see [`script::script`].
    async fn conditional_write(
        pool: &Pool<Self>,
        write: &ConditionalWrite<'_>,
    ) -> Result<Option<AttemptOutcome>> {
        let mut tx = Transaction::begun(pool.acquire().await?);
        write.send_on(&tx);
        let (answers, end) = answers(tx.send(), script::script(write, Self::WORDS.now)).await;
        let Err(error) = tx.received(end) else {
            let [_, _, update, _, _] = &*answers else {
                let problem = format!("{} answers to five statements", answers.len());
                return Err(StoreError::outcome_unknown(problem));
            };
            tx.ended();
            let available = update.last_insert_id().cast_signed();
            return Ok((update.rows_affected() > 0).then(|| deducted(available)));
        };
        if error.as_database_error().is_some() {
            // The server stopped at this statement, and the transaction is still open.
            tx.roll_back().await;
        }
        match (answers.len(), classify(&error)) {
            (script::UNTIL_INSERT, Verdict::Duplicate) => Ok(Some(AttemptOutcome::Duplicate)),
            (script::UNTIL_INSERT, Verdict::RollBackThenRetry) if write.has_key() => {
                Err(StoreError::KeyInFlight(Box::new(error)))
            }
            (script::UNTIL_COMMIT.., _) => Err(in_commit(error)),
            _ => Err(in_autocommit(error)),
        }
    }

    async fn insert_entries(tx: &mut Transaction<Self>, rows: &[&LedgerRow]) -> sqlx::Result<()> {
        let inserted = bulk::insert(tx.send(), rows).await;
        tx.received(inserted)
    }

    async fn unsafe_settings(connection: &mut PooledConnection<Self>) -> sqlx::Result<Vec<String>> {
        requirements::complaints(connection).await
    }
}

/// Converts the numbered parameters, because the driver has positional ones.
fn query(
    statement: Statement,
    values: &[Value<'_>],
) -> sqlx::Result<Query<'static, MySql, <MySql as sqlx::Database>::Arguments>> {
    let Statement { text, persistent } = statement;
    let (text, values) = parameters::positional(text.as_str(), values);
    let text = trusted(text);
    dialect::query(Statement { text, persistent }, &values)
}

/// The answers to a script's statements, and how the last one ended.
async fn answers(
    connection: &mut MySqlConnection,
    script: String,
) -> (Vec<MySqlQueryResult>, sqlx::Result<()>) {
    let mut answers = Vec::with_capacity(5);
    let mut results = sqlx::raw_sql(trusted(script)).fetch_many(connection);
    let end = loop {
        match results.try_next().await {
            Ok(Some(Either::Left(answer))) => answers.push(answer),
            Ok(Some(Either::Right(_))) => {} // No statement of a script returns rows.
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    drop(results);
    (answers, end)
}
