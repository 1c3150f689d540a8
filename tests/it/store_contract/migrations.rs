//! Bringing a schema up to date: by many at once, after a crash, and where it cannot be done.

use std::pin::pin;
use std::time::Duration;

use rstest::rstest;
use stocklock::store::{StoreOptions, connect, migrate};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::fixture::{Fixture, Raw, SOON, WAIT_LIMIT};
use crate::support::ports::free_port;
use crate::support::services::Backend::{Mysql, Postgres, Sqlite};
use crate::support::services::{Backend, PrivateServer, fresh_database};

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_replicas_may_migrate_at_once_and_again(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    for _ in 0..3 {
        let database = fresh_database(backend).await;
        for _ in 0..2 {
            let mut replicas = JoinSet::new();
            for _ in 0..8 {
                let url = database.url.clone();
                replicas.spawn(async move { migrate(&url).await });
            }
            for migrated in timeout(SOON, replicas.join_all()).await.expect("soon") {
                assert_eq!(migrated, Ok(()));
            }
        }
        let mut raw = Raw::connect(backend, &database.url).await;
        let unfinished = "SELECT description FROM _sqlx_migrations WHERE NOT success";
        assert_eq!(raw.text(unfinished).await, None);
    }
}

/// What another process has just made, but was not on record when this one looked: it looks again.
#[tokio::test]
async fn a_column_of_another_ones_making_is_no_failure() {
    let fixture = Fixture::new(Sqlite).await;
    let mut raw = Raw::connect(Sqlite, &fixture.url).await;
    for statement in [
        "CREATE TABLE record AS SELECT * FROM _sqlx_migrations WHERE version = 2",
        "DELETE FROM _sqlx_migrations WHERE version = 2",
    ] {
        raw.run(statement).await.unwrap();
    }

    let mut migration = pin!(migrate(&fixture.url));
    let too_soon = timeout(SOON / 10, &mut migration).await;
    assert!(too_soon.is_err(), "it gave up: {too_soon:?}");

    raw.run("INSERT INTO _sqlx_migrations SELECT * FROM record")
        .await
        .unwrap();
    assert_eq!(migration.await, Ok(()));
}

/// MariaDB and MySQL commit data definitions as they go, so a crash can leave half a migration.
#[tokio::test]
async fn a_migration_that_was_cut_short_is_repeated() {
    let fixture = Fixture::new(Mysql).await;
    let mut raw = Raw::connect(Mysql, &fixture.url).await;
    for statement in [
        "DELETE FROM _sqlx_migrations WHERE version > 1",
        "UPDATE _sqlx_migrations SET success = FALSE",
        "DROP TABLE movement",
    ] {
        raw.run(statement).await.unwrap();
    }

    assert_eq!(migrate(&fixture.url).await, Ok(()));

    fixture.put("a", 1).await;
    assert_eq!(fixture.movements("a").await.len(), 1);
}

/// Another process that holds the lock is waited for, and one that migrates meanwhile does harm.
#[tokio::test]
async fn a_migration_waits_for_the_one_that_is_under_way() {
    let database = fresh_database(Mysql).await;
    let mut other = Raw::connect(Mysql, &database.url).await;
    let lock = "SELECT cast(get_lock(concat('stocklock.', md5(database())), 0) AS char)";
    assert_eq!(other.text(lock).await.as_deref(), Some("1"));
    let url = database.url.clone();
    let waiting = tokio::spawn(async move { migrate(&url).await });
    let mut observer = Raw::connect(Mysql, &database.url).await;
    let waits = "SELECT state FROM information_schema.processlist
        WHERE state = 'User lock' AND db = database()";
    let seen = async { while observer.text(waits).await.is_none() {} };
    timeout(SOON, seen).await.expect("it waits");
    let tables = "SELECT table_name FROM information_schema.tables
        WHERE table_schema = database() LIMIT 1";
    assert_eq!(
        observer.text(tables).await,
        None,
        "nothing is done meanwhile"
    );
    drop(other);
    assert_eq!(waiting.await.unwrap(), Ok(()));
}

