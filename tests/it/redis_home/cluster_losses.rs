//! A node of a Redis Cluster loses its data while nothing on it is sold.

use stocklock_testkit::servers::RedisCluster;

use super::copied::beat;

use super::cluster::{LOGGED, slots_of_levels};
use super::{applied_audit, assert_exact, assert_sold, command, create, order, sell};
use crate::faults::{KEY, send, until};
use crate::store_contract::fixture::{Fixture, redis_options};
use crate::support::app::TestApp;
use crate::support::services::{Backend, PrivateServer};

/// How many shards the node shows as bound.
pub(super) async fn bound_shards(node: &PrivateServer) -> usize {
    let script = "
        local bound = 0
        for _, mark in ipairs(redis.call('KEYS', 'bound:*')) do
          if redis.call('GET', mark):find(' 1$') then bound = bound + 1 end
        end
        return bound";
    command(node.url(), &["EVAL", script, "0"]).await
}

/// Goal: the loss is noticed soon, so that a later failover does not need an operator.
///
/// Method: each node without the level loses its data, and is replaced when the ledger is bound again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loss_of_a_node_that_sells_nothing_is_noticed() {
    let cluster = RedisCluster::start(&LOGGED).await;
    let url = cluster.url();
    let app = TestApp::with_flags(Backend::Postgres, 1, &["--redis-url", &url]).await;
    create(&app, "a", 10).await;
    send(order(&app, "redis-lua", "a")).await.ok();
    let slots = slots_of_levels(&cluster).await;
    let slot = *slots.first().expect("the level has a slot");
    let sells = cluster.master_of(slot).await;
    let mut sold = 1;
    for master in cluster.masters().await {
        if master == sells {
            continue;
        }
        let node = &cluster.nodes()[master];
        let bound = bound_shards(node).await;
        assert!(bound > 0, "node {master} has no bound shard");
        command::<()>(node.url(), &["FLUSHALL"]).await;
        until("the ledger is bound again", async || {
            bound_shards(node).await == bound
        })
        .await;
        cluster.fail_over(master, true).await;
        until("the stock is sold again", async || {
            let order = order(&app, "redis-lua", "a").header(KEY, format!("after-{master}"));
            send(order).await.status == 200
        })
        .await;
        sold += 1;
        assert_sold(&applied_audit(&app, "a").await, sold);
    }
    app.stop().await;
}

/// The key of the binding does not have the last beat, as if another server had sold since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn journals_of_all_nodes_are_merged() {
    const SKUS: [&str; 4] = ["a", "b", "c", "d"];
    let cluster = RedisCluster::start(&LOGGED).await;
    let fixture = Fixture::new(Backend::Sqlite).await;
    let fixture = fixture.with(redis_options(&cluster.url()));
    for sku in SKUS {
        fixture.put(sku, 10).await;
        sell(&fixture, sku, 3).await;
    }
    beat(&fixture.store).await;
    let mut waiting = 0;
    for master in cluster.masters().await {
        let url = cluster.nodes()[master].url();
        let bindings: Vec<String> = command(url, &["KEYS", "binding:*"]).await;
        for key in bindings {
            let value: String = command(url, &["GET", &key]).await;
            let (id, beat) = value.split_once(' ').expect("an id and a beat");
            let beat: i64 = beat.parse().expect("a number");
            let earlier = format!("{id} {}", beat - 3_000_000);
            command::<()>(url, &["SET", &key, &earlier]).await;
        }
        waiting += entries(url).await;
    }
    assert_eq!(waiting, 3 * SKUS.len());
    until("the stock is used again", async || {
        fixture.store.confirm_redis(0).await.is_ok()
    })
    .await;
    for master in cluster.masters().await {
        assert_eq!(entries(cluster.nodes()[master].url()).await, 0);
    }
    for sku in SKUS {
        sell(&fixture, sku, 1).await;
        assert_exact(&fixture, sku, 4, 6).await;
    }
}

/// How many entries wait in the journals of a node.
async fn entries(url: &str) -> usize {
    let mut entries = 0;
    let journals: Vec<String> = command(url, &["KEYS", "journal:*"]).await;
    for journal in journals {
        entries += command::<usize>(url, &["XLEN", &journal]).await;
    }
    entries
}
