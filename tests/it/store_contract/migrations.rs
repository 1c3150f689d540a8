//! Migrations: by several replicas at once, after a crash, and on a server that refuses or is down.

use std::pin::pin;
use std::time::Duration;

use rstest::rstest;
use stocklock::store::{StoreOptions, connect, migrate};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::fixture::{Fixture, Raw, SOON, assert_deducted, deduction};
use crate::support::ports::free_port;
use crate::support::process::Process;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};
use crate::support::services::{PrivateServer, fresh_database};

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_replicas_can_migrate_at_once(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
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

/// Another process has created the tables but not yet recorded its migration: this one tries again.
#[tokio::test]
async fn migration_waits_until_a_concurrent_one_is_recorded() {
    let (fixture, mut raw) = Fixture::with_raw(Sqlite).await;
    for statement in [
        "CREATE TABLE record AS SELECT * FROM _sqlx_migrations",
        "DELETE FROM _sqlx_migrations",
    ] {
        raw.run(statement).await.unwrap();
    }

    let mut migration = pin!(migrate(&fixture.url));
    let too_soon = timeout(SOON / 10, &mut migration).await;
    assert!(too_soon.is_err(), "it gave up: {too_soon:?}");

    let record = "INSERT INTO _sqlx_migrations SELECT * FROM record";
    raw.run(record).await.unwrap();
    assert_eq!(migration.await, Ok(()));
}

/// MariaDB and MySQL commit each data definition, so a crash can leave half a migration.
#[rstest]
#[case::before_the_ledger_has_an_id(&["DELETE FROM ledger", "DROP PROCEDURE stocklock_deduct_1"])]
#[case::before_the_last_table(&["DROP TABLE distributed_lock_source"])]
#[case::after_the_first_table(&["DROP TABLE movement, checkpoint, ledger", "DROP PROCEDURE stocklock_deduct_batch_1"])]
#[tokio::test]
async fn interrupted_migration_is_repeated(#[case] missing: &[&'static str]) {
    let (fixture, mut raw) = Fixture::with_raw(Mysql).await;
    let interrupted = "UPDATE _sqlx_migrations SET success = FALSE";
    for statement in missing.iter().chain([&interrupted]) {
        raw.run(statement).await.unwrap();
    }

    assert_eq!(migrate(&fixture.url).await, Ok(()));

    fixture.put("a", 1).await;
    assert_deducted(&fixture.store.deduct(&deduction("a", 1)).await);
    assert_eq!(fixture.movements("a").await.len(), 2);
    let ids = "SELECT cast(count(*) AS char) FROM ledger";
    assert_eq!(raw.text(ids).await.as_deref(), Some("1"));
}

/// Nothing was released before 0.3.0, so no build can upgrade such a database.
#[rstest]
#[tokio::test]
async fn database_of_an_earlier_build_is_refused(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let (fixture, mut raw) = Fixture::with_raw(backend).await;
    let earlier = match backend {
        Postgres => r"UPDATE _sqlx_migrations SET checksum = '\x00'",
        Sqlite | Mysql => "UPDATE _sqlx_migrations SET checksum = x'00'",
    };
    raw.run(earlier).await.unwrap();
    let refused = Process::run(&["serve"], &[("DATABASE_URL", &fixture.url)]).await;
    let error = refused.stderr.trim_end();
    assert_eq!(refused.code, Some(1), "{error}");
    let advice = "export what you need, and start with an empty database";
    assert!(error.ends_with(advice), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
}

/// `PAD SPACE`, the default of MariaDB, would find one in place of the other.
#[rstest]
#[tokio::test]
async fn texts_that_differ_in_a_blank_or_case_are_different(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let (_fixture, mut raw) = Fixture::with_raw(backend).await;
    for (number, text) in (1..).zip(["PO-1", "PO-1 ", "po-1"]) {
        let operation = match backend {
            Postgres => format!("'00000000-0000-7000-8000-00000000000{number}'"),
            Sqlite | Mysql => format!("x'0000000000007000800000000000000{number}'"),
        };
        let level = format!(
            "INSERT INTO stock (sku, warehouse, on_hand) VALUES ('{text}', 'main', 5), ('a', '{text}', 5)"
        );
        // The key is unique for a caller, and the version in a level.
        let movement = format!(
            "INSERT INTO movement (operation_id, line, sku, warehouse, kind, delta, available_after,
                level_version, caller, idempotency_key, reference)
            VALUES ({operation}, 0, '{text}', 'main', 'deducted', -1, 0, 1, 'c', '{text}', '{text}'),
                ({operation}, 1, 'a', '{text}', 'deducted', -1, 0, 1, '{text}', 'K', '{text}')"
        );
        for statement in [level, movement] {
            raw.run(statement.leak()).await.unwrap();
        }
    }
    for found in [
        "stock WHERE sku = 'PO-1'",
        "movement WHERE sku = 'PO-1'",
        "movement WHERE warehouse = 'PO-1'",
        "movement WHERE caller = 'PO-1'",
        "movement WHERE caller = 'c' AND idempotency_key = 'PO-1'",
        "movement WHERE line = 0 AND reference = 'PO-1'",
    ] {
        let count = format!("SELECT cast(count(*) AS char(1)) FROM {found}");
        let count = raw.text(count.leak()).await;
        assert_eq!(count.as_deref(), Some("1"), "{found}");
    }
    if matches!(backend, Mysql) {
        let sold = raw.text(
            "CALL stocklock_write_1(1, 1, 0, 'group-commit', 9e15,
                '[[0, \"PO-1 \", \"main\", -1, 1, null, null]]',
                '[[[0, 0, \"00000000000070008000000000000009\", -1, \"c\", \"K\", null], null]]')",
        );
        assert_eq!(sold.await.as_deref(), Some("[[0, 4]]"));
        let left = "SELECT cast(on_hand AS char) FROM stock WHERE sku = 'PO-1'";
        assert_eq!(raw.text(left).await.as_deref(), Some("5"));
    }
}

