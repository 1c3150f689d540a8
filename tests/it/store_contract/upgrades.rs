//! A release next to a newer one, and migrations while replicas sell.

use reqwest::Method;
use rstest::rstest;
use stocklock::store::{migrate, migrate_with};
use stocklock_testkit::eventually;
use tokio::time::timeout;

use super::fixture::{Fixture, Raw, SOON};
use crate::support::app::send;
use crate::support::process::Process;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};
use crate::support::services::fresh_database;
use crate::upgrade_under_load::later_migrations;

/// What the migrators' lock is.
fn take_lock(backend: Backend) -> &'static str {
    match backend {
        Sqlite => unreachable!("SQLite has no such lock"),
        Mysql => "DO get_lock(concat('stocklock.', md5(database())), 0)",
        Postgres => "SELECT pg_advisory_lock(hashtextextended('stocklock schema', 0))",
    }
}

#[rstest]
#[tokio::test]
async fn schema_of_a_newer_release_is_accepted(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let (fixture, mut raw) = Fixture::with_raw(backend).await;
    let later = later_migrations(backend);
    assert_eq!(migrate_with(&fixture.url, &later).await, Ok(()));

    let variables = [("DATABASE_URL", fixture.url.as_str())];
    let serve = Process::serving(&["serve"], &variables).await;
    let log = serve.log().await;
    let warns = log.contains("WARN") && log.contains("migration 12");
    assert!(warns, "{log}");
    serve.set_level("a", 5).await;
    let sale = serve.request(Method::POST, "/stock/deduct?sku=a");
    assert_eq!(send(sale).await.ok()["remaining"], 4);

    let interrupted = "UPDATE _sqlx_migrations SET success = FALSE WHERE version = 12";
    raw.run(interrupted).await.unwrap();
    assert_eq!(migrate(&fixture.url).await, Ok(()));
    let kept = "SELECT description FROM _sqlx_migrations WHERE version = 12";
    assert!(raw.text(kept).await.is_some(), "the newer release needs it");
}

/// This build has migration 1, so a database with an unknown older one is of another program.
#[tokio::test]
async fn unknown_older_migration_is_refused() {
    let (fixture, mut raw) = Fixture::with_raw(Sqlite).await;
    let renumbered = "INSERT INTO _sqlx_migrations SELECT 0, description, installed_on, success,
        checksum, execution_time FROM _sqlx_migrations WHERE version = 1";
    raw.run(renumbered).await.unwrap();
    let refused = migrate(&fixture.url).await.unwrap_err();
    assert!(refused.contains("migration 0 "), "{refused}");
}

/// A newer release may hold the lock for hours, while it builds an index.
#[rstest]
#[tokio::test]
async fn restart_does_not_wait_for_a_newer_migration(#[values(Mysql, Postgres)] backend: Backend) {
    let (fixture, mut newer) = Fixture::with_raw(backend).await;
    newer.run(take_lock(backend)).await.unwrap();
    let migrated = timeout(SOON, migrate(&fixture.url)).await;
    assert_eq!(migrated.expect("it does not wait"), Ok(()));
    // The lock belongs to the connection.
    newer.run("SELECT 1").await.unwrap();
}

#[rstest]
#[tokio::test]
async fn migrate_logs_what_it_waits_for(#[values(Mysql, Postgres)] backend: Backend) {
    let database = fresh_database(backend).await;
    let mut other = Raw::connect(backend, &database.url).await;
    other.run(take_lock(backend)).await.unwrap();
    let process = Process::start(&["migrate"], &[("DATABASE_URL", &database.url)]);
    let waits = "another process is updating the schema, for 1 s so far";
    let is_logged = async || process.stderr().contains(waits);
    eventually("it logs that it waits", SOON, is_logged).await;
    assert!(!process.stderr().contains("is applied"));
    drop(other);
    let ended = process.ended().await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("migration 1"), "{}", ended.stderr);
}

/// PostgreSQL leaves an invalid index if the migrator is killed while it builds one, and each sale maintains it.
#[tokio::test]
async fn interrupted_index_build_is_repeated_and_others_dropped() {
    let (fixture, mut raw) = Fixture::with_raw(Postgres).await;
    let later = later_migrations(Postgres);
    assert_eq!(migrate_with(&fixture.url, &later).await, Ok(()));
    for statement in [
        "CREATE INDEX interrupted ON movement (sku)",
        "DELETE FROM _sqlx_migrations WHERE version = 12",
        "UPDATE pg_index SET indisvalid = FALSE
            WHERE indexrelid IN ('interrupted'::regclass, 'movement_of_strategy'::regclass)",
    ] {
        raw.run(statement).await.unwrap();
    }
    let index = "SELECT relname::text FROM pg_class JOIN pg_index ON indexrelid = pg_class.oid
        WHERE relname = 'movement_of_strategy' AND indisvalid";
    assert_eq!(raw.text(index).await, None);
    assert_eq!(migrate_with(&fixture.url, &later).await, Ok(()));
    assert!(raw.text(index).await.is_some());
    let left = "SELECT relname::text FROM pg_class WHERE relname = 'interrupted'";
    assert_eq!(raw.text(left).await, None);
}
