//! Masters are away, and no other node replaces them yet.

use std::time::Duration;

use stocklock_locks::{LockError, LockManager};
use stocklock_testkit::assert_matches;
use stocklock_testkit::servers::RedisCluster;

use super::SOON;
use crate::rig::cluster::ClusterRig;
use crate::rig::{Rig, RigExt, eventually};

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
    for &other in others {
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

/// The first lock of a process needs the id of the tokens, unless the user chose it.
#[tokio::test]
async fn fixed_source_needs_no_master_of_its_own() {
    let rig = ClusterRig::start_private().await;
    let slot = format!("{}:source", rig.prefix);
    let slot = rig.cluster().slot_of(&slot).await;
    let dead = rig.cluster().master_of(slot).await;
    let mut name = 0;
    while rig.master(&name.to_string()).await == dead {
        name += 1;
    }
    let name = name.to_string();
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
