//! Masters are away, and no other node replaces them yet.

use std::time::Duration;

use stocklock_locks::backend::Backend as _;
use stocklock_locks::redis::RedisBackend;
use stocklock_locks::{LockError, LockManager};
use stocklock_testkit::assert_matches;
use stocklock_testkit::ports::free_port;
use stocklock_testkit::servers::{PrivateServer, RedisCluster};
use tokio::time::{Instant, sleep};

use super::{LONG, SOON, name_not_at};
use crate::rig::cluster::ClusterRig;
use crate::rig::redis::RedisRig;
use crate::rig::{Counts, Rig, RigExt, eventually, request, source_of};

/// The cluster is ready as long as one master answers, and each one that answers is checked.
#[tokio::test]
async fn dead_master_hides_none_of_the_others() {
    let rig = ClusterRig::start_private().await;
    let (backend, manager) = (rig.backend(), rig.manager());
    manager.ping().await.unwrap();
    assert_eq!(backend.maxmemory_policy_warning().await.unwrap(), None);
    let masters = rig.cluster().masters().await;
    let [dead, others @ ..] = &masters[..] else {
        panic!("there are masters");
    };
    let nodes = rig.cluster().nodes();
    nodes[*dead].stop().await;
    manager.ping().await.unwrap();
    rig.manager().ping().await.unwrap();
    // Its policy is unknown.
    backend.maxmemory_policy_warning().await.unwrap_err();
    for &other in others {
        let set = "CONFIG SET maxmemory-policy volatile-lru";
        assert_eq!(rig.send::<String>(other, set).await, "OK");
    }
    let warning = backend.maxmemory_policy_warning().await.unwrap();
    let warning = warning.expect("there are warnings");
    for &other in others {
        let node = format!("127.0.0.2:{}: ", nodes[other].port());
        assert!(warning.contains(&node), "{warning}");
    }
    let [second, ..] = others else {
        panic!("there are three masters");
    };
    nodes[*second].stop().await;
    let warning = backend.maxmemory_policy_warning().await.unwrap();
    let warning = warning.expect("there are warnings");
    for node in [dead, second] {
        let port = nodes[*node].port();
        let unknown = format!("127.0.0.2:{port}: its maxmemory-policy is unknown");
        assert!(warning.contains(&unknown), "{warning}");
    }
    for &other in &others[1..] {
        nodes[other].stop().await;
    }
    manager.ping().await.unwrap_err();
}

/// A cluster without a master for some slots refuses all requests, although its other masters answer.
#[tokio::test]
async fn cluster_that_serves_no_clients_answers_no_ping() {
    let rig = ClusterRig::start_fragile().await;
    let manager = rig.manager();
    manager.ping().await.unwrap();
    let dead = rig.cluster().masters().await[0];
    for node in [RedisCluster::partner(dead), dead] {
        rig.cluster().nodes()[node].kill9();
    }
    let refused = async || {
        let error = manager.ping().await.err();
        error.is_some_and(|error| error.to_string().contains("CLUSTERDOWN"))
    };
    eventually("the cluster is down", SOON, refused).await;
}

/// One node, which has no slots yet, and the URL of the cluster.
async fn start_one_node() -> (RedisRig, String) {
    let port = free_port().to_string();
    let settings = [
        "--cluster-enabled",
        "yes",
        "--cluster-port",
        &port,
        "--cluster-require-full-coverage",
        "no",
    ];
    let rig = RedisRig::before(PrivateServer::redis(&settings).await).await;
    let url = format!("redis+cluster://{}", rig.proxy.address());
    (rig, url)
}

/// The map of the masters is not loaded again for each attempt.
#[tokio::test]
async fn cluster_that_is_down_gets_few_connections() {
    let (rig, url) = start_one_node().await;
    let backend = RedisBackend::new(&url).unwrap();
    let begin = Instant::now();
    for _ in 0..50 {
        let mut contender = backend.contender(request("down", rig.lease()));
        let error = contender.attempt().await.unwrap_err();
        assert!(!error.is_permanent(), "{error}");
        assert!(error.to_string().contains("CLUSTERDOWN"), "{error}");
    }
    // One per 100 ms.
    let most = 1 + begin.elapsed().as_millis() / 100;
    let connections = rig.proxy.connections();
    assert!(u128::from(connections) <= most, "{connections}");
}

