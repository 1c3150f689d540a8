//! An upgrade while the previous release sells: the migrations stop no sale, and both releases then sell
//! from one database.
//!
//! `TEST_OLD_BINARY` is the program of the previous release; without it, this build takes its place.
//! `TEST_MOVEMENTS` is the number of movements that the ledger has before the upgrade.

use rstest::rstest;
use stocklock_testkit::run::variable;

use crate::distant_race::race;
use crate::store_contract::fixture::Raw;
use crate::support::movements::fill;
use crate::support::process::{Process, this_build};
use crate::support::services::Backend::{self, Mysql, Postgres};
use crate::support::services::fresh_database;

const DEFAULT_MOVEMENTS: u64 = 2_000;

/// Strategies whose sales are never lost.
const RACE: &str =
    "--stock 400 --buyers 16 --orders 30 --strategy single-sql,for-update,optimistic";

/// Sells at these replicas; no order may fail.
async fn sell(replicas: &[&Process]) {
    let targets: Vec<_> = replicas.iter().map(|replica| replica.url("")).collect();
    let words = format!("{RACE} --target {}", targets.join(" --target "));
    let (report, ended) = race(&words, &[]).await;
    for row in report["rows"].as_array().expect("rows") {
        assert_eq!(row["verdict"], "exact", "{}", ended.stdout);
        assert_eq!(row["failed"], 0, "{}", ended.stdout);
    }
}

/// Goal: no sale fails during the migrations, although a reader keeps a transaction open, and none while
/// the two releases sell side by side.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upgrade_under_load_fails_no_sale(#[values(Mysql, Postgres)] backend: Backend) {
    let movements = variable("TEST_MOVEMENTS").map_or(DEFAULT_MOVEMENTS, |movements| {
        movements.parse().expect("TEST_MOVEMENTS is a number")
    });
    let old = variable("TEST_OLD_BINARY").unwrap_or_else(this_build);
    let database = fresh_database(backend).await;
    let old = Process::lab_of(&old, &database.url).await;
    old.set_level("filled", 0).await;
    fill(backend, &database.url, "filled", movements).await;
    let mut reader = Raw::connect(backend, &database.url).await;
    reader.run("BEGIN").await.expect("a transaction can begin");
    reader.text("SELECT sku FROM movement LIMIT 1").await;
    reader.text("SELECT sku FROM stock LIMIT 1").await;

    let mut migration = Process::start(&["migrate"], &[("DATABASE_URL", &database.url)]);
    sell(&[&old]).await;
    reader.run("COMMIT").await.expect("the transaction can end");
    let mut races = 1;
    while migration.is_running() {
        sell(&[&old]).await;
        races += 1;
    }
    let migration = migration.ended().await;
    assert_eq!(migration.code, Some(0), "{}", migration.stderr);

    let new = Process::lab(&database.url, &[]).await;
    for _ in 0..3 {
        sell(&[&old, &new]).await;
    }
    println!(
        "figure: {backend:?}, {movements} movements: {races} races during the upgrade, 3 after it"
    );
}
