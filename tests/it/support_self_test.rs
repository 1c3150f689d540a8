//! Tests of what the other tests stand on: servers, databases, processes and the proxy.
//!
//! A proxy that cut nothing, or a server that lost nothing, would make every fault test pass.

use std::time::Duration;

use sqlx::{Connection, MySqlConnection, PgConnection, SqliteConnection};
use tokio::time::{Instant, timeout};

use crate::support::proxy::Proxy;
use crate::support::services::{Backend, PrivateServer, Server, fresh_database, mysql, postgres};

mod holds;
mod process;
mod proxy;
mod redis;
mod zookeeper;

/// A bound for what takes milliseconds.
const SOON: Duration = Duration::from_secs(20);
/// How long silence is listened to before it counts as silence.
const SILENCE: Duration = Duration::from_millis(100);

/// Fails if the future ends before a silence is over.
async fn is_silent<T>(future: &mut (impl Future<Output = T> + Unpin)) {
    let ended = timeout(SILENCE, future).await;
    assert!(ended.is_err(), "there was to be no answer yet");
}

/// Runs the same statements on a connection of any back end.
macro_rules! on_connection {
    ($backend:expr, $url:expr, |$connection:ident| $body:expr) => {
        match $backend {
            Backend::Sqlite => {
                let mut $connection = SqliteConnection::connect($url).await?;
                $body
            }
            Backend::Mysql => {
                let mut $connection = MySqlConnection::connect($url).await?;
                $body
            }
            Backend::Postgres => {
                let mut $connection = PgConnection::connect($url).await?;
                $body
            }
        }
    };
}

async fn create_table(backend: Backend, url: &str) -> Result<(), sqlx::Error> {
    on_connection!(backend, url, |connection| {
        sqlx::query("CREATE TABLE note (id INT PRIMARY KEY)")
            .execute(&mut connection)
            .await?;
    });
    Ok(())
}

async fn count_notes(backend: Backend, url: &str) -> Result<i64, sqlx::Error> {
    on_connection!(backend, url, |connection| {
        sqlx::query_scalar("SELECT COUNT(*) FROM note")
            .fetch_one(&mut connection)
            .await
    })
}

/// Inserts a row in a transaction of its own. Names READ COMMITTED, which contains the bytes of
/// COMMIT, as the stores do.
async fn insert_note(backend: Backend, url: &str) -> Result<(), sqlx::Error> {
    on_connection!(backend, url, |connection| {
        if backend == Backend::Mysql {
            sqlx::raw_sql("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
                .execute(&mut connection)
                .await?;
        } else if backend == Backend::Postgres {
            sqlx::raw_sql(
                "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED",
            )
            .execute(&mut connection)
            .await?;
        }
        let mut transaction = connection.begin().await?;
        sqlx::query("INSERT INTO note VALUES (1)")
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await
    })
}

/// Tries until it succeeds, within a bound.
async fn eventually<T, E, F>(mut attempt: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, E>>,
    E: std::fmt::Debug,
{
    let deadline = Instant::now() + SOON;
    loop {
        match attempt().await {
            Ok(value) => return value,
            Err(error) => assert!(Instant::now() < deadline, "still {error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn every_test_has_an_empty_database_of_its_own() {
    for backend in Backend::ALL {
        let (one, other) = tokio::join!(fresh_database(backend), fresh_database(backend));
        create_table(backend, &one.url).await.unwrap();
        insert_note(backend, &one.url).await.unwrap();
        create_table(backend, &other.url).await.unwrap();
        assert_eq!(count_notes(backend, &one.url).await.unwrap(), 1);
        assert_eq!(count_notes(backend, &other.url).await.unwrap(), 0);
    }
}

#[tokio::test]
async fn a_database_on_a_server_that_stays_is_removed_with_its_test() {
    for (backend, shared) in [
        (Backend::Mysql, mysql().await),
        (Backend::Postgres, postgres().await),
    ] {
        let built_in = match backend {
            Backend::Mysql => "mysql",
            _ => "postgres",
        };
        let server = Server::behind(backend, &shared.url(built_in));
        let database = server.fresh_database().await;
        create_table(backend, &database.url).await.unwrap();
        let url = database.url.clone();
        drop(database);
        count_notes(backend, &url)
            .await
            .expect_err("the database is gone");
    }
    let database = fresh_database(Backend::Sqlite).await;
    let url = database.url.clone();
    drop(database);
    count_notes(Backend::Sqlite, &url)
        .await
        .expect_err("the file is gone");
}

#[tokio::test]
async fn cutting_before_commit_keeps_it_from_the_server() {
    for backend in Backend::SERVERS {
        let database = fresh_database(backend).await;
        create_table(backend, &database.url).await.unwrap();
        let (proxy, url) = Proxy::before(&database.url).await;
        let trigger = proxy.cut_before(backend.commit_message(), 1);

        insert_note(backend, &url)
            .await
            .expect_err("the connection is cut");
        assert_eq!(trigger.fired(), 1);
        assert_eq!(count_notes(backend, &database.url).await.unwrap(), 0);

        // The trigger was for one time. The row is free again only if the server was told that
        // its client is gone.
        timeout(SOON, insert_note(backend, &url))
            .await
            .expect("the abandoned transaction holds no lock")
            .unwrap();
        assert_eq!(trigger.fired(), 1);
        assert_eq!(count_notes(backend, &database.url).await.unwrap(), 1);
    }
}

#[tokio::test]
async fn cutting_after_commit_lets_it_happen_unseen() {
    for backend in Backend::SERVERS {
        let database = fresh_database(backend).await;
        create_table(backend, &database.url).await.unwrap();
        let (proxy, url) = Proxy::before(&database.url).await;
        let trigger = proxy.cut_after(backend.commit_message(), 1);

        insert_note(backend, &url)
            .await
            .expect_err("the connection is cut");
        assert_eq!(trigger.fired(), 1);
        assert_eq!(count_notes(backend, &database.url).await.unwrap(), 1);
    }
}

#[tokio::test]
async fn a_private_server_keeps_what_it_committed_when_it_is_killed() {
    for backend in Backend::SERVERS {
        let mut server = PrivateServer::start(backend).await;
        let url = server.url().to_owned();
        create_table(backend, &url).await.unwrap();
        insert_note(backend, &url).await.unwrap();

        let process = server.process();
        server.kill9();
        count_notes(backend, &url)
            .await
            .expect_err("nobody listens any more");
        server.restart().await;
        assert_ne!(server.process(), process);
        assert_eq!(count_notes(backend, &url).await.unwrap(), 1);

        drop(server);
        count_notes(backend, &url)
            .await
            .expect_err("it ends with its owner");
    }
}
