//! A release next to a newer one, and migrations while replicas sell.

use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use rstest::rstest;
use stocklock::ports::AttemptOutcome;
use stocklock::store::{Store, migrate, migrate_with};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::fixture::{Fixture, Raw, SOON, deduction, guarded, open_waiting};
use crate::support::app::send;
use crate::support::process::Process;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};
use crate::support::services::fresh_database;
use crate::upgrade_under_load::later_migrations;
use stocklock_testkit::eventually;

/// A statement of a migration waits for a lock for at most this time, in whole seconds of MariaDB.
const DDL_WAIT: Duration = Duration::from_secs(1);

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
    assert!(
        log.contains("WARN") && log.contains("migration 12"),
        "{log}"
    );
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

/// A store that waits longer for a row than a statement of a migration.
fn patient_store(url: &str) -> Arc<dyn Store> {
    open_waiting(url, 2, 2 * DDL_WAIT)
}

/// Starts the migrations of the next release.
fn start_upgrade(fixture: &Fixture) -> JoinHandle<Result<(), String>> {
    let (url, later) = (fixture.url.clone(), later_migrations(fixture.backend));
    tokio::spawn(async move { migrate_with(&url, &later).await })
}

/// Sales queue behind a statement that waits for the reader, but only until it gives up.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migration_behind_an_open_reader_stops_no_sale(
    #[values(Mysql, Postgres)] backend: Backend,
) {
    let fixture = Fixture::with(backend, "a", 1_000_000).await;
    let store = patient_store(&fixture.url);
    let mut reader = Raw::connect(backend, &fixture.url).await;
    reader.run("BEGIN").await.unwrap();
    reader.text("SELECT sku FROM stock").await;

    let migration = start_upgrade(&fixture);
    let sell = async {
        let mut delayed = 0;
        while delayed < 2 {
            let start = Instant::now();
            let sale = deduction("a", 1);
            let sale = guarded(&store, &sale).await;
            let sold = matches!(sale, Ok(AttemptOutcome::Deducted { .. }));
            assert!(sold, "after {:?}: {sale:?}", start.elapsed());
            delayed += u32::from(start.elapsed() > DDL_WAIT / 10);
        }
    };
    timeout(SOON, sell).await.expect("it tries again and again");
    assert!(!migration.is_finished(), "the reader is still there");
    reader.run("COMMIT").await.unwrap();
    let migrated = timeout(SOON, migration).await.expect("soon");
    assert_eq!(migrated.unwrap(), Ok(()));
    assert!(fixture.audit("a").await.consistent());
}

/// Every sale would maintain it, and no query would use it.
#[tokio::test]
async fn invalid_index_is_dropped_by_the_next_migration() {
    let (fixture, mut raw) = Fixture::with_raw(Postgres).await;
    for statement in [
        "CREATE INDEX interrupted ON movement (sku)",
        "UPDATE pg_index SET indisvalid = FALSE WHERE indexrelid = 'interrupted'::regclass",
    ] {
        raw.run(statement).await.unwrap();
    }
    let later = later_migrations(Postgres);
    assert_eq!(migrate_with(&fixture.url, &later).await, Ok(()));
    let left = "SELECT relname::text FROM pg_class WHERE relname = 'interrupted'";
    assert_eq!(raw.text(left).await, None);
    assert!(raw.text(later_index(Postgres)).await.is_some());
}

/// A query that finds the index of [`later_migrations`] if sales maintain it and queries use it.
fn later_index(backend: Backend) -> &'static str {
    match backend {
        Sqlite => "SELECT name FROM sqlite_schema WHERE name = 'movement_of_strategy'",
        Mysql => {
            "SELECT index_name FROM information_schema.statistics
                WHERE table_schema = database() AND index_name = 'movement_of_strategy'"
        }
        Postgres => {
            "SELECT relname::text FROM pg_class JOIN pg_index ON indexrelid = pg_class.oid
                WHERE relname = 'movement_of_strategy' AND indisvalid"
        }
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn index_build_behind_an_open_reader_stops_no_sale(
    #[values(Mysql, Postgres)] backend: Backend,
) {
    let fixture = Fixture::with(backend, "a", 1_000_000).await;
    let mut raw = Raw::connect(backend, &fixture.url).await;
    let store = patient_store(&fixture.url);
    let mut reader = Raw::connect(backend, &fixture.url).await;
    // The build waits for this snapshot on PostgreSQL, and for this use of the table on MariaDB.
    let begin = match backend {
        Mysql | Sqlite => "BEGIN",
        Postgres => "BEGIN ISOLATION LEVEL REPEATABLE READ",
    };
    reader.run(begin).await.unwrap();
    reader.text("SELECT sku FROM movement LIMIT 1").await;

    let migration = start_upgrade(&fixture);
    let started = Instant::now();
    while started.elapsed() < 3 * DDL_WAIT {
        let sale = guarded(&store, &deduction("a", 1)).await;
        let sold = matches!(sale, Ok(AttemptOutcome::Deducted { .. }));
        assert!(sold, "{sale:?}");
    }
    assert!(!migration.is_finished(), "the reader is still there");
    reader.run("COMMIT").await.unwrap();
    let migrated = timeout(SOON, migration).await.expect("soon");
    assert_eq!(migrated.unwrap(), Ok(()));
    assert!(raw.text(later_index(backend)).await.is_some());
    assert!(fixture.audit("a").await.consistent());
}

/// As if the migrator had been killed while PostgreSQL built the index.
#[tokio::test]
async fn interrupted_index_build_is_repeated() {
    let (fixture, mut raw) = Fixture::with_raw(Postgres).await;
    let later = later_migrations(Postgres);
    assert_eq!(migrate_with(&fixture.url, &later).await, Ok(()));
    for statement in [
        "DELETE FROM _sqlx_migrations WHERE version = 12",
        "UPDATE pg_index SET indisvalid = FALSE
            WHERE indexrelid = 'movement_of_strategy'::regclass",
    ] {
        raw.run(statement).await.unwrap();
    }
    assert_eq!(raw.text(later_index(Postgres)).await, None);
    assert_eq!(migrate_with(&fixture.url, &later).await, Ok(()));
    assert!(raw.text(later_index(Postgres)).await.is_some());
}
