//! Redis Sentinel: the master is replaced while stock is sold and locks are taken.
//!
//! `TEST_FAILOVERS` is the number of failovers.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::StreamExt;
use reqwest::Method;
use rstest::rstest;
use serde_json::json;
use stocklock_testkit::run::variable;
use tokio::time::timeout;

use super::pair::{Pair, follow};
use super::{applied_audit, assert_sold, command, create, order};
use crate::faults::buyers::{Buyers, Keys, PLENTY};
use crate::faults::{KEY, Ledger, SOON, send, until};
use crate::support::app::TestApp;
use crate::support::process::Process;
use crate::support::services::{Backend, PrivateServer};

const DEFAULT_FAILOVERS: usize = 2;
/// The SKU of each strategy has its name. `redis-lock` also takes its locks from the master.
const STRATEGIES: [&str; 3] = ["redis-lua", "redis-watch", "redis-lock"];
/// Concurrent buyers per strategy.
const BUYERS: usize = 6;
/// Sales of each strategy between two failovers.
const SALES: usize = 30;

/// How many times the master is replaced.
pub(super) fn failovers(default: usize) -> usize {
    variable("TEST_FAILOVERS").map_or(default, |failovers| failovers.parse().expect("a number"))
}

/// Goal: the service follows the master without a restart. A sale is lost only if neither the replica nor
/// SQL had it, and none is lost with `WAIT`. After a repair, the level agrees with SQL.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_follows_the_master_through_failovers(#[values("0", "1")] wait: &str) {
    let (pair, failovers) = (Pair::start().await, failovers(DEFAULT_FAILOVERS));
    let url = pair.url();
    let lost = lost_through(failovers, [&url, &url], wait, async |number| {
        pair.fail_over(number % 2 == 0).await
    });
    let lost = lost.await;
    println!("figure: {failovers} failovers, WAIT {wait}: {lost} acknowledged sales lost");
}

/// Sells while `change` changes the Redis of the first URL `count` times; the second one is that of the locks.
/// `change` returns operations that are in Redis after that. Checks the ledger, and returns how many
/// acknowledged sales are lost.
pub(super) async fn lost_through(
    count: usize,
    [url, locks]: [&str; 2],
    wait: &str,
    mut change: impl AsyncFnMut(usize) -> BTreeSet<String>,
) -> usize {
    let flags = [
        "--redis-url",
        url,
        "--lock-redis-url",
        locks,
        "--redis-wait-replicas",
        wait,
    ];
    let app = TestApp::with_flags(Backend::Postgres, 2, &flags).await;
    let mut buyers = Vec::new();
    for strategy in STRATEGIES {
        create(&app, strategy, PLENTY).await;
        let order = |number| app.deduct(number, strategy, &json!({ "sku": strategy }));
        buyers.push(Buyers::start(
            strategy,
            Keys::All,
            (0..BUYERS).map(order),
            |_, _| (),
        ));
    }
    let mut received = BTreeSet::new();
    for number in 0..count {
        for buyers in &buyers {
            buyers.sell(SALES).await;
        }
        received.extend(change(number).await);
    }
    for buyers in &buyers {
        buyers.sell(SALES).await;
    }

    let ledger = Ledger::at(&app.database_url);
    let mut lost = 0;
    for (sku, buyers) in STRATEGIES.into_iter().zip(buyers) {
        let mut acknowledged = buyers.stop().await.acknowledged;
        // What SQL has is not sold again, also without a repair.
        let audit = applied_audit(&app, sku).await;
        assert_eq!(audit["consistent"], true, "{audit}");
        let variables = [("DATABASE_URL", &*app.database_url), ("REDIS_URL", url)];
        let repaired = Process::run(&["repair", "--sku", sku], &variables).await;
        assert_eq!(repaired.code, Some(0), "{}", repaired.stderr);
        let audit = applied_audit(&app, sku).await;
        assert_eq!(audit["consistent"], true, "repaired: {audit}");
        let recorded: BTreeMap<_, _> = ledger.sales(sku).await.into_iter().collect();
        assert_eq!(audit["on_hand"], PLENTY - recorded.values().sum::<i64>());
        for operation in recorded.keys() {
            let sold = acknowledged.remove(operation);
            assert!(sold.is_some(), "{sku}: {operation} was not acknowledged");
        }
        for operation in acknowledged.keys() {
            let had = received.contains(operation);
            assert!(!had, "{sku}: {operation} is lost, but a new master had it");
        }
        lost += acknowledged.len();
    }
    assert!(
        wait == "0" || lost == 0,
        "{lost} sales lost in spite of WAIT"
    );
    app.stop().await;
    lost
}

/// Goal: what the replica has not received is lost once, and nothing else: SQL has the rest.
///
/// Method: the replica is cut off, SQL gets the sales, and the master is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sales_that_sql_has_survive_a_stale_replica() {
    let pair = Pair::start().await;
    let [master, replica] = &pair.servers;
    let url = pair.url();
    let app = TestApp::with_flags(Backend::Postgres, 1, &["--redis-url", &url]).await;
    create(&app, "a", 10).await;
    let sell = || send(order(&app, "redis-lua", "a"));
    sell().await.ok();
    applied_audit(&app, "a").await;
    replica.stop().await;
    for _ in 0..4 {
        sell().await.ok();
    }
    assert_sold(&applied_audit(&app, "a").await, 5);
    master.kill9();
    replica.resume();

    let mut left = Vec::new();
    until("stock is sold again", async || {
        let sold = sell().await;
        left.extend(sold.body["remaining"].as_i64());
        sold.status == 200
    })
    .await;
    assert_eq!(left, [4]);
    assert_sold(&applied_audit(&app, "a").await, 6);
    app.stop().await;
}