/// The same URL with another part, as a person might have it wrong.
fn altered(url: &str, change: impl FnOnce(&mut reqwest::Url)) -> String {
    let mut url = reqwest::Url::parse(url).expect("a URL");
    url.set_password(Some("hunter2")).expect("it has a host");
    change(&mut url);
    url.into()
}

async fn refusal(url: &str) -> String {
    let began = Instant::now();
    let refused = migrate(url).await.expect_err("it cannot be done");
    assert!(
        began.elapsed() < SOON,
        "what will not pass is not waited for"
    );
    assert!(!refused.contains("hunter2"), "{refused}");
    assert!(!refused.contains('\n'), "{refused}");
    refused
}

#[rstest]
#[tokio::test]
async fn what_stands_in_the_way_is_said_in_one_sentence(
    #[values(Mysql, Postgres)] backend: Backend,
) {
    let database = fresh_database(backend).await;
    let unknown = altered(&database.url, |url| {
        url.set_password(None).unwrap();
        url.set_path("nowhere");
    });
    let refused = refusal(&unknown).await;
    assert!(
        refused.contains("create it by `CREATE DATABASE"),
        "{refused}"
    );
    assert!(refused.contains("nowhere"), "{refused}");
    let stranger = altered(&database.url, |url| url.set_username("stranger").unwrap());
    let refused = refusal(&stranger).await;
    assert!(refused.contains("denies access"), "{refused}");
}

#[tokio::test]
async fn the_scheme_names_the_database() {
    let mariadb = fresh_database(Mysql).await;
    let url = mariadb.url.replacen("mysql:", "mariadb:", 1);
    assert_eq!(Fixture::at(Mysql, url).await.store.backend(), "mysql");
    let postgres = fresh_database(Postgres).await;
    let url = postgres.url.replacen("postgres:", "postgresql:", 1);
    let fixture = Fixture::at(Postgres, url).await;
    assert_eq!(fixture.store.backend(), "postgres");
    assert_eq!(fixture.put("a", 1).await.on_hand, 1);
    assert!(migrate("oracle://somewhere").await.is_err());
    assert!(
        migrate("mysql://root@127.0.0.1")
            .await
            .is_err_and(|e| e.contains("no database"))
    );
}

/// As when all is started at once, or a machine reboots.
#[rstest]
#[tokio::test]
async fn a_server_that_is_yet_to_start_is_waited_for(#[values(Mysql, Postgres)] backend: Backend) {
    let server = PrivateServer::start(backend).await;
    server.kill9();
    let url = server.url().to_owned();
    let waiting = tokio::spawn(async move { migrate(&url).await });
    sleep(Duration::from_millis(300)).await;
    assert!(!waiting.is_finished(), "it waits");
    server.restart().await;
    assert_eq!(waiting.await.unwrap(), Ok(()));
}

/// But not for ever.
#[tokio::test]
async fn a_server_that_never_starts_is_given_up() {
    let port = free_port();
    let nobody = format!("postgres://somebody:hunter2@127.0.0.1:{port}/stock");
    let refused = timeout(2 * SOON, migrate(&nobody)).await.expect("bounded");
    let refused = refused.expect_err("nobody is there");
    let told = format!("nothing listens at 127.0.0.1:{port}");
    assert!(refused.starts_with(&told), "{refused}");
    assert!(!refused.contains("hunter2"), "{refused}");
}

#[tokio::test]
async fn a_file_that_cannot_be_opened_is_said_at_once() {
    let refused = refusal("sqlite:///nonexistent/directory/stock.db").await;
    assert!(
        refused.starts_with("/nonexistent/directory/stock.db: unable to open database file"),
        "{refused}"
    );
}

/// Each connection would have a database of its own.
#[rstest]
#[case("sqlite::memory:")]
#[case("sqlite://:memory:")]
#[case("sqlite://stock.db?mode=memory")]
#[case("sqlite://")]
#[tokio::test]
async fn a_database_in_memory_is_refused(#[case] url: &str) {
    let options = StoreOptions {
        pool_size: 2,
        wait_limit: WAIT_LIMIT,
    };
    let refused = connect(url, &options).expect_err("it is none");
    assert!(refused.contains("in-memory"), "{refused}");
    assert_eq!(refusal(url).await, refused);
}
