//! Redis Cluster: slots move and masters are replaced while stock is sold, and a node loses its data.
//!
//! `TEST_FAILOVERS` is the number of failovers, and of moves of slots.

use std::collections::BTreeSet;

use reqwest::Method;
use rstest::rstest;
use serde_json::json;
use stocklock_testkit::run::rng;
use stocklock_testkit::servers::RedisCluster;

use super::pair::{has_copied, operations};
use super::sentinel::{failovers, lost_through};
use super::{applied_audit, assert_sold, command, create, order};
use crate::faults::{KEY, send, until};
use crate::support::app::TestApp;
use crate::support::services::{Backend, fresh_redis};

const DEFAULT_FAILOVERS: usize = 2;
/// Sales survive the death of a node.
pub(super) const LOGGED: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

/// The slots that have levels.
pub(super) async fn slots_of_levels(cluster: &RedisCluster) -> BTreeSet<u16> {
    let mut slots = BTreeSet::new();
    for master in cluster.masters().await {
        let url = cluster.nodes()[master].url();
        let levels: Vec<String> = command(url, &["KEYS", "stock:*"]).await;
        for level in levels {
            slots.insert(cluster.slot_of(&level).await);
        }
    }
    slots
}

/// Moves a slot that has a level to another master.
pub(super) async fn move_a_slot(cluster: &RedisCluster) {
    let slots: Vec<_> = slots_of_levels(cluster).await.into_iter().collect();
    let slot = slots[rng().usize(..slots.len())];
    let from = cluster.master_of(slot).await;
    let mut masters = cluster.masters().await;
    masters.retain(|&master| master != from);
    let to = masters[rng().usize(..masters.len())];
    cluster.move_slot(slot, to).await;
}

/// Replaces a master that has levels. Returns the operations that its successor has.
async fn fail_over(cluster: &RedisCluster, kill: bool) -> BTreeSet<String> {
    let slots: Vec<_> = slots_of_levels(cluster).await.into_iter().collect();
    let slot = slots[rng().usize(..slots.len())];
    let old = cluster.master_of(slot).await;
    let new = cluster.fail_over(old, kill).await;
    let (old, new) = (&cluster.nodes()[old], &cluster.nodes()[new]);
    let received = operations(new).await;
    has_copied(old, new, &received).await;
    received
}

/// Goal: what holds for failovers with Sentinel holds for those of a cluster, and for slots that move.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_follows_moved_slots_and_new_masters(#[values("0", "1")] wait: &str) {
    let (cluster, failovers) = (
        RedisCluster::start(&LOGGED).await,
        failovers(DEFAULT_FAILOVERS),
    );
    let (url, locks) = (cluster.url(), fresh_redis().await);
    let lost = lost_through(2 * failovers, [&url, &locks.url], wait, async |number| {
        if number % 2 == 0 {
            move_a_slot(&cluster).await;
            return BTreeSet::new();
        }
        fail_over(&cluster, number % 4 == 1).await
    });
    let lost = lost.await;
    println!(
        "figure: cluster: {failovers} moves of slots, {failovers} failovers, WAIT {wait}: {lost} \
         acknowledged sales lost"
    );
}

/// Goal: a node that loses its data sells nothing that SQL has, and the others sell on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_that_lost_its_data_sells_no_unit_twice() {
    let (cluster, locks) = (RedisCluster::start(&[]).await, fresh_redis().await);
    let url = cluster.url();
    let app = TestApp::with_flags(
        Backend::Postgres,
        2,
        &["--redis-url", &url, "--lock-redis-url", &locks.url],
    )
    .await;
    let skus = ["a", "b", "c", "d", "e", "f"];
    for sku in skus {
        create(&app, sku, 10).await;
        send(order(&app, "redis-lua", sku).header(KEY, sku))
            .await
            .ok();
        assert_sold(&applied_audit(&app, sku).await, 1);
    }
    for master in cluster.masters().await {
        command::<()>(cluster.nodes()[master].url(), &["FLUSHALL"]).await;
        for sku in skus {
            until("the stock is sold again", async || {
                send(order(&app, "redis-lua", sku).header(KEY, sku))
                    .await
                    .status
                    == 200
            })
            .await;
            assert_sold(&applied_audit(&app, sku).await, 1);
        }
    }
    app.stop().await;
}

