//! An upgrade while the previous release sells: the migrations stop no sale, and both releases then sell
//! from one database.
//!
//! `TEST_OLD_BINARY` is the program of the previous release. Without it, this build takes its place, on a
//! schema without the last two indexes. `TEST_MOVEMENTS` is the number of movements
//! that the ledger has before the upgrade.

use std::time::Duration;

use rstest::rstest;
use serde_json::json;
use stocklock_testkit::eventually;
use stocklock_testkit::run::variable;
use tokio::time::Instant;

use crate::distant_race::race;
use crate::store_contract::fixture::Raw;
use crate::support::movements::fill;
use crate::support::process::{Process, this_build};
use crate::support::services::Backend::{self, Mysql, Postgres};
use crate::support::services::fresh_database;

const DEFAULT_MOVEMENTS: u64 = 2_000;

/// More time than the migrations need at full size.
const UPGRADE_LIMIT: Duration = Duration::from_mins(10);

/// Strategies whose sales are never lost.
const RACE: &str =
    "--stock 400 --buyers 16 --orders 30 --strategy single-sql,for-update,optimistic";

/// Logged after the last migration of a column. Those that follow build indexes.
const COLUMNS_ARE_ADDED: &str = "migration 7 (checkpoint) is applied";

/// Sells at these replicas; no order may fail. With `single-sql`, no exchange may even be repeated.
async fn sell(replicas: &[&Process]) {
    let targets: Vec<_> = replicas.iter().map(|replica| replica.url("")).collect();
    let words = format!("{RACE} --target {}", targets.join(" --target "));
    let (report, ended) = race(&words, &[]).await;
    for row in report["rows"].as_array().expect("rows") {
        assert_eq!(row["verdict"], "exact", "{}", ended.stdout);
        assert_eq!(row["failed"], 0, "{}", ended.stdout);
        if row["strategy"] == "single-sql" {
            assert_eq!(row["retried"], json!({}), "{}", ended.stdout);
        }
    }
}

/// Removes indexes that this build can sell without, and the records of the migrations that build them.
async fn undo_index_builds(backend: Backend, url: &str) {
    let mut raw = Raw::connect(backend, url).await;
    let drop_indexes = match backend {
        Mysql => "ALTER TABLE movement DROP KEY movement_of_reference, DROP KEY movement_of_sale",
        _ => "DROP INDEX movement_of_reference, movement_of_sale",
    };
    let forget = "DELETE FROM _sqlx_migrations WHERE version IN (20, 21)";
    for statement in [drop_indexes, forget] {
        raw.run(statement).await.expect("it can be undone");
    }
}

/// A transaction that has read the ledger. A change of its columns waits for it, and so does each build
/// of an index: on MariaDB because of this use of the table, on PostgreSQL because of the snapshot.
async fn open_reader(backend: Backend, url: &str) -> Raw {
    let mut reader = Raw::connect(backend, url).await;
    let begin = match backend {
        Postgres => "BEGIN ISOLATION LEVEL REPEATABLE READ",
        _ => "BEGIN",
    };
    reader.run(begin).await.expect("a transaction can begin");
    reader.text("SELECT sku FROM movement LIMIT 1").await;
    reader.text("SELECT sku FROM stock LIMIT 1").await;
    reader
}

/// The previous release accepts only a schema that it knows. Its running replicas check it no more.
async fn assert_cannot_restart(program: &str, url: &str) {
    let restarted = Process::start_program(program, &["lab"], &[("DATABASE_URL", url)]);
    let ended = restarted.ended().await;
    let expected = "was previously applied but is missing in the resolved migrations";
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains(expected), "{}", ended.stderr);
}

/// Goal: no sale fails during the migrations, although a reader keeps a transaction open, and none while
/// the two releases sell side by side.
///
/// Method: a reader is open during a race, when the migrations begin and again when they build indexes.
/// This build as its own predecessor has only indexes to build.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upgrade_under_load_fails_no_sale(#[values(Mysql, Postgres)] backend: Backend) {
    let movements = variable("TEST_MOVEMENTS").map_or(DEFAULT_MOVEMENTS, |movements| {
        movements.parse().expect("TEST_MOVEMENTS is a number")
    });
    let old_program = variable("TEST_OLD_BINARY");
    let program = old_program.clone().unwrap_or_else(this_build);
    let database = fresh_database(backend).await;
    let url = &database.url;
    let old = Process::lab_of(&program, url).await;
    old.set_level("filled", 0).await;
    if old_program.is_none() {
        undo_index_builds(backend, url).await;
    }
    fill(backend, url, "filled", movements).await;

    let mut reader = open_reader(backend, url).await;
    let started = Instant::now();
    let mut migration = Process::start(&["migrate"], &[("DATABASE_URL", url)]);
    let mut races = 0;
    loop {
        sell(&[&old]).await;
        races += 1;
        assert!(migration.is_running(), "{}", migration.stderr());
        let indexes_wait = old_program.is_none() || migration.stderr().contains(COLUMNS_ARE_ADDED);
        reader.run("COMMIT").await.expect("the transaction can end");
        if indexes_wait {
            break;
        }
        let are_added = async || migration.stderr().contains(COLUMNS_ARE_ADDED);
        eventually("the columns are added", UPGRADE_LIMIT, are_added).await;
        reader = open_reader(backend, url).await;
    }
    while migration.is_running() {
        assert!(started.elapsed() < UPGRADE_LIMIT, "{}", migration.stderr());
        sell(&[&old]).await;
        races += 1;
    }
    let migration = migration.ended().await;
    assert_eq!(migration.code, Some(0), "{}", migration.stderr);

    if let Some(program) = &old_program {
        assert_cannot_restart(program, url).await;
    }
    let new = Process::lab(url, &[]).await;
    for _ in 0..3 {
        sell(&[&old, &new]).await;
    }
    println!(
        "figure: {backend:?}, {movements} movements: {races} races during the upgrade, 3 after it"
    );
}
