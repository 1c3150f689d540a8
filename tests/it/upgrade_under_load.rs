//! An upgrade while the previous release sells: the migrations stop no sale, and both releases then sell
//! from one database.
//!
//! `TEST_OLD_BINARY` is the program of the previous release; without it, this build takes its place. The
//! migrations are those of this build, and two more that only the tests have: they add a column and build
//! an index. `TEST_MOVEMENTS` is the number of movements that the ledger has before the upgrade.

use std::borrow::Cow;
use std::time::Duration;

use futures_util::future::join_all;
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use sqlx::SqlSafeStr as _;
use sqlx::migrate::{Migration, MigrationType};
use stocklock::store::migrate_with;
use stocklock_testkit::eventually;
use stocklock_testkit::run::{number, variable};
use tokio::time::Instant;

use crate::distant_race::{race, rows};
use crate::faults::{KEY, new_key, send_until_final};
use crate::store_contract::fixture::Raw;
use crate::support::process::{Process, this_build};
use crate::support::seeded_ledger::Seeded;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};
use crate::support::services::fresh_database;

const DEFAULT_MOVEMENTS: u64 = 2_000;

/// More time than the migrations need at full size.
const UPGRADE_LIMIT: Duration = Duration::from_mins(10);

/// Strategies whose sales are never lost.
const RACE: &str =
    "--stock 200 --buyers 16 --orders 15 --strategy single-sql,for-update,optimistic,group-commit";

/// Units that both releases sell at last.
const MIXED: i64 = 300;
const BUYERS: usize = 8;

/// Finds the record of the migration that adds a column. The next one builds an index.
const COLUMN_IS_ADDED: &str =
    "SELECT description FROM _sqlx_migrations WHERE version = 11 AND success";

/// What the next release may have: a migration that adds a column, and one that builds an index. This build
/// needs neither.
pub(crate) fn later_migrations(backend: Backend) -> Vec<Migration> {
    let (column, index) = match backend {
        Sqlite => (
            "ALTER TABLE stock ADD COLUMN later integer",
            "CREATE INDEX movement_of_strategy ON movement (strategy)",
        ),
        Mysql => (
            "ALTER TABLE stock ADD COLUMN IF NOT EXISTS later bigint, ALGORITHM = INSTANT",
            "ALTER TABLE movement ADD INDEX IF NOT EXISTS movement_of_strategy (strategy), LOCK = NONE",
        ),
        Postgres => (
            "ALTER TABLE stock ADD COLUMN later bigint",
            "CREATE INDEX CONCURRENTLY IF NOT EXISTS movement_of_strategy ON movement (strategy)",
        ),
    };
    let migration = |version, name: &'static str, text: &'static str| {
        // PostgreSQL builds no index concurrently in a transaction.
        let no_transaction = text.contains("CONCURRENTLY");
        let (name, kind) = (Cow::Borrowed(name), MigrationType::Simple);
        Migration::new(version, name, kind, text.into_sql_str(), no_transaction)
    };
    vec![
        migration(11, "later column", column),
        migration(12, "later index", index),
    ]
}

/// Sells at these replicas; no order may fail. With `single-sql`, no exchange may even be repeated.
async fn sell(replicas: &[&Process]) {
    let targets: Vec<_> = replicas.iter().map(|replica| replica.url("")).collect();
    let words = format!("{RACE} --target {}", targets.join(" --target "));
    let (report, ended) = race(&words, &[]).await;
    for row in rows(&report) {
        assert_eq!(row["verdict"], "exact", "{}", ended.stdout);
        assert_eq!(row["failed"], 0, "{}", ended.stdout);
        if row["strategy"] == "single-sql" {
            assert_eq!(row["retried"], json!({}), "{}", ended.stdout);
        }
    }
}

