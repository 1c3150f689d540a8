//! What a Galera cluster needs: reads that follow the cluster, and the lock of a migration.
//!
//! `get_lock` is local to a node. So the lock is a row that a transaction inserts and never commits. With streaming replication Galera
//! certifies the row at once, and the transaction then holds it on every node: of two that insert it at the
//! same time, one is rolled back. The cluster ends the transaction with its session, and with its node. So no
//! clock decides who holds the lock, and a holder that was paused still holds it.

use std::future::pending;

use sqlx::migrate::{Migrate as _, MigrateError};
use sqlx::mysql::MySqlDatabaseError;
use sqlx::{Executor as _, MySqlConnection};

use crate::sql::migration::{self, Exclusion, TABLE};

/// No row on a server that cannot be part of a cluster.
const IS_ON: &str = "SHOW VARIABLES WHERE variable_name = 'wsrep_on' AND value = 'ON'";

/// Reads wait until the node has applied what the cluster committed before: the migrations of the process
/// that had the lock.
const READ_LATEST: &str = "SET SESSION wsrep_sync_wait = 15";

/// The same for each session of the service, at reads and where a transaction begins. Otherwise the repeat of a request
/// could be refused by a node that has not applied its sale yet.
const FOLLOW: &str = "SET SESSION wsrep_sync_wait = 1";

/// What a server without Galera may answer: the variable is unknown.
const UNKNOWN_VARIABLE: u16 = 1193;

/// Inserts the row, in the only table that is there before the first migration. Waits for a second.
const LOCK: &str = "SET SESSION wsrep_trx_fragment_unit = 'statements',
        SESSION wsrep_trx_fragment_size = 1 /*M! , SESSION idle_transaction_timeout = 0 */;
    START TRANSACTION;
    INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
        VALUES (0, 'lock', FALSE, '', 0)";

/// Keeps the transaction open until the session that migrates has ended, because a node goes on with its
/// statement for a while if the process is killed. That session has this lock of the node.
const KEEP: &str = "SELECT get_lock(concat('stocklock.', md5(database())), 1e8)";

pub(super) async fn is_on(connection: &mut MySqlConnection) -> sqlx::Result<bool> {
    let row = sqlx::query(IS_ON).fetch_optional(connection).await?;
    Ok(row.is_some())
}

/// Lets the reads of a session wait for the cluster, if the server can be a part of one.
pub(super) async fn follow(connection: &mut MySqlConnection) -> sqlx::Result<()> {
    let followed = connection.execute(FOLLOW).await.map(drop);
    followed.or_else(|error| {
        let answer = error.as_database_error();
        let answer = answer.and_then(|it| it.try_downcast_ref::<MySqlDatabaseError>());
        match answer.map(MySqlDatabaseError::number) {
            Some(UNKNOWN_VARIABLE) => Ok(()),
            _ => Err(error),
        }
    })
}

/// Excludes the processes at all nodes, by a transaction of `keeper`. `connection` has the lock of its node.
pub(super) async fn try_lock(
    connection: &mut MySqlConnection,
    mut keeper: MySqlConnection,
) -> Result<Option<Exclusion>, MigrateError> {
    connection.execute(READ_LATEST).await?;
    match keeper.execute(LOCK).await.map_err(MigrateError::from) {
        Ok(_) => {}
        Err(error) if migration::waited_for_lock(&error) => return Ok(None),
        Err(error) if migration::is_missing_table(&error) => {
            connection.ensure_migrations_table(TABLE).await?;
            return Ok(None);
        }
        Err(error) => return Err(error),
    }
    Ok(Some(Box::pin(async move {
        match keeper.execute(KEEP).await {
            Err(error) => error,
            // A proxy has connected `keeper` to another node.
            Ok(_) => pending().await,
        }
    })))
}
