//! The settings of MariaDB and MySQL: those under which the service would fail, and those under
//! which an acknowledged sale can be lost.

use sqlx::MySqlConnection;

use super::MySqlServer;
use crate::sql::pool::PooledConnection;

const FLUSHES: &str = "SELECT cast(@@innodb_flush_log_at_trx_commit AS signed),
        cast(@@log_bin AS signed), cast(@@sync_binlog AS signed)";

/// No variable shows `sysdate_is_now`. With it, `sysdate` is the time at which the statement started.
const REQUIRED: &str = "SELECT cast(@@log_bin AS signed), cast(@@binlog_format AS char),
        cast(@@max_allowed_packet AS signed),
        cast(sleep(0.001) = 0 AND sysdate(6) = now(6) AS signed)";

/// The longest message that the service sends.
const LONGEST_MESSAGE: i64 = 1 << 20;

/// One sentence for each setting under which the service would fail.
pub(super) async fn refusals(connection: &mut MySqlConnection) -> sqlx::Result<Vec<String>> {
    let found = sqlx::query_as(REQUIRED).fetch_one(connection).await?;
    let (binary_log, format, packet, sysdate_is_now): (i64, String, i64, i64) = found;
    let mut refusals = Vec::new();
    if binary_log != 0 && format == "STATEMENT" {
        refusals.push(
            "binlog_format is STATEMENT, with which the server refuses writes at READ COMMITTED; \
             set binlog_format = ROW"
                .to_owned(),
        );
    }
    if packet < LONGEST_MESSAGE {
        refusals.push(format!(
            "max_allowed_packet is {packet}, so a batch of movements may not fit into a message; \
             set max_allowed_packet = {LONGEST_MESSAGE} or more"
        ));
    }
    if sysdate_is_now != 0 {
        refusals.push(
            "sysdate_is_now is on, so the server cannot compare a deadline with the present time; \
             remove sysdate_is_now"
                .to_owned(),
        );
    }
    Ok(refusals)
}

/// One sentence for each setting under which an acknowledged sale can be lost.
pub(super) async fn complaints(
    connection: &mut PooledConnection<MySqlServer>,
) -> sqlx::Result<Vec<String>> {
    let found: Vec<(i64, i64, i64)> = connection.fetch(FLUSHES, &[]).await?;
    let mut problems = Vec::new();
    for (flush, binary_log, sync_binary_log) in found {
        if flush != 1 {
            problems.push(format!(
                "innodb_flush_log_at_trx_commit is {flush}: a crash loses sales that were \
                 acknowledged; set innodb_flush_log_at_trx_commit = 1"
            ));
        }
        if binary_log != 0 && sync_binary_log != 1 {
            problems.push(format!(
                "sync_binlog is {sync_binary_log}: after a power cut the replicas may lack \
                 sales that were acknowledged; set sync_binlog = 1"
            ));
        }
    }
    Ok(problems)
}
