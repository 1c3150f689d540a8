//! What only Redis Cluster has: slots move, and masters are replaced.

use std::time::Duration;

use stocklock_locks::LockManager;
use stocklock_locks::redis::RedisBackend;

use crate::rig::cluster::ClusterRig;
use crate::rig::redis::command;
use crate::rig::{RigExt, eventually, hand_over, source_of, use_lock};

mod failover;
mod moves;
mod outages;

/// More than a failover takes on a busy machine.
const SOON: Duration = Duration::from_mins(1);
/// Longer than a test, so that nothing ends before its time.
const LONG: Duration = Duration::from_mins(5);

/// All processes have one source, although each lock has its own node. If the cluster has lost the id, a
/// process that has used locks stores it again.
#[tokio::test]
async fn source_is_one_for_all_nodes_and_survives_its_loss() {
    let rig = ClusterRig::start().await;
    let old = rig.manager();
    let first = source_of(&old, "0").await;
    for number in 1..10 {
        let name = number.to_string();
        assert_eq!(source_of(&rig.manager(), &name).await, first);
    }
    let [(master, key)] = &rig.keys(":source").await[..] else {
        panic!("there is one source");
    };
    assert_eq!(rig.send::<i64>(*master, &format!("DEL {key}")).await, 1);
    let stored = async || {
        use_lock(&old, "0").await;
        !rig.keys(":source").await.is_empty()
    };
    eventually("the id is stored again", SOON, stored).await;
    assert_eq!(source_of(&rig.manager(), "0").await, first);
}

/// The user may do what the documents say, and no more.
#[tokio::test]
async fn user_of_cluster_needs_the_documented_rights() {
    let rig = ClusterRig::start().await;
    let prefix = &rig.prefix;
    let rights = "+ping +info +eval +evalsha +get +mget +set +del +exists +pttl +pexpire +persist \
                  +incrby +time +@sortedset +@hash +publish +subscribe +unsubscribe +asking \
                  +cluster|info +cluster|slots";
    let user = format!("ACL SETUSER {prefix} on >s3cr3t ~{prefix}* &{prefix}* {rights}");
    for node in 0..rig.cluster().addresses().len() {
        assert_eq!(rig.send::<String>(node, &user).await, "OK");
    }
    let url = rig.url().replace("://", &format!("://{prefix}:s3cr3t@"));
    let manager = || LockManager::new(rig.settings(&url).fallback(LONG).build().unwrap());
    let (one, other) = (manager(), manager());
    one.ping().await.unwrap();
    let guard = one.lock("own").acquire().await.unwrap();
    let waiter = tokio::spawn(other.lock("own").wait(SOON).acquire());
    subscribed(&rig, "{own}").await;
    hand_over(guard, waiter).await;
    one.write("own").acquire().await.unwrap().release().await;
    one.number("own").add(1).await.unwrap();

    let wrong = rig.url().replace("://", &format!("://{prefix}:wrong@"));
    let wrong = LockManager::new(RedisBackend::new(&wrong).unwrap());
    let error = wrong.ping().await.unwrap_err();
    assert!(error.is_permanent(), "{error}");
}

#[test]
fn prefix_that_scatters_keys_is_refused() {
    let builder = RedisBackend::builder("redis+cluster://127.0.0.1:1").prefix("a{}");
    let error = builder.build().unwrap_err();
    assert!(error.to_string().contains("prefix"), "{error}");
}

#[tokio::test]
async fn shutdown_closes_the_connections_to_all_nodes() {
    let rig = ClusterRig::start_private().await;
    let clients = async || {
        let mut clients = Vec::new();
        for node in 0..rig.cluster().addresses().len() {
            let list: String = rig.send(node, "CLIENT LIST TYPE normal").await;
            clients.push(list.lines().count() - 1);
            let list: String = rig.send(node, "CLIENT LIST TYPE pubsub").await;
            clients.push(list.lines().count());
        }
        clients
    };
    let idle = clients().await;
    let manager = rig.manager();
    let guard = manager.lock("held").acquire().await.unwrap();
    let other = rig.manager();
    other.lock("held").try_acquire().await.unwrap();
    let lock = other.lock("held").wait(Duration::from_millis(100));
    lock.acquire().await.unwrap_err();
    assert_ne!(clients().await, idle);
    guard.release().await;
    manager.shutdown().await;
    other.shutdown().await;
    let closed = async || clients().await == idle;
    eventually("the connections are closed", SOON, closed).await;
}

/// The name of a lock that is not at this master.
async fn name_not_at(rig: &ClusterRig, master: usize) -> String {
    let mut name = 0;
    while rig.master(&name.to_string()).await == master {
        name += 1;
    }
    name.to_string()
}

/// Waits until each of the counts has grown.
async fn all_grow<const COUNTS: usize>(counts: impl Fn() -> [u64; COUNTS]) {
    let before = counts();
    let have_grown = async || {
        let mut pairs = counts().into_iter().zip(before);
        pairs.all(|(now, before)| now >= before + 20)
    };
    eventually("the locks are used", SOON, have_grown).await;
}

/// Waits for a subscription, and returns the node that has it.
async fn subscribed(rig: &ClusterRig, channel: &str) -> usize {
    let channel = format!("PUBSUB CHANNELS {}{channel}", rig.prefix);
    let mut found = None;
    eventually("a waiter subscribes", SOON, async || {
        for (node, address) in rig.cluster().addresses().iter().enumerate() {
            let asked = async {
                let mut connection = redis::Client::open(format!("redis://{address}")).ok()?;
                let connection = &mut connection;
                let mut connection = connection.get_multiplexed_async_connection().await.ok()?;
                let answer = command(&channel).query_async(&mut connection).await;
                let channels: Vec<String> = answer.ok()?;
                (!channels.is_empty()).then_some(node)
            };
            if let Some(node) = asked.await {
                found = Some(node);
                return true;
            }
        }
        false
    })
    .await;
    found.expect("it was found")
}
