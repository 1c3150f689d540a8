//! The settings of MariaDB and MySQL: those under which the service would fail, and those under
//! which an acknowledged sale can be lost.

use sqlx::MySqlConnection;

use crate::sql::pool::{PooledConnection, Server};
use crate::sql::rows::rows;

const FLUSHES: &str = "SELECT cast(@@innodb_flush_log_at_trx_commit AS signed),
        cast(@@log_bin AS signed), cast(@@sync_binlog AS signed)";

/// The columns of [`Found`]. No variable shows `sysdate_is_now`. With it, `sysdate` is the time at which the
/// statement started. MariaDB reads the first comment only, MySQL the second. `json_value` gave a text for
/// `null` before MariaDB 10.6.10 (MDEV-27151); then no movement would be found in what is written.
const REQUIRED: &str = "SELECT cast(@@version AS char) AS version,
        cast(0 /*M!100600 + (json_value('[null]', '$[0]') IS NULL) */ /*!80029 + 1 */ AS signed)
            AS is_known,
        cast(@@log_bin AS signed) AS binary_log, cast(@@binlog_format AS char) AS binlog_format,
        cast(@@max_allowed_packet AS signed) AS packet,
        cast(sleep(0.001) = 0 AND sysdate(6) = now(6) AS signed) AS sysdate_is_now,
        cast(@@innodb_page_size AS signed) AS page_size,
        cast(@@innodb_default_row_format AS char) AS row_format,
        cast(EXISTS (SELECT table_name FROM information_schema.tables
            WHERE table_schema = database() AND table_name = 'movement') AS signed) AS has_ledger";

/// The longest message that the service sends.
const LONGEST_MESSAGE: i64 = 1 << 20;

/// The smallest page in which an entry of the longest index fits: a lock's name has up to 2,048 bytes.
const SMALLEST_PAGE: i64 = 16_384;

rows! {
    /// What decides whether the service can work on a server.
    #[derive(Debug, Clone)]
    struct Found {
        version: String,
        /// Whether the version has all that the statements use.
        is_known: i64,
        binary_log: i64,
        binlog_format: String,
        packet: i64,
        sysdate_is_now: i64,
        page_size: i64,
        row_format: String,
        /// Whether the schema is there, whose tables keep their format.
        has_ledger: i64,
    }
}

/// One sentence for each setting under which the service would fail.
pub(super) async fn refusals(connection: &mut MySqlConnection) -> sqlx::Result<Vec<String>> {
    let found: Found = sqlx::query_as(REQUIRED).fetch_one(connection).await?;
    Ok(problems(&found))
}

fn problems(found: &Found) -> Vec<String> {
    let mut problems = Vec::new();
    if found.is_known == 0 {
        problems.push(format!(
            "the server has version {}, which lacks what the statements use; use MariaDB \
             10.6.10, 10.7.6, 10.8.5, 10.9.3 or later, or MySQL 8.0.29 or later",
            found.version
        ));
    }
    if found.binary_log != 0 && found.binlog_format == "STATEMENT" {
        problems.push(
            "binlog_format is STATEMENT, with which the server refuses writes at READ COMMITTED; \
             set binlog_format = ROW"
                .to_owned(),
        );
    }
    if found.packet < LONGEST_MESSAGE {
        problems.push(format!(
            "max_allowed_packet is {}, so a batch of movements may not fit into a message; \
             set max_allowed_packet = {LONGEST_MESSAGE} or more",
            found.packet
        ));
    }
    if found.sysdate_is_now != 0 {
        problems.push(
            "sysdate_is_now is on, so the server cannot compare a deadline with the present time; \
             remove sysdate_is_now"
                .to_owned(),
        );
    }
    if found.page_size < SMALLEST_PAGE {
        problems.push(format!(
            "innodb_page_size is {}, which is too small for an index of the schema; use a server that \
             was created with innodb_page_size = {SMALLEST_PAGE} or more",
            found.page_size
        ));
    }
    if found.has_ledger == 0 && !found.row_format.eq_ignore_ascii_case("dynamic") {
        problems.push(format!(
            "innodb_default_row_format is {}, whose index entries are too short for the schema; set \
             innodb_default_row_format = dynamic",
            found.row_format
        ));
    }
    problems
}

/// One sentence for each setting under which an acknowledged sale can be lost.
pub(super) async fn complaints(
    connection: &mut PooledConnection<impl Server>,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The others are tested on a server, which cannot have another version or size of pages.
    #[test]
    fn old_server_or_small_page_is_refused_with_the_remedy() {
        let good = Found {
            version: "10.11.6-MariaDB".to_owned(),
            is_known: 1,
            binary_log: 0,
            binlog_format: "MIXED".to_owned(),
            packet: LONGEST_MESSAGE,
            sysdate_is_now: 0,
            page_size: SMALLEST_PAGE,
            row_format: "dynamic".to_owned(),
            has_ledger: 0,
        };
        assert_eq!(problems(&good), [""; 0]);
        let old = Found {
            version: "10.5.23-MariaDB".to_owned(),
            is_known: 0,
            ..good.clone()
        };
        let small = Found {
            page_size: 8_192,
            ..good
        };
        for (found, setting, remedy) in [
            (old, "version 10.5.23-MariaDB", "MySQL 8.0.29 or later"),
            (
                small,
                "innodb_page_size is 8192",
                "innodb_page_size = 16384 or more",
            ),
        ] {
            let problems = problems(&found);
            let [problem] = &problems[..] else {
                panic!("{problems:?}");
            };
            assert!(problem.contains(setting), "{problem}");
            assert!(problem.ends_with(remedy), "{problem}");
        }
    }
}
