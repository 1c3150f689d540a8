//! What only ZooKeeper can do wrong.

use std::sync::Arc;
use std::time::Duration;

use stocklock_locks::backend::{Backend, Renewal, Renewed, Request};
use stocklock_locks::{LockManager, LostReason, Nonce};
use stocklock_testkit::proxy::Mode;
use tokio::task::JoinSet;
use zookeeper_client::Error;

use crate::rig::zookeeper::ZooKeeperRig;
use crate::rig::{Faults, Rig, RigExt, eventually};

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
        events += rig
            .counter(&format!("zk_sum_node_{kind}_watch_count"))
            .await;
    }
    events
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

/// The event that the predecessor has gone is lost with the waiter's connection; the next connection
/// of the same session makes up for it.
#[tokio::test]
async fn a_wake_up_lost_with_its_connection_is_made_up_for() {
    for mode in [Mode::Refuse, Mode::Strand] {
        let rig = ZooKeeperRig::start().await;
        let holder = rig.past_the_proxy();
        let guard = holder.lock("quiet").acquire().await.unwrap();
        let waiter = rig.manager();
        let lock = waiter.lock("quiet").wait(Duration::from_secs(20));
        let waiting = tokio::spawn(lock.acquire());
        eventually("it waits", rig.moment(), async || rig.left().await == 2).await;
        rig.proxy.set(mode).await;
        guard.release().await;
        let begin = rig.now();
        rig.proxy.set(Mode::Pass).await;
        waiting.await.unwrap().unwrap().release().await;
        assert!(
            rig.now().since(begin) < rig.lease() + rig.moment(),
            "{mode:?}"
        );
    }
}

/// A connection that comes back has everything renewed, but what may not be renewed.
#[tokio::test]
async fn a_new_connection_renews_nothing_that_has_been_renewed_enough() {
    let rig = ZooKeeperRig::start().await;
    let manager = rig.manager();
    let lock = manager.lock("renewed").max_renewals(0);
    let guard = lock.acquire().await.unwrap();
    let deadline = guard.valid_until();
    tokio::time::sleep(rig.lease() / 3).await;
    rig.proxy.set(Mode::Refuse).await;
    rig.proxy.set(Mode::Pass).await;
    assert_eq!(guard.lost().await, LostReason::MaxRenewals);
    assert_eq!(guard.valid_until(), deadline);
}

/// A lease says nothing about how long the session keeps a node: an acquisition that was given up
/// while nothing passed is undone afterwards, however short its lease.
#[tokio::test]
async fn an_outage_longer_than_the_lease_leaves_no_node_in_a_session_that_survives_it() {
    let rig = ZooKeeperRig::start().await;
    let backend = rig.zookeeper();
    let manager = LockManager::new(backend.clone());
    let lock = manager.lock("short").lease(Duration::from_millis(20));
    lock.clone().acquire().await.unwrap().release().await;
    rig.block().await;
    lock.wait(Duration::from_millis(50))
        .acquire()
        .await
        .unwrap_err();
    // Less than what the session lives through, and far more than two leases.
    tokio::time::sleep(rig.lease() / 3).await;
    rig.unblock().await;
    let nothing = async || (rig.left().await, backend.places()) == (0, 0);
    eventually("nothing is left", rig.lease() * 2, nothing).await;
    // In the same session: it is not its end that has cleaned up.
    assert_eq!(
        manager.lock("short").acquire().await.unwrap().name(),
        "short"
    );
}

/// What the documentation says that a lock costs: two writes, and for a name whose directory is not
/// there two more.
#[tokio::test]
async fn a_lock_that_is_free_costs_two_writes() {
    let rig = ZooKeeperRig::start_private().await;
    let manager = rig.manager();
    let zxid = async || {
        let said = rig.ask("srvr").await;
        let mut lines = said
            .lines()
            .filter_map(|line| line.strip_prefix("Zxid: 0x"));
        u64::from_str_radix(lines.next().expect("it says so"), 16).unwrap()
    };
    let cost = async |name| {
        let before = zxid().await;
        manager.lock(name).acquire().await.unwrap().release().await;
        zxid().await - before
    };
    cost("first").await;
    // A directory that the server removes just then is a write of its own, so the least counts.
    let (mut new, mut known) = (u64::MAX, u64::MAX);
    for name in ["a", "b", "c"] {
        new = new.min(cost(name).await);
        known = known.min(cost(name).await);
    }
    assert_eq!((new, known), (4, 2));
}

/// A renewal is a sync, which only the leader can answer, and a read. A server that is cut off from
/// its leader would answer the read alone, for a session that the leader may have ended.
#[tokio::test]
async fn a_renewal_asks_the_leader_once_and_reads_each_lock() {
    let rig = ZooKeeperRig::start_private().await;
    let backend = rig.zookeeper();
    let nonces = ["a", "b", "c"].map(|name| (Arc::<str>::from(name), Nonce::random()));
    for (name, nonce) in &nonces {
        let request = Request {
            name: Arc::clone(name),
            nonce: *nonce,
            lease: rig.lease(),
        };
        backend.contender(request).attempt().await.unwrap();
    }
    let renewals = nonces.map(|(name, nonce)| Renewal {
        name,
        nonce,
        lease: rig.lease(),
    });
    // The session's own signs of life may come in between, so the least counts; the question for
    // the counter counts itself.
    let mut packets = u64::MAX;
    for _ in 0..5 {
        let before = rig.counter("zk_packets_received").await;
        let renewed = backend.renew(&renewals).await.unwrap();
        let is_held = |renewed: &Renewed| matches!(renewed, Renewed::Held(_));
        assert!(renewed.iter().all(is_held), "{renewed:?}");
        packets = packets.min(rig.counter("zk_packets_received").await - before - 1);
    }
    assert_eq!(packets, 4);
}

/// An acquisition may be cut when it has made the directory, and no place in it yet. The server
/// removes only those that had one.
#[tokio::test]
async fn a_cut_acquisition_leaves_no_directory() {
    let rig = ZooKeeperRig::start().await;
    let manager = rig.manager();
    for cut in 0..200 {
        let acquisition = manager.lock(&format!("cut-{cut}")).acquire();
        let time = rig.step() * cut / 4;
        if let Ok(guard) = tokio::time::timeout(time, acquisition).await {
            guard.unwrap().release().await;
        }
    }
    let only_the_source = async || rig.names().await == [".source"];
    eventually(
        "no directory is left",
        Duration::from_secs(10),
        only_the_source,
    )
    .await;
}