/// A master and its replica, without sentinels.
async fn master_and_replica() -> [PrivateServer; 2] {
    let servers = [
        PrivateServer::redis(&[]).await,
        PrivateServer::redis(&[]).await,
    ];
    follow(&servers[1], &servers[0]).await;
    servers
}

/// Goal: with `WAIT`, neither a sale that the replica does not have nor its retry is acknowledged.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sale_that_the_replica_lacks_is_not_acknowledged(
    #[values("redis-lua", "redis-watch", "no-lock")] strategy: &str,
) {
    let [master, replica] = master_and_replica().await;
    let flags = ["--redis-url", master.url(), "--redis-wait-replicas", "1"];
    let app = TestApp::with_flags(Backend::Sqlite, 1, &flags).await;
    create(&app, "a", 10).await;
    let sale = || order(&app, strategy, "a").header(KEY, "once");
    send(order(&app, strategy, "a")).await.ok();

    replica.stop().await;
    for _ in 0..2 {
        let answer = send(sale()).await;
        assert_eq!(answer.status_and_code(), (504, "outcome-unknown"));
    }
    // Their server may no longer be the master.
    until("connections whose WAIT failed are closed", async || {
        let clients: String = command(master.url(), &["CLIENT", "LIST"]).await;
        !clients.contains("cmd=wait")
    })
    .await;
    replica.resume();

    until("the replica has the sale", async || {
        send(sale()).await.status == 200
    })
    .await;
    assert_sold(&applied_audit(&app, "a").await, 2);
    app.stop().await;
}

/// Goal: with `WAIT`, no change that the replica does not have is acknowledged, also if it is repeated. A
/// refusal, which changes nothing, does not need the replica.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_that_the_replica_lacks_is_not_acknowledged() {
    let [master, replica] = master_and_replica().await;
    let flags = ["--redis-url", master.url(), "--redis-wait-replicas", "1"];
    let app = TestApp::with_flags(Backend::Sqlite, 1, &flags).await;
    create(&app, "a", 10).await;
    create(&app, "sold-out", 1).await;
    for sku in ["a", "sold-out"] {
        assert_eq!(send(order(&app, "redis-lua", sku)).await.status, 200);
    }
    let limit = json!({ "backorder_limit": 5 });
    let set = || app.request(0, Method::PUT, "/stock/a").json(&limit);
    let restock = json!({ "delta": 3, "reason": "restock" });
    let adjust = || app.adjust(0, "a", &restock).header(KEY, "once");

    replica.stop().await;
    let refused = send(order(&app, "redis-lua", "sold-out")).await;
    assert_eq!(refused.status_and_code(), (409, "insufficient-stock"));
    for change in [set(), set(), adjust(), adjust()] {
        let answer = send(change).await;
        assert_eq!(answer.status_and_code(), (504, "outcome-unknown"));
    }
    replica.resume();

    until("the replica has the changes", async || {
        send(set()).await.status == 200 && send(adjust()).await.status == 200
    })
    .await;
    assert_eq!(applied_audit(&app, "a").await["on_hand"], 12);
    app.stop().await;
}

/// Goal: what `WAIT` confirms is what was read, because another connection may lead to another server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retry_is_read_on_the_connection_that_waits() {
    let [master, _replica] = master_and_replica().await;
    let flags = ["--redis-url", master.url(), "--redis-wait-replicas", "1"];
    let app = TestApp::with_flags(Backend::Sqlite, 1, &flags).await;
    create(&app, "a", 10).await;
    let sale = || order(&app, "redis-lua", "a").header(KEY, "once");
    assert_eq!(send(sale()).await.status, 200);

    let client = redis::Client::open(master.url()).expect("a URL");
    let monitor = client.get_async_monitor().await.expect("it connects");
    let mut commands = monitor.into_on_message::<String>();
    assert_eq!(send(sale()).await.status, 200);
    // Each line is like: 1700000000.000000 [0 127.0.0.1:4711] "WAIT" "1" "1000"
    let mut seen: Vec<(String, String)> = Vec::new();
    let waits = async {
        while let Some(command) = commands.next().await {
            let (client, words) = command.split_once("] ").expect("a client");
            let client = client.rsplit(' ').next().expect("an address");
            if words.starts_with("\"WAIT\"") {
                return client.to_owned();
            }
            seen.push((client.to_owned(), words.to_owned()));
        }
        panic!("no WAIT in {seen:?}");
    };
    let waits = timeout(SOON, waits).await.expect("the retry waits");
    let has_read = seen
        .iter()
        .any(|(client, words)| *client == waits && words.starts_with("\"HGET\""));
    assert!(has_read, "{waits}: {seen:?}");
    app.stop().await;
}
