//! MariaDB and MySQL.
//!
//! Guarantees: the server itself bounds locks and, on MariaDB, idle transactions. A lock wait that
//! times out undoes the statement only, so every error path rolls back. A lock on a key may cover the
//! gap before it, so a wait for the ledger does not prove that the same key is in flight.

use super::conditional_write::{ConditionalWrite, deducted};
use super::dialect::Dialect;
use super::errors::{Verdict, classify, in_autocommit};
use super::pool::{PooledConnection, Transaction};
use super::statement::values;
use super::statements::Words;
use super::write::{Session, Write, Written, WrittenLevel};
use crate::{AttemptOutcome, Result, StoreError};

mod connect;
mod parameters;
mod procedure;
mod requirements;

pub(super) use connect::MySqlServer;

impl Dialect for MySqlServer {
    const NAME: &'static str = "mysql";

    const WORDS: Words = Words {
        begin: "BEGIN",
        begin_snapshot: "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;
            START TRANSACTION READ ONLY, WITH CONSISTENT SNAPSHOT",
        // Row locks do not cover rows that do not exist yet. Locks on the gaps between the rows, at
        // REPEATABLE READ, would: but transactions that create other SKUs share the gaps, and deadlock.
        lock_sku: None,
        waits_for_inserts: true,
        lock_rows: " FOR UPDATE",
        lock_rows_now: " FOR UPDATE NOWAIT",
        lock_free_rows: " FOR UPDATE SKIP LOCKED",
        // The optimizer would read all levels if there are few.
        join_stock: "STRAIGHT_JOIN stock FORCE INDEX (PRIMARY)",
        begin_brief: "BEGIN",
        // A lock wait is bounded in seconds. MySQL waits as long as the session does.
        soon: "/*M! SET STATEMENT max_statement_time = 0.1 FOR */ ",
        // `now` is the time at the start of the statement.
        now: "unix_timestamp(sysdate(6)) * 1000",
        created_at: "date_format(created_at, '%Y-%m-%dT%H:%i:%s.%fZ')",
        integer: "signed",
        no_table: " FROM dual",
        // MariaDB 10.11 would scan a level from its newest movement to where the page starts.
        use_index: " FORCE INDEX ($index)",
        begin_read_uncommitted: Some("SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED; BEGIN"),
        // With the collation of the columns: MariaDB reads the first comment, MySQL the second.
        wanted: "(SELECT text_1 COLLATE /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */ AS text_1,
                text_2 COLLATE /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */ AS text_2,
                unhex(text_1) AS bytes
            FROM json_table($1, '$[*]' COLUMNS (
                text_1 varchar(64) CHARACTER SET utf8mb4 PATH '$[0]',
                text_2 varchar(255) CHARACTER SET utf8mb4 PATH '$[1]')) AS list) AS wanted",
        plans_for_any_size: true,
    };

    /// One call of a procedure, which is a whole transaction.
    async fn conditional_write(
        connection: PooledConnection<Self>,
        write: &mut ConditionalWrite<'_>,
    ) -> Result<Option<AttemptOutcome>> {
        // The server leaves the transaction open if it interrupts the call.
        let mut tx = Transaction::begun(connection);
        write.send_on(&tx);
        let called = tx.fetch(procedure::call(), &write.values()).await;
        match called {
            Ok(mut rows) => {
                tx.ended();
                Ok(rows.pop().map(|(available,)| deducted(available)))
            }
            Err(error) if classify(&error) == Verdict::Duplicate => {
                tx.ended();
                Ok(Some(AttemptOutcome::Duplicate))
            }
            Err(error) => Err(in_autocommit(error)),
        }
    }

    /// One call of a procedure, which commits.
    async fn write(session: Session<Self>, write: &Write<'_>) -> Result<Written> {
        let (mut tx, begins) = match session {
            // The server leaves the transaction open if it interrupts the call.
            Session::Fresh(connection) => (Transaction::begun(connection), true),
            Session::Open(tx) => (tx, false),
        };
        // This procedure waits for rows and keys.
        let waits = begins && write.waits;
        if let (true, Some(level), Some(sales)) =
            (waits, write.only_level(), procedure::sales(write))
        {
            let values = values![
                level.sku,
                level.warehouse,
                write.strategy(),
                level.read_version,
                write.expires_at,
                -level.delta,
                level.movements,
                &*sales,
            ];
            let called = tx.fetch(procedure::call_sales(), &values).await;
            let available = |(available,): (i64,)| (level.number, available);
            let written = called.map(|rows| rows.into_iter().map(available).collect());
            return ended(tx, written);
        }
        let (levels, movements) = (write.levels_json(), procedure::movements(write));
        let values = values![
            i64::from(begins),
            i64::from(write.waits),
            i64::from(write.is_whole()),
            write.strategy(),
            write.expires_at,
            &*levels,
            &*movements,
        ];
        let called = tx.fetch(procedure::call_write(), &values).await;
        let written = match called.map(|mut rows: Vec<(String,)>| rows.pop()) {
            Ok(None) => Ok(Vec::new()),
            Ok(Some((written,))) => {
                let levels = serde_json::from_str(&written);
                Ok(levels.map_err(StoreError::outcome_unknown)?)
            }
            Err(error) => Err(error),
        };
        ended(tx, written)
    }

    async fn unsafe_settings(connection: &mut PooledConnection<Self>) -> sqlx::Result<Vec<String>> {
        requirements::complaints(connection).await
    }

    async fn connection_limits(
        connection: &mut PooledConnection<Self>,
    ) -> sqlx::Result<Vec<(String, i64)>> {
        requirements::connection_limits(connection).await
    }
}

/// How the procedure that has ended the transaction has written the levels.
fn ended(
    tx: Transaction<MySqlServer>,
    written: sqlx::Result<Vec<WrittenLevel>>,
) -> Result<Written> {
    let written = match written {
        Ok(levels) => Written::Levels(levels),
        Err(error) if classify(&error) == Verdict::Duplicate => Written::Duplicate,
        Err(error) => return Err(in_autocommit(error)),
    };
    tx.ended();
    Ok(written)
}