/// The cluster serves clients, although half of its slots have no master. No repetition helps.
#[tokio::test]
async fn slot_without_a_master_refuses_at_once() {
    let (rig, url) = start_one_node().await;
    let assigned: String = rig.run("CLUSTER ADDSLOTSRANGE 0 8191").await;
    assert_eq!(assigned, "OK");
    let counts = Counts::default();
    let manager = LockManager::builder(RedisBackend::new(&url).unwrap());
    let manager = manager.hooks(counts.clone()).build();
    let serves = async || manager.ping().await.is_ok();
    eventually("the cluster serves clients", SOON, serves).await;
    // Its slot is 12182.
    let error = manager.lock("foo").try_acquire().await.unwrap_err();
    assert!(error.to_string().contains("no master serves"), "{error}");
    assert_eq!(counts.attempts(), 1);
}

/// The first lock of a process needs the id of the tokens, unless the user chose it.
#[tokio::test]
async fn fixed_source_needs_no_master_of_its_own() {
    let rig = ClusterRig::start_private().await;
    let dead = master_of_source(&rig).await;
    let name = name_not_at(&rig, dead).await;
    rig.cluster().nodes()[dead].stop().await;
    let fixed = rig.settings(&rig.url()).source("fixed").build().unwrap();
    let guard = LockManager::new(fixed).lock(&name).wait(SOON).acquire();
    let guard = guard.await.unwrap();
    assert_eq!(guard.source(), "redis:fixed");
    guard.release().await;
    let lock = rig.manager().lock(&name).wait(Duration::from_millis(100));
    let error = lock.acquire().await.unwrap_err();
    assert_matches!(error, LockError::Unavailable(_));
}

/// Locks at other masters do not wait for the master of the id.
#[tokio::test]
async fn known_source_delays_no_lock_of_another_master() {
    let rig = ClusterRig::start_private().await;
    let dead = master_of_source(&rig).await;
    let name = name_not_at(&rig, dead).await;
    let manager = LockManager::new(patient(&rig));
    let source = source_of(&manager, &name).await;
    rig.cluster().nodes()[dead].stop().await;
    for _ in 0..3 {
        // The id is asked for again after a second.
        sleep(Duration::from_millis(1_100)).await;
        let started = Instant::now();
        let guard = manager.lock(&name).acquire().await.unwrap();
        let took = started.elapsed();
        assert!(took < rig.soon(), "{took:?}");
        assert_eq!(guard.source(), source);
        guard.release().await;
    }
}

/// The locks of two masters are renewed at the same time. One master is silent for longer than their leases.
#[tokio::test]
async fn silent_master_ends_no_lock_of_another_one() {
    let rig = ClusterRig::start_private().await;
    let dead = rig.master("silent").await;
    let name = name_not_at(&rig, dead).await;
    let manager = LockManager::new(patient(&rig));
    let lock = |name: &str| manager.lock(name).lease(Duration::from_secs(2)).acquire();
    let (silent, healthy) = tokio::join!(lock("silent"), lock(&name));
    let (silent, healthy) = (silent.unwrap(), healthy.unwrap());
    rig.cluster().nodes()[dead].stop().await;
    sleep(Duration::from_secs(3)).await;
    rig.cluster().nodes()[dead].resume();
    healthy.check().unwrap();
    assert_matches!(silent.check(), Err(_));
    healthy.verify().await.unwrap();
    healthy.release().await;
}

/// A back end that waits for each answer longer than these tests take.
fn patient(rig: &ClusterRig) -> RedisBackend {
    let settings = rig.settings(&rig.url()).response_limit(LONG);
    settings.build().unwrap()
}

async fn master_of_source(rig: &ClusterRig) -> usize {
    let slot = format!("{}:source", rig.prefix);
    let slot = rig.cluster().slot_of(&slot).await;
    rig.cluster().master_of(slot).await
}
