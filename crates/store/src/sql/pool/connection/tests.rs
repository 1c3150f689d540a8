//! Tests of what becomes of a connection that comes back.

use std::sync::atomic::{AtomicU32, Ordering};

use sqlx::{Executor, Sqlite, SqliteConnection};

use super::super::Pool;
use super::*;
use crate::sql::SqliteFile;
use crate::sql::statement::{fetch, query};
use crate::sql::statements::Texts;

/// Each connection is a database of its own, so its content tells which one was used.
#[derive(Debug)]
struct Embedded;

static ROLLED_BACK: AtomicU32 = AtomicU32::new(0);

impl Server for Embedded {
    const EMBEDDED: bool = true;

    const CHECK_WRITABLE: &'static str = "SELECT 1";

    type Connection = SqliteConnection;

    async fn open(&self) -> sqlx::Result<SqliteConnection> {
        let mut connection = SqliteConnection::connect("sqlite::memory:").await?;
        connection.execute("CREATE TABLE sale (id)").await?;
        Ok(connection)
    }

    async fn run(connection: &mut SqliteConnection, statement: &'static str) -> sqlx::Result<()> {
        if statement == "ROLLBACK" {
            ROLLED_BACK.fetch_add(1, Ordering::Relaxed);
        }
        connection.execute(statement).await.map(drop)
    }

    fn texts() -> &'static Texts {
        SqliteFile::texts()
    }

    fetch!(query::<Sqlite>);
}

const SELL: &str = "INSERT INTO sale VALUES (1)";
const FAIL: &str = "SELECT nothing FROM nowhere";
const CORRUPT: &str = "PRAGMA writable_schema = ON;
    UPDATE sqlite_schema SET rootpage = 1000 WHERE name = 'sale';
    PRAGMA writable_schema = RESET; SELECT count(*) FROM sale";

/// The number of sales on the pool's connection, and of rollbacks so far.
async fn state(pool: &Pool<Embedded>) -> (i64, u32) {
    let mut connection = pool.acquire().await.unwrap();
    let count = sqlx::query_scalar("SELECT count(*) FROM sale")
        .fetch_one(connection.send(""))
        .await;
    let sales = connection.received(count).unwrap();
    (sales, ROLLED_BACK.load(Ordering::Relaxed))
}

async fn sell(pool: &Pool<Embedded>) -> Transaction<Embedded> {
    let mut tx = pool.begin("BEGIN").await.unwrap();
    tx.run(SELL).await.unwrap();
    tx
}

#[tokio::test]
async fn connection_is_rolled_back_or_closed_only_if_necessary() {
    let health = ServerHealth::new(Duration::from_secs(5), true);
    let pool = Pool::new(Embedded, 1, &health);

    sell(&pool).await.commit().await.unwrap();
    assert_eq!(state(&pool).await, (1, 0));
    sell(&pool).await.roll_back().await;
    assert_eq!(state(&pool).await, (1, 1));
    drop(sell(&pool).await);
    assert_eq!(state(&pool).await, (1, 2));

    let mut failed = sell(&pool).await;
    failed.run(FAIL).await.expect_err("no such table");
    drop(failed);
    assert_eq!(state(&pool).await, (1, 3));

    let mut alone = pool.acquire().await.unwrap();
    alone.run(FAIL).await.expect_err("no such table");
    drop(alone);
    assert_eq!(state(&pool).await, (1, 3));

    let mut abandoned = pool.acquire().await.unwrap();
    let _never_answered = abandoned.send("");
    drop(abandoned);
    assert_eq!(state(&pool).await, (0, 3), "this is a new connection");
}

/// A later answer does not make it usable again.
#[tokio::test]
async fn connection_with_an_unknown_error_is_closed() {
    let health = ServerHealth::new(Duration::from_secs(5), true);
    let pool = Pool::new(Embedded, 1, &health);
    sell(&pool).await.commit().await.unwrap();

    let mut connection = pool.acquire().await.unwrap();
    connection.run(CORRUPT).await.expect_err("a corrupt schema");
    connection.run("SELECT 1").await.unwrap();
    drop(connection);

    assert_eq!(state(&pool).await.0, 0, "this is a new connection");
}

#[tokio::test]
async fn connection_that_refuses_a_write_is_replaced() {
    let health = ServerHealth::new(Duration::from_secs(5), true);
    let pool = Pool::new(Embedded, 1, &health);
    sell(&pool).await.commit().await.unwrap();
    let refuse = async || {
        let mut connection = pool.acquire().await.unwrap();
        connection.run("PRAGMA query_only = ON").await.unwrap();
        connection.run(SELL).await.expect_err("it is read-only");
    };
    // A new connection is kept for a moment.
    let replaced = async {
        refuse().await;
        while state(&pool).await.0 > 0 {
            refuse().await;
        }
    };
    let replaced = timeout(Duration::from_secs(5), replaced).await;
    replaced.expect("the connection is replaced");
    sell(&pool).await.commit().await.unwrap();
}

#[tokio::test]
async fn idle_connection_is_closed_after_a_while() {
    let health = ServerHealth::new(Duration::from_secs(5), true);
    let pool = Pool::new(Embedded, 2, &health);
    sell(&pool).await.commit().await.unwrap();
    pool.close_idle(Duration::from_hours(1)).await;
    assert_eq!(state(&pool).await.0, 1);
    pool.close_idle(Duration::ZERO).await;
    assert_eq!(state(&pool).await.0, 0, "this is a new connection");
}

/// Another pool has no connection, and the server allows no more.
#[tokio::test]
async fn connection_is_closed_for_a_pool_without_any() {
    let health = ServerHealth::new(Duration::from_secs(5), true);
    // Requests without a SKU have half of these.
    let pool = Pool::new(Embedded, 4, &health);
    let (first, second) = (sell(&pool).await, sell(&pool).await);
    // None is idle, so the next one that comes back is closed.
    health.make_room();
    first.commit().await.unwrap();
    assert_eq!(state(&pool).await.0, 0, "this is a new connection");
    // The new one is idle.
    health.make_room();
    // The second one is the last one of the pool.
    health.make_room();
    second.commit().await.unwrap();
    assert_eq!(state(&pool).await.0, 1);
}
