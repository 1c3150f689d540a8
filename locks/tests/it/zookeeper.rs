//! What only ZooKeeper can do wrong.

use std::time::Duration;

use futures_util::future::join_all;
use stocklock_locks::{LockManager, LostReason};
use tokio::task::JoinSet;
use zookeeper_client::Error;

use crate::rig::zookeeper::ZooKeeperRig;
use crate::rig::{Faults, Rig, RigExt, eventually};

/// A counter of the server.
async fn counter(rig: &ZooKeeperRig, name: &str) -> u64 {
    let server = rig.own.as_ref().expect("a server of its own");
    let said = server.ask(b"mntr").await.unwrap();
    let said = String::from_utf8(said).unwrap();
    let mut lines = said.lines().filter_map(|line| line.split_once('\t'));
    let value = lines.find(|(key, _)| *key == name).expect(name).1;
    value.parse().unwrap()
}

/// The session ends while one holds a lock and another waits for one: the holder learns why, the
/// waiter waits on in the next session, and no node of the old one is in its way.
#[tokio::test]
async fn an_expired_session_is_replaced() {
    let rig = ZooKeeperRig::start().await;
    let (manager, other) = (rig.manager(), rig.manager());
    let guard = manager.lock("held").acquire().await.unwrap();
    rig.block().await;
    let reason = guard.lost().await;
    assert!(
        matches!(reason, LostReason::Expired | LostReason::SessionExpired),
        "{reason}"
    );
    let gone = async || rig.left().await == 0;
    eventually("the server ended the session", rig.lease() * 3, gone).await;
    rig.unblock().await;
    let again = manager
        .lock("held")
        .wait(Duration::from_secs(10))
        .acquire()
        .await
        .unwrap();
    assert!(
        other
            .lock("held")
            .wait(Duration::from_secs(5))
            .try_acquire()
            .await
            .unwrap()
            .is_none()
    );
    again.release().await;
    eventually("nothing is left", rig.moment(), gone).await;
}

/// Its own session ends while it waits; it does not go on waiting for a wake-up that cannot come.
#[tokio::test]
async fn a_waiter_whose_session_expired_waits_on_in_the_next_one() {
    let rig = ZooKeeperRig::start().await;
    let waiter = rig.manager();
    let direct = rig.direct().await;
    // A place of another session, which no blockade reaches.
    waiter.lock("busy").acquire().await.unwrap().release().await;
    let options = zookeeper_client::CreateMode::EphemeralSequential
        .with_acls(zookeeper_client::Acls::anyone_all());
    let directory = format!("{}/busy", rig.root);
    let container =
        zookeeper_client::CreateMode::Container.with_acls(zookeeper_client::Acls::anyone_all());
    direct.mkdir(&directory, &container).await.unwrap();
    let place = format!("{directory}/_c_{:032x}-lock-", 0);
    let (_, sequence) = direct.create(&place, &[], &options).await.unwrap();
    let waiting = tokio::spawn(waiter.lock("busy").wait(Duration::from_secs(20)).acquire());
    eventually("it waits", rig.moment(), async || rig.left().await == 2).await;
    rig.block().await;
    let expired = async || rig.left().await == 1;
    eventually("its session ended", rig.lease() * 3, expired).await;
    rig.unblock().await;
    let waits = async || rig.left().await == 2;
    eventually("it waits again", Duration::from_secs(10), waits).await;
    assert!(!waiting.is_finished());
    direct
        .delete(&format!("{place}{sequence}"), None)
        .await
        .unwrap();
    waiting.await.unwrap().unwrap().release().await;
}

/// Sixty processes wait; each hand-over wakes one of them.
#[tokio::test]
async fn a_hand_over_among_sixty_waiters_causes_at_most_two_watch_events() {
    let rig = ZooKeeperRig::start_private().await;
    let first = rig.manager().lock("hot").acquire().await.unwrap();
    let mut waiters = JoinSet::new();
    for manager in (0..60).map(|_| rig.manager()) {
        waiters.spawn(async move {
            let lock = manager.lock("hot").wait(Duration::from_mins(1));
            lock.acquire().await.unwrap().release().await;
            manager.shutdown().await;
        });
    }
    let queued = async || rig.left().await == 61;
    eventually("all wait", Duration::from_secs(30), queued).await;
    let before = watch_events(&rig).await;
    first.release().await;
    waiters.join_all().await;
    let events = watch_events(&rig).await - before;
    assert!(
        (59..=2 * 61).contains(&events),
        "{events} for 61 hand-overs"
    );
}

async fn watch_events(rig: &ZooKeeperRig) -> u64 {
    let mut events = 0;
    for kind in ["deleted", "created", "changed", "children"] {
        events += counter(rig, &format!("zk_sum_node_{kind}_watch_count")).await;
    }
    events
}

/// Ten thousand acquisitions of as many names leave no place, no directory and no session.
#[tokio::test]
async fn ten_thousand_names_leave_nothing() {
    let rig = ZooKeeperRig::start_private().await;
    let backend = rig.zookeeper();
    let manager = LockManager::new(backend.clone());
    for hundred in 0..100 {
        let lock = |number| manager.lock(&format!("n{hundred}-{number}")).acquire();
        let guards = join_all((0..100).map(lock)).await;
        join_all(guards.into_iter().map(|guard| guard.unwrap().release())).await;
    }
    assert_eq!(
        (manager.held(), manager.names(), backend.places()),
        (0, 0, 0)
    );
    manager.shutdown().await;
    let direct = rig.direct().await;
    let empty = async || direct.list_children(&rig.root).await.unwrap() == [".source"];
    eventually("the directories went", Duration::from_mins(1), empty).await;
    drop(direct);
    // Whatever is asked for next is one session of its own.
    let sessions = async || counter(&rig, "zk_global_sessions").await == 0;
    eventually("the sessions ended", Duration::from_secs(5), sessions).await;
}

#[tokio::test]
async fn a_ping_creates_no_node() {
    let rig = ZooKeeperRig::start().await;
    rig.manager().ping().await.unwrap();
    let root = rig.direct().await.check_stat(&rig.root).await.unwrap();
    assert!(root.is_none(), "{root:?}");
}

/// A name's own directory may be a container that the server removes at any time; the source stays.
#[tokio::test]
async fn the_source_outlives_managers_and_directories() {
    let rig = ZooKeeperRig::start().await;
    let source = async || {
        let manager = rig.manager();
        let guard = manager.lock("named").acquire().await.unwrap();
        let source = guard.source().to_owned();
        guard.release().await;
        manager.shutdown().await;
        source
    };
    let first = source().await;
    assert!(first.starts_with("zookeeper:"), "{first}");
    let direct = rig.direct().await;
    let directory = format!("{}/named", rig.root);
    eventually("the directory went", Duration::from_secs(10), async || {
        matches!(
            direct.check_stat(&directory).await,
            Ok(None) | Err(Error::NoNode)
        )
    })
    .await;
    assert_eq!(source().await, first);
}