/// Goal: a shard of a node that was started again without its data is not sold from SQL without an operator.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_that_is_empty_after_a_restart_is_refused() {
    let cluster = RedisCluster::start(&["--cluster-replica-no-failover", "yes"]).await;
    let locks = fresh_redis().await;
    let url = cluster.url();
    let app = TestApp::with_flags(
        Backend::Postgres,
        1,
        &["--redis-url", &url, "--lock-redis-url", &locks.url],
    )
    .await;
    create(&app, "a", 10).await;
    send(order(&app, "redis-lua", "a")).await.ok();
    let slots = slots_of_levels(&cluster).await;
    let slot = *slots.first().expect("the level has a slot");
    let node = cluster.master_of(slot).await;
    cluster.nodes()[node].kill9();
    cluster.nodes()[node].restart().await;
    cluster.settled().await;

    until("the loss is noticed", async || {
        let answer = send(order(&app, "redis-lua", "a")).await;
        assert_ne!(answer.status, 200);
        answer.code == "strategy-unavailable"
    })
    .await;
    let answer = send(order(&app, "redis-lua", "a")).await;
    assert!(
        answer.detail.contains("stocklock adopt"),
        "{}",
        answer.detail
    );
    app.stop().await;
}

/// Goal: a sale waits until its slot has moved. It is not refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sales_wait_for_a_slot_that_moves() {
    let (cluster, locks) = (RedisCluster::start(&[]).await, fresh_redis().await);
    let url = cluster.url();
    let flags = ["--redis-url", &url, "--lock-redis-url", &locks.url];
    let app = TestApp::with_flags(Backend::Sqlite, 1, &flags).await;
    create(&app, "a", 100).await;
    for strategy in ["redis-lua", "redis-watch", "no-lock"] {
        send(order(&app, strategy, "a")).await.ok();
        move_a_slot(&cluster).await;
        send(order(&app, strategy, "a")).await.ok();
        send(app.request(0, Method::GET, "/stock/a")).await.ok();
    }
    assert_sold(&applied_audit(&app, "a").await, 6);
    app.stop().await;
}

/// Goal: what the replica has not received is lost once, and nothing else: SQL has the rest.
///
/// Method: the replica is stopped, SQL gets the sales, and the master is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stale_replica_sells_nothing_that_sql_has() {
    let flags = ["--cluster-replica-validity-factor", "0"];
    let (cluster, locks) = (RedisCluster::start(&flags).await, fresh_redis().await);
    let url = cluster.url();
    let flags = ["--redis-url", &url, "--lock-redis-url", &locks.url];
    let app = TestApp::with_flags(Backend::Postgres, 1, &flags).await;
    create(&app, "a", 10).await;
    let sell = || send(order(&app, "redis-lua", "a"));
    sell().await.ok();
    applied_audit(&app, "a").await;
    let slots = slots_of_levels(&cluster).await;
    let slot = *slots.first().expect("the level has a slot");
    let old = cluster.master_of(slot).await;
    let (master, replica) = (&cluster.nodes()[old], RedisCluster::partner(old));
    let replica = &cluster.nodes()[replica];
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

/// Goal: levels of all nodes are listed, changed and audited, as with one server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_requests_work_on_a_cluster() {
    let (cluster, locks) = (RedisCluster::start(&[]).await, fresh_redis().await);
    let url = cluster.url();
    let app = TestApp::with_flags(
        Backend::Sqlite,
        2,
        &["--redis-url", &url, "--lock-redis-url", &locks.url],
    )
    .await;
    let skus: Vec<String> = (0..20).map(|number| format!("sku-{number}")).collect();
    for sku in &skus {
        create(&app, sku, 10).await;
        for strategy in ["redis-lua", "redis-watch", "no-lock"] {
            send(order(&app, strategy, sku)).await.ok();
        }
        let adjust = json!({ "delta": 3, "reason": "restock" });
        send(app.adjust(0, sku, &adjust)).await.ok();
    }
    for sku in &skus {
        let audit = applied_audit(&app, sku).await;
        assert_eq!(
            (&audit["on_hand"], &audit["consistent"]),
            (&json!(10), &json!(true))
        );
    }
    let levels = send(app.request(1, Method::GET, "/stock?limit=100")).await;
    let levels = levels.body["levels"].as_array().expect("levels").clone();
    assert_eq!(levels.len(), skus.len());
    assert!(
        levels.iter().all(|level| level["on_hand"] == 10),
        "{levels:?}"
    );
    app.stop().await;
}