/// Sells one SKU until it is sold out: as single units at both releases, and at the new one as orders of two lines
/// and as holds, which the old one does not know.
async fn sell_orders_beside(old: &Process, new: &Process) {
    for sku in ["mixed", "other"] {
        new.set_level(sku, MIXED).await;
    }
    let post = async |replica: &Process, path: &str, body: Value| {
        let request = replica.request(Method::POST, path).json(&body);
        send_until_final(request.header(KEY, new_key())).await
    };
    let single = "/stock/deduct?strategy=group-commit";
    let both = || json!({"lines": [{"sku": "other"}, {"sku": "mixed"}]});
    let buy = async |buyer: usize| {
        let mut sold = 0;
        loop {
            let answer = match buyer % 4 {
                0 => post(old, single, json!({"sku": "mixed"})).await,
                1 => post(new, single, json!({"sku": "mixed"})).await,
                2 => post(new, "/stock/deduct", both()).await,
                _ => post(new, "/holds", both()).await,
            };
            if answer.status == 409 {
                assert_eq!(answer.code, "insufficient-stock", "{answer:?}");
                return sold;
            }
            if buyer % 4 == 3 {
                let confirm = format!("/operations/{}/confirm", answer.id);
                post(new, &confirm, json!({})).await.ok();
            } else {
                answer.ok();
            }
            sold += 1;
        }
    };
    let sold = join_all((0..BUYERS).map(buy)).await;
    assert!(sold.iter().all(|sold| *sold > 0), "{sold:?}");
    assert_eq!(sold.iter().sum::<i64>(), MIXED, "{sold:?}");
    let audit = new.get("/stock/mixed/audit").await;
    let sums = audit.rows(
        "warehouses",
        &["on_hand", "held", "sold", "oversold", "drift"],
    );
    assert_eq!(json!(sums), json!([[0, 0, MIXED, 0, 0]]), "{audit:?}");
}

/// A transaction that has read a table. A change of its columns waits for it, and so does each build of an
/// index: on MariaDB because of this use of the table, on PostgreSQL because of the snapshot.
async fn open_reader(backend: Backend, url: &str, read: &'static str) -> Raw {
    let mut reader = Raw::connect(backend, url).await;
    let begin = match backend {
        Postgres => "BEGIN ISOLATION LEVEL REPEATABLE READ",
        Sqlite | Mysql => "BEGIN",
    };
    reader.run(begin).await.expect("a transaction can begin");
    reader.text(read).await;
    reader
}

/// Goal: no sale fails during the migrations, although a reader keeps a transaction open, and none while
/// the two releases sell side by side. A replica of the previous release can also be started again.
///
/// Method: one reader is open during a race before the column is added, and another one until the index is
/// built.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upgrade_under_load_fails_no_sale(#[values(Mysql, Postgres)] backend: Backend) {
    let movements = number("TEST_MOVEMENTS", DEFAULT_MOVEMENTS);
    let program = variable("TEST_OLD_BINARY").unwrap_or_else(this_build);
    let database = fresh_database(backend).await;
    let url = &database.url;
    let old = Process::lab_of(&program, url).await;
    old.set_level("filled", 0).await;
    let mut raw = Raw::connect(backend, url).await;
    let seeded = Seeded::of("filled", movements);
    seeded.insert(&mut raw).await;

    let readers = [
        open_reader(backend, url, "SELECT sku FROM stock LIMIT 1").await,
        open_reader(backend, url, "SELECT sku FROM movement LIMIT 1").await,
    ];
    let started = Instant::now();
    let migration = {
        let (url, later) = (url.clone(), later_migrations(backend));
        tokio::spawn(async move { migrate_with(&url, &later).await })
    };
    let mut races = 0;
    for mut reader in readers {
        sell(&[&old]).await;
        races += 1;
        assert!(!migration.is_finished(), "the reader is still there");
        reader.run("COMMIT").await.expect("the transaction can end");
        let is_added = async || raw.text(COLUMN_IS_ADDED).await.is_some();
        eventually("the column is added", UPGRADE_LIMIT, is_added).await;
    }
    while !migration.is_finished() {
        assert!(started.elapsed() < UPGRADE_LIMIT, "the upgrade takes long");
        sell(&[&old]).await;
        races += 1;
    }
    assert_eq!(migration.await.expect("it does not panic"), Ok(()));

    let restarted = Process::lab_of(&program, url).await;
    let new = Process::lab(url, &[]).await;
    for _ in 0..3 {
        sell(&[&old, &restarted, &new]).await;
    }
    sell_orders_beside(&old, &new).await;
    println!(
        "figure: {backend:?}, {movements} movements: {races} races during the upgrade, 3 after it"
    );
}
