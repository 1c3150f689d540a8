//! A release next to a newer one, and migrations while replicas sell.

use std::time::Duration;

use reqwest::Method;
use rstest::rstest;
use stocklock::ports::AttemptOutcome;
use stocklock::store::{StoreOptions, Stores, migrate};
use tokio::time::{Instant, timeout};

use super::fixture::{Fixture, Raw, SOON, deduction, guarded};
use crate::support::app::send;
use crate::support::process::Process;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};
use crate::support::services::fresh_database;
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

/// Removes the last migration of the first release, and its record.
async fn undo_journal_migration(raw: &mut Raw) {
    for statement in [
        "ALTER TABLE stock DROP COLUMN journal_millis, DROP COLUMN journal_number",
        "ALTER TABLE movement DROP COLUMN journal_millis, DROP COLUMN journal_number",
        "DROP TABLE ledger",
        "DELETE FROM _sqlx_migrations WHERE version = 3",
    ] {
        raw.run(statement).await.unwrap();
    }
}

#[rstest]
#[tokio::test]
async fn schema_of_a_newer_release_is_accepted(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let fixture = Fixture::new(backend).await;
    let mut raw = Raw::connect(backend, &fixture.url).await;
    for statement in [
        "ALTER TABLE movement ADD COLUMN later integer",
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
            VALUES (9999, 'from the next release', TRUE, 'x', 0)",
    ] {
        raw.run(statement).await.unwrap();
    }

    let variables = [("DATABASE_URL", fixture.url.as_str())];
    let serve = Process::serving(&["serve"], &variables).await;
    let log = serve.stderr();
    assert!(
        log.contains("WARN") && log.contains("migration 9999"),
        "{log}"
    );
    serve.set_level("a", 5).await;
    let sale = serve.request(Method::POST, "/stock/deduct?sku=a");
    assert_eq!(send(sale).await.ok()["remaining"], 4);

    let interrupted = "UPDATE _sqlx_migrations SET success = FALSE WHERE version = 9999";
    raw.run(interrupted).await.unwrap();
    assert_eq!(migrate(&fixture.url).await, Ok(()));
    let kept = "SELECT description FROM _sqlx_migrations WHERE version = 9999";
    assert!(raw.text(kept).await.is_some(), "the newer release needs it");
}

/// Migration 3 is in this build, so a database with an unknown older one is of another program.
#[tokio::test]
async fn unknown_older_migration_is_refused() {
    let fixture = Fixture::new(Sqlite).await;
    let mut raw = Raw::connect(Sqlite, &fixture.url).await;
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
    let fixture = Fixture::new(backend).await;
    let mut newer = Raw::connect(backend, &fixture.url).await;
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
    assert!(ended.stderr.contains("migration 3"), "{}", ended.stderr);
}

/// Sales queue behind a statement that waits for the reader, but only until it gives up.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migration_behind_an_open_reader_stops_no_sale(
    #[values(Mysql, Postgres)] backend: Backend,
) {
    let fixture = Fixture::new(backend).await;
    fixture.put("a", 1_000_000).await;
    let mut raw = Raw::connect(backend, &fixture.url).await;
    undo_journal_migration(&mut raw).await;
    let options = StoreOptions {
        pool_size: 2,
        wait_limit: 2 * DDL_WAIT,
    };
    let store = Stores::open(&fixture.url, &options, None).unwrap().store;
    let mut reader = Raw::connect(backend, &fixture.url).await;
    reader.run("BEGIN").await.unwrap();
    reader.text("SELECT sku FROM stock").await;

    let url = fixture.url.clone();
    let migration = tokio::spawn(async move { migrate(&url).await });
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
    let fixture = Fixture::new(Postgres).await;
    let mut raw = Raw::connect(Postgres, &fixture.url).await;
    undo_journal_migration(&mut raw).await;
    for statement in [
        "CREATE INDEX interrupted ON movement (sku)",
        "UPDATE pg_index SET indisvalid = FALSE WHERE indexrelid = 'interrupted'::regclass",
    ] {
        raw.run(statement).await.unwrap();
    }
    assert_eq!(migrate(&fixture.url).await, Ok(()));
    let left = "SELECT relname::text FROM pg_class WHERE relname = 'interrupted'";
    assert_eq!(raw.text(left).await, None);
    let valid = "SELECT relname::text FROM pg_class WHERE relname = 'movement_in_order'";
    assert!(raw.text(valid).await.is_some());
}

/// Removes the index of the ledger's order, and its record.
async fn undo_ledger_order(raw: &mut Raw) {
    let drop_index = match raw {
        Raw::Mysql(_) => "ALTER TABLE movement DROP KEY movement_in_order",
        Raw::Sqlite(_) | Raw::Postgres(_) => "DROP INDEX movement_in_order",
    };
    let forget = "DELETE FROM _sqlx_migrations WHERE version = 10";
    for statement in [drop_index, forget] {
        raw.run(statement).await.unwrap();
    }
}

/// A query that finds the index of the ledger's order if sales maintain it and queries use it.
fn ledger_order(backend: Backend) -> &'static str {
    match backend {
        Sqlite => "SELECT name FROM sqlite_schema WHERE name = 'movement_in_order'",
        Mysql => {
            "SELECT index_name FROM information_schema.statistics WHERE table_schema = database()
                AND index_name = 'movement_in_order' AND non_unique = 0 LIMIT 1"
        }
        Postgres => {
            "SELECT relname::text FROM pg_class JOIN pg_index ON indexrelid = pg_class.oid
                WHERE relname = 'movement_in_order' AND indisvalid AND indisunique"
        }
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn index_build_behind_an_open_reader_stops_no_sale(
    #[values(Mysql, Postgres)] backend: Backend,
) {
    let fixture = Fixture::new(backend).await;
    fixture.put("a", 1_000_000).await;
    let mut raw = Raw::connect(backend, &fixture.url).await;
    undo_ledger_order(&mut raw).await;
    let options = StoreOptions {
        pool_size: 2,
        wait_limit: 2 * DDL_WAIT,
    };
    let store = Stores::open(&fixture.url, &options, None).unwrap().store;
    let mut reader = Raw::connect(backend, &fixture.url).await;
    // The build waits for this snapshot on PostgreSQL, and for this use of the table on MariaDB.
    let begin = match backend {
        Mysql | Sqlite => "BEGIN",
        Postgres => "BEGIN ISOLATION LEVEL REPEATABLE READ",
    };
    reader.run(begin).await.unwrap();
    reader.text("SELECT sku FROM movement LIMIT 1").await;

    let url = fixture.url.clone();
    let migration = tokio::spawn(async move { migrate(&url).await });
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
    assert!(raw.text(ledger_order(backend)).await.is_some());
    assert!(fixture.audit("a").await.consistent());
}

/// As if the migrator had been killed while PostgreSQL built the index.
#[tokio::test]
async fn interrupted_index_build_is_repeated() {
    let fixture = Fixture::new(Postgres).await;
    let mut raw = Raw::connect(Postgres, &fixture.url).await;
    for statement in [
        "DELETE FROM _sqlx_migrations WHERE version = 10",
        "UPDATE pg_index SET indisvalid = FALSE
            WHERE indexrelid = 'movement_in_order'::regclass",
    ] {
        raw.run(statement).await.unwrap();
    }
    assert_eq!(raw.text(ledger_order(Postgres)).await, None);
    assert_eq!(migrate(&fixture.url).await, Ok(()));
    assert!(raw.text(ledger_order(Postgres)).await.is_some());
}
