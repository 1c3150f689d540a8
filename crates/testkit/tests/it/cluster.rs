//! Redis Cluster.

use std::time::Duration;

use redis::{RedisError, RedisResult, cmd};
use stocklock_testkit::eventually;
use stocklock_testkit::servers::{RedisCluster, connect_to_redis};
use tokio::time::timeout;

use super::SOON;

/// Several batches of keys in one slot.
const KEYS: usize = 150;

/// The value of a key on the master of its slot.
async fn get(cluster: &RedisCluster, slot: u16, key: &str) -> RedisResult<Option<String>> {
    let master = cluster.master_of(slot).await;
    let mut connection = connect_to_redis(cluster.nodes()[master].url()).await?;
    cmd("GET").arg(key).query_async(&mut connection).await
}

/// What the node answers, if it answers at all.
async fn set(cluster: &RedisCluster, node: usize, key: &str) -> Option<RedisResult<()>> {
    let url = cluster.nodes()[node].url();
    let written = async {
        let mut connection = connect_to_redis(url).await?;
        let set = cmd("SET").arg(key).arg("value").to_owned();
        set.query_async(&mut connection).await
    };
    timeout(Duration::from_millis(300), written).await.ok()
}

fn is_moved(refused: &RedisError) -> bool {
    refused.code() == Some("MOVED")
}

#[tokio::test]
async fn cluster_keeps_keys_in_a_slot_move_and_failovers() {
    let cluster = RedisCluster::start(&[]).await;
    assert_eq!(cluster.masters().await.len(), 3);
    let slot = cluster.slot_of("{tag}").await;
    let first = cluster.master_of(slot).await;
    let keys: Vec<_> = (0..KEYS)
        .map(|number| format!("{{tag}}:{number}"))
        .collect();
    for key in &keys {
        set(&cluster, first, key).await.unwrap().unwrap();
    }

    let second = (first + 1) % 3;
    cluster.move_slot(slot, second).await;
    assert_eq!(cluster.master_of(slot).await, second);
    let refused = set(&cluster, first, &keys[0]).await.unwrap().unwrap_err();
    assert!(is_moved(&refused), "{refused}");

    let mut master = second;
    for kill in [false, true] {
        let promoted = cluster.fail_over(master, kill).await;
        assert_eq!(promoted, RedisCluster::partner(master));
        assert_eq!(cluster.master_of(slot).await, promoted);
        master = promoted;
    }
    for key in &keys {
        let value = get(&cluster, slot, key).await.unwrap();
        assert_eq!(value.as_deref(), Some("value"), "{key}");
    }
}

#[tokio::test]
async fn paused_master_is_replaced_and_comes_back_as_replica() {
    let cluster = RedisCluster::start(&[]).await;
    let slot = cluster.slot_of("key").await;
    let paused = cluster.master_of(slot).await;
    let server = &cluster.nodes()[paused];
    server.stop().await;
    assert!(set(&cluster, paused, "key").await.is_none());
    let promoted = RedisCluster::partner(paused);
    let leads = async || cluster.master_of(slot).await == promoted;
    eventually("the replica is promoted", SOON, leads).await;
    server.resume();
    cluster.settled().await;
    let refused = set(&cluster, paused, "key").await.unwrap().unwrap_err();
    assert!(is_moved(&refused), "{refused}");
}
