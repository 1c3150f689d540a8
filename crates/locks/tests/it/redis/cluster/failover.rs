//! Masters are replaced while clients use their locks.
//!
//! As with Sentinel, a promoted replica has what it had received. A lock that it had not received has two
//! holders until the first one is renewed. A write of the first holder is refused, because its token is smaller.
//! No request is lost, and nothing is left over.

use std::cell::Cell;
use std::time::Duration;

use futures_util::future::join_all;
use stocklock_locks::{LockError, LockManager, LostReason, ReleaseOutcome, Token};
use stocklock_testkit::assert_matches;
use stocklock_testkit::servers::RedisCluster;

use super::super::run;
use super::{LONG, SOON, all_grow, subscribed};
use crate::rig::cluster::ClusterRig;
use crate::rig::{RigExt, eventually, lost_reason, use_lock, wait_until_nothing_is_left};

/// A register that refuses the writes of earlier holders.
#[derive(Default)]
struct Register {
    newest: Cell<Option<Token>>,
    writes: Cell<u64>,
    refused: Cell<u64>,
}

impl Register {
    fn write(&self, token: Token) {
        let newest = self.newest.get().max(Some(token));
        let is_refused = self.newest.replace(newest) > Some(token);
        let count = if is_refused {
            &self.refused
        } else {
            &self.writes
        };
        count.update(|count| count + 1);
    }
}

/// Four processes use one lock and one lock for writers in the same slot. Its master is replaced by
/// command, by a kill, and back.
#[tokio::test]
async fn failovers_let_no_outdated_holder_write_unnoticed() {
    let rig = ClusterRig::start_fragile().await;
    let ends = Cell::new(false);
    let registers = [(); 2].map(|()| Register::default());
    let user = async |_| {
        let manager = rig.manager();
        let mut sources = Vec::new();
        while !ends.get() {
            let locks = [manager.lock("hot"), manager.write("hot")];
            for (lock, register) in locks.into_iter().zip(&registers) {
                let guard = lock.wait(SOON).acquire().await.unwrap();
                register.write(guard.token());
                sources.push(guard.source().to_owned());
                tokio::task::yield_now().await;
                // A write after a loss that is not known yet.
                register.write(guard.token());
                guard.release().await;
            }
            sources.dedup();
        }
        manager.shutdown().await;
        sources
    };
    let failovers = async {
        let slot = rig.slot("hot").await;
        let written = || registers.each_ref().map(|each| each.writes.get());
        for kill in [false, true, true, false] {
            all_grow(written).await;
            let master = rig.cluster().master_of(slot).await;
            let promoted = rig.cluster().fail_over(master, kill).await;
            assert_eq!(rig.cluster().master_of(slot).await, promoted);
        }
        all_grow(written).await;
        ends.set(true);
    };
    let (sources, ()) = tokio::join!(join_all((0..4).map(user)), failovers);
    let is_one = sources.iter().all(|each| *each == sources[0]);
    assert!(is_one, "{sources:?}");
    assert_eq!(sources[0].len(), 1);
    wait_until_nothing_is_left(&rig, SOON).await;
    for register in registers {
        let refused = register.refused.get();
        // At most the locks that the promoted replicas had not received.
        assert!(refused <= 8, "{refused} writes of two holders");
    }
}

/// The replica is promoted with the lock and the last token, which is ahead of its clock.
#[tokio::test]
async fn promoted_replica_keeps_locks_and_continues_their_tokens() {
    let rig = ClusterRig::start_fragile().await;
    let (one, other) = (rig.manager(), rig.manager());
    let guard = one.lock("kept").lease(SOON).acquire().await.unwrap();
    let master = rig.master("kept").await;
    // As if the clock of the master was an hour ahead.
    let ahead = guard.token().get() + 3_600_000_000;
    let set = format!("SET {}:token {ahead} PX 600000", rig.key("kept"));
    let mut direct = rig.direct(master).await;
    run::<String>(&mut direct, &set).await;
    assert_eq!(run::<i64>(&mut direct, "WAIT 1 20000").await, 1);
    let promoted = rig.cluster().fail_over(master, true).await;
    assert_eq!(promoted, RedisCluster::partner(master));
    let verified = async || guard.verify().await.is_ok();
    eventually("the promoted replica answers", SOON, verified).await;
    assert!(other.lock("kept").try_acquire().await.unwrap().is_none());
    guard.release().await;
    let next = other.lock("kept").acquire().await.unwrap();
    assert_eq!(next.token().get(), ahead + 1);
    next.release().await;
}

