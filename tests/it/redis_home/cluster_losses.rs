//! A node of a Redis Cluster loses its data while nothing on it is sold.

use stocklock_testkit::servers::RedisCluster;

use super::cluster::{LOGGED, slots_of_levels};
use super::{applied_audit, assert_sold, command, create, order};
use crate::faults::{KEY, send, until};
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
