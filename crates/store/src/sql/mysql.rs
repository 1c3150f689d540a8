//! MariaDB and MySQL.
//!
//! Guarantees: the server itself bounds locks and, on MariaDB, idle transactions. A lock wait that
//! times out undoes the statement only, so every error path rolls back. A lock on a key may cover the
//! gap before it, so a wait for the ledger does not prove that the same key is in flight.

use super::conditional_write::ConditionalWrite;
use super::dialect::Dialect;
use super::errors::{Verdict, classify, in_autocommit};
use super::pool::{PooledConnection, Server as _, Transaction};
use super::statement::values;
use super::statements::Files;
use super::write::{Session, Write, Written, WrittenLevel};
use crate::{AttemptOutcome, Result, StoreError};

mod connect;
mod galera;
mod parameters;
mod procedure;
mod requirements;

pub(super) use connect::MySqlServer;

impl Dialect for MySqlServer {
    const NAME: &'static str = "mysql";

    const FILES: Files = [
        include_str!("mysql/words.sql"),
        include_str!("mysql/write.sql"),
    ];

    const KEEPS_PLANS: bool = true;

    const WAITS_FOR_INSERTS: bool = true;

    /// One call of a procedure, which is a whole transaction.
    async fn conditional_write(
        connection: PooledConnection<Self>,
        write: &mut ConditionalWrite<'_>,
    ) -> Result<Option<AttemptOutcome>> {
        // The server leaves the transaction open if it interrupts the call.
        let mut tx = Transaction::begun(connection);
        write.send_on(&tx);
        let called = tx
            .fetch((write.statement)(Self::texts()), &write.values())
            .await;
        match called {
            Ok(mut rows) => {
                tx.ended();
                Ok(rows
                    .pop()
                    .map(|(remaining,)| AttemptOutcome::Deducted { remaining }))
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
                level.sku.as_str(),
                level.warehouse.as_str(),
                write.strategy(),
                level.read_version(),
                write.expires_at,
                -level.delta,
                level.movements,
                &*sales,
            ];
            let called = tx.fetch(&Self::texts().write_sales, &values).await;
            let available = |(available,): (i64,)| (0, available);
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
        let called = tx.fetch(&Self::texts().write, &values).await;
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
