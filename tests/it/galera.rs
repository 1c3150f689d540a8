//! Replicas that start at the same time on an empty database, on a Galera cluster each at its own node: all
//! serve, and the schema is complete. And an attempt at one node, about which another node decides. Galera's nodes
//! share neither `get_lock` nor the locks of rows.
//!
//! `TEST_STARTS` is the number of empty databases, `TEST_DECISIONS` that of attempts.

use std::time::Duration;

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::json;
use stocklock::ports::{Expiry, LateAttempt, StoreError};
use stocklock_testkit::run::{number, rng};
use stocklock_testkit::{assert_matches, eventually};
use tokio::time::{Instant, sleep};

use crate::faults::SOON;
use crate::store_contract::fixture::{deduction, open_waiting};
use crate::support::app::send;
use crate::support::process::Process;
use crate::support::rival::{Raw, until_found};
use crate::support::services::Backend::{self, Mysql, Postgres};
use crate::support::services::{GaleraCluster, fresh_database};

const REPLICAS: usize = 3;
/// How many sales are answered again. Their names are in order.
const ROUNDS: u32 = 5;

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

/// A table whose change keeps a node busy: it applies each row by itself.
const FILLER: [&str; 3] = [
    "CREATE TABLE filler (number INT PRIMARY KEY AUTO_INCREMENT, changes INT NOT NULL)",
    "INSERT INTO filler (changes) SELECT 0 FROM seq_1_to_200000",
    "UPDATE filler SET changes = changes + 1",
];

/// Goal: a request that one node has sold is answered again by a replica at another node, which has not applied the sale.
///
/// Method: that node is busy with a large transaction of the first one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sale_is_answered_again_at_a_galera_node_that_lags() {
    let cluster = GaleraCluster::start().await;
    let urls = cluster.fresh_database().await.expect("it answers");
    let start = async |url| {
        // The node lags for as long as the machine takes.
        let patient = [("WAIT_LIMIT_MS", "20000"), ("REQUEST_DEADLINE_MS", "60000")];
        Process::serving(
            &["serve"],
            &[&[("DATABASE_URL", url)][..], &patient].concat(),
        )
        .await
    };
    let (first, other) = (start(&*urls[0]).await, start(&*urls[1]).await);
    let mut raw = Raw::connect(Mysql, &urls[0]).await;
    let mut late = Raw::connect(Mysql, &urls[1]).await;
    for statement in &FILLER[..2] {
        raw.run(statement).await.expect("the table is new");
    }
    let mut lagged = 0;
    for round in 0..ROUNDS {
        let sku = format!("s{round}");
        let buy = async |replica: &Process| {
            let sale = replica.request(Method::POST, "/stock/deduct");
            let sale = sale.header("Idempotency-Key", &sku);
            send(sale.json(&json!({ "sku": sku }))).await
        };
        raw.run(FILLER[2]).await.expect("nothing is in the way");
        first.set_level(&sku, 1).await;
        let sold = buy(&first).await.ok().clone();
        let last = late.text("SELECT coalesce(max(sku), '') FROM stock").await;
        lagged += u32::from(last.as_deref() != Some(&sku));
        let again = buy(&other).await;
        assert_eq!(again.ok(), &sold);
        assert!(again.replayed);
    }
    assert!(lagged > 0, "the node never lagged");
}

/// Goal: an attempt whose outcome is unknown is never taken for dead and then committed.
///
/// Method: it is held before its COMMIT at one node, while a replica at another node decides about it. Every other
/// attempt commits at about the same time. Two of four create their level, which the other node does not have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_attempt_is_never_committed_on_galera() {
    let cluster = GaleraCluster::start().await;
    let urls = cluster.fresh_database().await.expect("it answers");
    let _replica = Process::serving(&["serve"], &[("DATABASE_URL", &urls[0])]).await;
    let store = open_waiting(&urls[1], 4, SOON);
    let mut raw = Raw::connect(Mysql, &urls[0]).await;
    let mut other = Raw::connect(Mysql, &urls[1]).await;
    let migrated = "SELECT table_name FROM information_schema.tables
        WHERE table_schema = database() AND table_name = 'webhook'";
    until_found(&mut other, migrated).await;
    let (decisions, mut dead) = (number("TEST_DECISIONS", 10), 0);
    for attempt in 0..decisions {
        let order = deduction("raw", 1);
        let [prepared, taken] = if attempt % 4 < 2 {
            [
                "REPLACE INTO stock (sku, warehouse, on_hand, version) VALUES ('raw', 'main', 1, 1)",
                "UPDATE stock SET on_hand = on_hand - 1, version = version + 1",
            ]
        } else {
            [
                "REPLACE INTO stock (sku, warehouse, on_hand, version) VALUES ('raw', 'main', 1, 1);
                 DELETE FROM stock",
                "INSERT INTO stock (sku, warehouse, on_hand, version) VALUES ('raw', 'main', 0, 2)",
            ]
        };
        for statement in ["DELETE FROM movement", prepared] {
            eventually("the last sale is undone", SOON, async || {
                raw.run(statement).await.is_ok()
            })
            .await;
        }
        raw.begin().await;
        raw.run(taken).await.expect("the row is free");
        raw.record(order.id.0).await;
        let pause = Duration::from_millis(rng().u64(..4));
        let late = async {
            loop {
                match store.late_attempt(&order, Expiry::passed()).await {
                    Ok(late) => return late,
                    // The attempt has committed first, or what was undone comes late: the decision is made again.
                    Err(error) => assert_matches!(error, StoreError::Aborted(_)),
                }
            }
        };
        let (late, committed) = if attempt % 2 == 0 {
            let late = late.await;
            assert_matches!(late, LateAttempt::Dead);
            (late, raw.run("COMMIT").await)
        } else {
            tokio::join!(late, async {
                sleep(pause).await;
                raw.run("COMMIT").await
            })
        };
        let is_dead = matches!(late, LateAttempt::Dead);
        assert_eq!(
            is_dead,
            committed.is_err(),
            "{attempt}: {late:?}, {committed:?}"
        );
        dead += usize::from(is_dead);
    }
    println!("figure: {dead} of {decisions} attempts were dead");
}
