//! PostgreSQL.
//!
//! Guarantees: a statement that waited for a row checks its condition against the row's new values.
//! The server limits how long a session waits for locks, runs a statement, or idles in a
//! transaction.

use sqlx::postgres::PgDatabaseError;

use super::conditional_write::ConditionalWrite;
use super::dialect::Dialect;
use super::errors::{Verdict, classify, in_autocommit, waited_for_the_ledger};
use super::pool::{PooledConnection, Server as _, committed, with_warning};
use super::statements::Files;
use super::write::{Session, Write, Written};
use crate::{AttemptOutcome, Result, StoreError};

mod connect;
mod requirements;
mod write;

pub(super) use connect::PostgresServer;
use requirements::{Settings, complaints};

/// Only a superuser sees the states of standbys; others see that there are some.
const SETTINGS: &str = "SELECT current_setting('synchronous_commit'),
        current_setting('synchronous_standby_names'),
        coalesce((SELECT 'a standby' FROM pg_stat_replication
            WHERE coalesce(state, 'streaming') = 'streaming' LIMIT 1), ''),
        current_setting('fsync'), current_setting('full_page_writes')";

impl Dialect for PostgresServer {
    const NAME: &'static str = "postgres";

    const FILES: Files = [
        include_str!("postgres/words.sql"),
        include_str!("postgres/write.sql"),
    ];

    const KEEPS_PLANS: bool = false;

    const WAITS_FOR_INSERTS: bool = false;

    const STANDBY: Option<[&str; 2]> = Some([
        "SELECT 1::bigint WHERE current_setting('synchronous_standby_names') <> ''",
        "SELECT pg_logical_emit_message(true, 'stocklock', '')",
    ]);

    async fn conditional_write(
        mut connection: PooledConnection<Self>,
        write: &mut ConditionalWrite<'_>,
    ) -> Result<Option<AttemptOutcome>> {
        write.send_on(&connection);
        // `fetch` reads the complete answer. Its last message confirms the commit.
        let statement = (write.statement)(Self::texts());
        let written = with_warning(connection.fetch(statement, &write.values())).await;
        match committed(written) {
            Ok(mut rows) => Ok(rows
                .pop()
                .map(|(remaining,)| AttemptOutcome::Deducted { remaining })),
            Err(error) if classify(&error) == Verdict::Duplicate => {
                Ok(Some(AttemptOutcome::Duplicate))
            }
            Err(error) if is_undone(&error) => Ok(None),
            Err(error) if write.row.key().is_some() && waited_for_the_ledger(&error) => {
                Err(StoreError::KeyInFlight(error.into()))
            }
            Err(error) => Err(in_autocommit(error)),
        }
    }

    async fn write(session: Session<Self>, write: &Write<'_>) -> Result<Written> {
        write::write(session, write).await
    }

    async fn unsafe_settings(connection: &mut PooledConnection<Self>) -> sqlx::Result<Vec<String>> {
        let found: Vec<Settings> = connection.fetch(SETTINGS, &[]).await?;
        Ok(found.iter().flat_map(complaints).collect())
    }
}

/// Whether a statement has undone itself by a division by zero, because a condition does not hold. A division by
/// zero in a trigger has a context.
fn is_undone(error: &sqlx::Error) -> bool {
    let error = error.as_database_error();
    let error = error.and_then(|error| error.try_downcast_ref::<PgDatabaseError>());
    error.is_some_and(|error| error.code() == "22012" && error.r#where().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `make bench` sends this with the database's own load tool.
    #[test]
    fn single_sql() {
        insta::assert_snapshot!(PostgresServer::texts().if_available.as_str());
    }
}