/// The replica is cut off before the lock is acquired, and promoted without it. Two clients hold the lock
/// until the first one is renewed; its token is smaller.
#[tokio::test]
async fn lock_that_replica_had_not_received_is_reported_as_lost() {
    let rig = ClusterRig::start_fragile().await;
    let (one, other) = (rig.manager(), rig.manager());
    use_lock(&one, "lost").await;
    let master = rig.master("lost").await;
    let replica = RedisCluster::partner(master);
    // It receives nothing more, and is promoted once its master is dead.
    let nodes = rig.cluster().nodes();
    nodes[replica].stop().await;
    let cut: i64 = rig.send(master, "CLIENT KILL TYPE replica").await;
    assert_eq!(cut, 1);
    let guard = one.lock("lost").lease(LONG).acquire().await.unwrap();
    nodes[master].kill9();
    // The first request finds that the connection is lost, the second that the present map has the dead master.
    for _ in 0..2 {
        let error = guard.verify().await.unwrap_err();
        assert_matches!(error, LockError::Unavailable(_));
    }
    nodes[replica].resume();
    let next = other.lock("lost").wait(SOON).acquire().await.unwrap();
    assert!(guard.token() < next.token());
    assert_eq!(guard.source(), next.source());
    let lost = async || {
        // The first request may find that the connection is lost.
        let error = guard.verify().await.unwrap_err();
        lost_reason(&error) == Some(LostReason::Stolen)
    };
    eventually("the loss is reported", SOON, lost).await;
    next.verify().await.unwrap();
    next.release().await;
    drop(guard);
    nodes[master].restart().await;
    rig.cluster().settled().await;
    wait_until_nothing_is_left(&rig, SOON).await;
}

/// While a master is away, its locks are unavailable. Those of other masters are not, once the cluster has
/// a new master for each slot.
#[tokio::test]
async fn paused_master_is_replaced_within_the_wait() {
    let rig = ClusterRig::start_fragile().await;
    let manager = rig.manager();
    let name = "paused";
    use_lock(&manager, name).await;
    let master = rig.master(name).await;
    let server = &rig.cluster().nodes()[master];
    server.stop().await;
    let lock = manager.lock(name).wait(Duration::from_millis(100));
    let error = lock.acquire().await.unwrap_err();
    assert_matches!(error, LockError::Unavailable(_));
    let guard = manager.lock(name).wait(SOON).acquire().await.unwrap();
    server.resume();
    rig.cluster().settled().await;
    guard.verify().await.unwrap();
    assert_matches!(guard.release().await, ReleaseOutcome::Released { .. });
    wait_until_nothing_is_left(&rig, SOON).await;
}

/// The node to which a waiter has subscribed dies. The waiter subscribes at another one, and is woken.
#[tokio::test]
async fn waiter_is_woken_after_its_node_died() {
    let rig = ClusterRig::start_fragile().await;
    let manager = || LockManager::new(rig.settings(&rig.url()).fallback(LONG).build().unwrap());
    let (one, other) = (manager(), manager());
    let guard = one.lock("loud").lease(LONG).acquire().await.unwrap();
    let master = rig.master("loud").await;
    let mut direct = rig.direct(master).await;
    assert_eq!(run::<i64>(&mut direct, "WAIT 1 20000").await, 1);
    let waiter = tokio::spawn(other.lock("loud").wait(LONG).acquire());
    let node = subscribed(&rig, "{loud}").await;
    rig.cluster().nodes()[node].kill9();
    assert_ne!(subscribed(&rig, "{loud}").await, node);
    assert!(!waiter.is_finished());
    guard.release().await;
    let next = tokio::time::timeout(SOON, waiter).await;
    next.expect("it is woken").unwrap().unwrap().release().await;
}
