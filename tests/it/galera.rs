//! Replicas that start at the same time on an empty database, on a Galera cluster each at its own node: all
//! serve, and the schema is complete. Galera's nodes do not share `get_lock`.
//!
//! `TEST_STARTS` is the number of empty databases.

use std::time::Duration;

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::json;
use stocklock_testkit::run::{number, rng};
use tokio::time::{Instant, sleep};

use crate::support::app::send;
use crate::support::process::Process;
use crate::support::rival::{Raw, until_found};
use crate::support::services::Backend::{self, Mysql, Postgres};
use crate::support::services::{GaleraCluster, fresh_database};

const REPLICAS: usize = 3;

fn starts() -> u32 {
    number("TEST_STARTS", 2)
}

/// Starts a replica at each URL. Each must sell.
async fn replicas_start_and_sell(urls: &[String]) {
    let start = |url| Process::start(&["serve"], &[("DATABASE_URL", url)]);
    let mut replicas: Vec<_> = urls.iter().map(|url| start(url)).collect();
    join_all(replicas.iter_mut().map(Process::is_ready)).await;
    for (number, replica) in replicas.iter().enumerate() {
        let sku = format!("s{number}");
        replica.set_level(&sku, 1).await;
        let sale = replica.request(Method::POST, "/stock/deduct");
        let sale = send(
            sale.header("Idempotency-Key", &sku)
                .json(&json!({ "sku": sku })),
        )
        .await;
        assert_eq!(sale.ok()["remaining"], 0);
    }
}

/// Each migration is recorded as complete, and the ledger has one id.
async fn assert_migrated_once(backend: Backend, url: &str) {
    let mut raw = Raw::connect(backend, url).await;
    let unfinished = "SELECT description FROM _sqlx_migrations WHERE NOT success";
    assert_eq!(raw.text(unfinished).await, None);
    let ids = "SELECT cast(count(*) AS char(3)) FROM ledger";
    assert_eq!(raw.text(ids).await.as_deref().map(str::trim), Some("1"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_start_at_once_on_an_empty_galera_cluster() {
    let cluster = GaleraCluster::start().await;
    for _ in 0..starts() {
        let urls = cluster.fresh_database().await.expect("it answers");
        let begin = Instant::now();
        replicas_start_and_sell(&urls).await;
        println!("figure: Galera: all sell after {:?}", begin.elapsed());
        assert_migrated_once(Mysql, &urls[0]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_start_at_once_on_an_empty_postgresql() {
    for _ in 0..starts() {
        let database = fresh_database(Postgres).await;
        replicas_start_and_sell(&vec![database.url.clone(); REPLICAS]).await;
        assert_migrated_once(Postgres, &database.url).await;
    }
}

/// One process is killed while it migrates. The processes at the other nodes finish its migration.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migration_of_a_killed_process_is_finished_on_galera() {
    let cluster = GaleraCluster::start().await;
    let mut unfinished = 0;
    for _ in 0..starts() {
        let urls = cluster.fresh_database().await.expect("it answers");
        let migrate = |url: &String| Process::start(&["migrate"], &[("DATABASE_URL", url)]);
        let mut killed = migrate(&urls[0]);
        let mut raw = Raw::connect(Mysql, &urls[0]).await;
        let record = "SELECT table_name FROM information_schema.tables
            WHERE table_schema = database() AND table_name = 'stock'";
        until_found(&mut raw, record).await;
        let others: Vec<_> = urls[1..].iter().map(migrate).collect();
        sleep(Duration::from_millis(rng().u64(..200))).await;
        killed.kill9();
        let left = "SELECT description FROM _sqlx_migrations WHERE NOT success";
        unfinished += u32::from(raw.text(left).await.is_some());
        for ended in join_all(others.into_iter().map(Process::ended)).await {
            assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        }
        assert_migrated_once(Mysql, &urls[1]).await;
        replicas_start_and_sell(&urls).await;
    }
    println!(
        "figure: {unfinished} of {} kills left a migration unfinished",
        starts()
    );
}
