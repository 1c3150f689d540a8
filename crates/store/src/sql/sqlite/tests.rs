//! Tests of the settings and of the time limits of connections.

use tokio::time::timeout;

use super::*;
use crate::StoreError;
use crate::sql::errors::before_commit;
use crate::sql::pool::{Pool, ServerHealth};

fn in_memory(file: SqliteFile) -> SqliteFile {
    SqliteFile {
        options: file.options.filename(":memory:"),
        ..file
    }
}

/// `2` is FULL: COMMIT returns after the log is on the disk.
#[tokio::test]
async fn every_commit_is_synced() {
    let file = in_memory(SqliteFile::at("sqlite://synced.db").unwrap().for_writer());
    let mut connection = file.open().await.unwrap();
    let synchronous = sqlx::query_scalar("PRAGMA synchronous");
    let synchronous: i64 = synchronous.fetch_one(&mut connection).await.unwrap();
    assert_eq!(synchronous, 2);
}

/// A bound that only ends a hang.
const SOON: Duration = Duration::from_secs(20);

/// It runs until it is ended.
const ENDLESS: &str = "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n)
    SELECT count(*) FROM n";

/// One connection for reads, whose statements may take this long.
fn readers(limit: Duration) -> Pool<SqliteFile> {
    let file = SqliteFile::at("sqlite://readers.db").unwrap();
    let file = SqliteFile {
        limit: Some(limit),
        ..in_memory(file.for_readers(SOON))
    };
    Pool::new(file, 1, &ServerHealth::new(SOON, true))
}

#[tokio::test]
async fn read_ends_at_the_time_limit_of_statements() {
    let pool = readers(Duration::from_millis(50));
    let mut connection = pool.acquire().await.unwrap();
    for _ in 0..2 {
        let endless = connection.fetch::<(i64,)>(ENDLESS, &[]);
        let ended = timeout(SOON, endless).await;
        let error = before_commit(ended.expect("it ends").unwrap_err());
        assert!(matches!(error, StoreError::TooSlow(_)), "{error:?}");
        let one: Vec<(i64,)> = connection.fetch("SELECT 1", &[]).await.unwrap();
        assert_eq!(one, [(1,)]);
    }
}

/// The next request gets the connection of the first one when its statement has ended.
#[tokio::test]
async fn abandoned_read_ends_before_the_next_one_begins() {
    let pool = readers(Duration::from_hours(1));
    for _ in 0..3 {
        let mut connection = pool.acquire().await.unwrap();
        let endless = connection.fetch::<(i64,)>(ENDLESS, &[]);
        let answer = timeout(Duration::from_millis(20), endless).await;
        assert!(answer.is_err(), "{answer:?}");
        drop(connection);
    }
    let connection = timeout(SOON, pool.acquire()).await;
    let mut connection = connection.expect("the statement ends").unwrap();
    let one: Vec<(i64,)> = connection.fetch("SELECT 1", &[]).await.unwrap();
    assert_eq!(one, [(1,)]);
}