/// The URL with a password and another change.
fn altered(url: &str, change: impl FnOnce(&mut reqwest::Url)) -> String {
    let mut url = reqwest::Url::parse(url).expect("a URL");
    url.set_password(Some("hunter2")).expect("it has a host");
    change(&mut url);
    url.into()
}

/// The error of a migration that cannot succeed: one line, soon, and without the password.
async fn refusal(url: &str) -> String {
    let start = Instant::now();
    let refused = migrate(url).await.expect_err("it cannot succeed");
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert!(!refused.contains("hunter2"), "{refused}");
    assert!(!refused.contains('\n'), "{refused}");
    refused
}

#[rstest]
#[tokio::test]
async fn unknown_database_or_user_is_reported(#[values(Mysql, Postgres)] backend: Backend) {
    let database = fresh_database(backend).await;
    let mut unknown_database = reqwest::Url::parse(&database.url).expect("a URL");
    unknown_database.set_path("nowhere");
    let refused = refusal(unknown_database.as_str()).await;
    let advice = refused.contains("create it by `CREATE DATABASE");
    assert!(advice && refused.contains("nowhere"), "{refused}");
    let unknown_user = altered(&database.url, |url| url.set_username("stranger").unwrap());
    let refused = refusal(&unknown_user).await;
    assert!(refused.contains("denies access"), "{refused}");
}

#[tokio::test]
async fn scheme_of_the_url_chooses_the_database() {
    let mariadb = fresh_database(Mysql).await;
    let url = mariadb.url.replacen("mysql:", "mariadb:", 1);
    assert_eq!(Fixture::at(Mysql, url).await.store.backend(), "mysql");
    let postgres = fresh_database(Postgres).await;
    let url = postgres.url.replacen("postgres:", "postgresql:", 1);
    let fixture = Fixture::at(Postgres, url).await;
    assert_eq!(fixture.store.backend(), "postgres");
    assert_eq!(fixture.put("a", 1).await.on_hand, 1);
    assert!(migrate("oracle://somewhere").await.is_err());
    let refused = migrate("mysql://root@127.0.0.1").await.unwrap_err();
    assert!(refused.contains("no database"), "{refused}");
}

/// The service and its database may start together.
#[rstest]
#[tokio::test]
async fn migration_waits_for_a_server_to_start(#[values(Mysql, Postgres)] backend: Backend) {
    let server = PrivateServer::start(backend).await;
    server.kill9();
    let url = server.url().to_owned();
    let waiting = tokio::spawn(async move { migrate(&url).await });
    sleep(Duration::from_millis(300)).await;
    assert!(!waiting.is_finished(), "it does not wait");
    server.restart().await;
    assert_eq!(waiting.await.unwrap(), Ok(()));
}

/// Virtual time: half a minute of attempts, each of which is refused at once.
#[tokio::test(start_paused = true)]
async fn migration_gives_up_if_the_server_never_starts() {
    let port = free_port();
    let url = format!("postgres://user:hunter2@127.0.0.1:{port}/stock");
    let refused = timeout(2 * SOON, migrate(&url)).await.expect("bounded");
    let refused = refused.expect_err("there is no server");
    let expected = format!("nothing listens at 127.0.0.1:{port}");
    assert!(refused.starts_with(&expected), "{refused}");
    assert!(!refused.contains("hunter2"), "{refused}");
}

#[tokio::test]
async fn file_that_cannot_be_opened_is_reported_at_once() {
    let refused = refusal("sqlite:///nonexistent/directory/stock.db").await;
    let expected = "/nonexistent/directory/stock.db: unable to open database file";
    assert!(refused.starts_with(expected), "{refused}");
}

/// Each connection would have its own database.
#[rstest]
#[case("sqlite::memory:")]
#[case("sqlite://:memory:")]
#[case("sqlite://stock.db?mode=memory")]
#[case("sqlite://")]
#[tokio::test]
async fn database_in_memory_is_refused(#[case] url: &str) {
    let options = StoreOptions {
        pool_size: 2,
        wait_limit: SOON,
    };
    let refused = connect(url, &options).expect_err("it is in memory");
    assert!(refused.contains("in-memory"), "{refused}");
    assert_eq!(refusal(url).await, refused);
}
