//! Who may vote, what a vote overwrites, and how long votes are released.

use std::time::Duration;

use redis::Client;
use stocklock_locks::backend::{Attempt, Backend as _, Left};
use stocklock_locks::redis::redlock::RedLockBuilder;
use stocklock_locks::{LockError, LockManager};
use stocklock_testkit::assert_matches;
use tokio::time::timeout;

use super::SOON;
use crate::rig::redlock::RedLockRig;
use crate::rig::{Faults as _, Rig as _, RigExt as _, eventually, request, try_lock, use_lock};

/// Writes a key that is no vote.
pub(super) async fn set_foreign(rig: &RedLockRig, master: usize, name: &str) {
    let set = format!("HSET redlock{{{name}}} a b");
    rig.masters[master].run::<i64>(&set).await;
}

#[tokio::test]
async fn own_clients_lead_to_their_databases() {
    let rig = RedLockRig::start().await;
    let clients = rig
        .masters
        .iter()
        .map(|master| Client::open(master.url()).unwrap());
    let builder = RedLockBuilder::from_clients(clients).max_lease(rig.lease());
    let manager = LockManager::new(builder.build().unwrap());
    let guard = manager.lock("own").acquire().await.unwrap();
    rig.wait_for_votes("own").await;
    assert!(try_lock(&rig.manager(), "own").await.is_none());
    guard.release().await;
    use_lock(&rig.manager(), "own").await;
}

/// Masters that were started a few seconds ago answer, but do not vote for a while.
#[tokio::test]
async fn ping_fails_until_a_majority_votes() {
    let rig = RedLockRig::start_private().await;
    let max_lease = Duration::from_secs(15);
    let clients = rig
        .masters
        .iter()
        .map(|master| Client::open(master.url()).unwrap());
    let builder = RedLockBuilder::from_clients(clients).max_lease(max_lease);
    let manager = LockManager::new(builder.build().unwrap());
    let error = manager.ping().await.unwrap_err();
    assert!(!error.is_permanent(), "{error}");
    let message = error.to_string();
    for part in [
        "of 3 masters can vote, 2 are needed",
        "was started less than 15 s ago",
        "it votes in ",
    ] {
        assert!(message.contains(part), "{message}");
    }
    let votes = async || manager.ping().await.is_ok();
    eventually("a majority votes", max_lease + SOON, votes).await;
    use_lock(&manager, "again").await;
    rig.masters[2].server().kill9();
    rig.masters[2].server().restart().await;
    manager.ping().await.unwrap();
}

/// Another program uses the key for something else.
#[tokio::test]
async fn foreign_key_is_neither_overwritten_nor_deleted() {
    let rig = RedLockRig::start().await;
    let manager = rig.manager();
    let assert_intact = async |master: usize| {
        let value: String = rig.masters[master].run("HGET redlock{foreign} a").await;
        assert_eq!(value, "b");
    };
    set_foreign(&rig, 0, "foreign").await;
    let guard = manager.lock("foreign").acquire().await.unwrap();
    guard.extend(rig.lease()).await.unwrap();
    guard.verify().await.unwrap();
    guard.release().await;
    assert_intact(0).await;

    set_foreign(&rig, 1, "foreign").await;
    let refused = timeout(SOON, manager.lock("foreign").wait(SOON * 9).acquire()).await;
    let LockError::Unavailable(error) = refused.expect("it fails at once").unwrap_err() else {
        panic!("the keys belong to another program");
    };
    assert!(error.is_permanent(), "{error}");
    assert!(error.to_string().contains("WRONGTYPE"), "{error}");
    assert_intact(0).await;
    assert_intact(1).await;
}

/// The memory of one master is full. It refuses to vote, which is an answer: it gets no request that it would
/// refuse too, again and again.
#[tokio::test]
async fn full_master_costs_two_requests_per_lock() {
    const LOCKS: u64 = 10;
    let rig = RedLockRig::start_private().await;
    let (manager, counts) = rig.counted();
    use_lock(&manager, "warm").await;
    rig.masters[2].run::<String>("CONFIG SET maxmemory 1").await;
    // On a busy machine some answers of the third master come too late.
    let is_cheap = async || {
        let before = rig.masters[2].scripts().await;
        for number in 0..LOCKS {
            use_lock(&manager, &format!("n{number}")).await;
        }
        let sent = rig.masters[2].scripts().await - before;
        println!("{sent} requests for {LOCKS} locks");
        sent <= 2 * LOCKS + LOCKS / 2
    };
    eventually("two requests per lock", SOON * 6, is_cheap).await;
    let backend = rig.backend();
    let mut number = 0;
    let is_answered = async || {
        number += 1;
        let request = request(&format!("full{number}"), rig.lease());
        let mut contender = backend.contender(request);
        assert_matches!(contender.attempt().await.unwrap(), Attempt::Held(_));
        contender.left() == Left::Something
    };
    eventually("a refused vote is an answer", SOON, is_answered).await;
    // All masters refuse. An acquisition that does not wait asks once.
    for master in &rig.masters[..2] {
        master.run::<String>("CONFIG SET maxmemory 1").await;
    }
    let asks_once = async || {
        let before = counts.attempts();
        let error = manager.lock("full").try_acquire().await.unwrap_err();
        assert!(error.to_string().contains("OOM"), "{error}");
        counts.attempts() == before + 1
    };
    eventually("one attempt", SOON, asks_once).await;
}

/// The refusal of a full master comes after the lock was acquired. Nothing is left to stop there.
#[tokio::test]
async fn late_refusal_costs_few_requests() {
    let rig = RedLockRig::start_private().await;
    let backend = rig.backend();
    let manager = LockManager::new(backend.clone());
    let guard = manager.lock("warm").acquire().await.unwrap();
    rig.wait_for_votes("warm").await;
    guard.release().await;
    let free = async || rig.votes("warm").await == 0;
    eventually("all votes are given back", SOON, free).await;
    rig.masters[2].run::<String>("CONFIG SET maxmemory 1").await;
    let before = rig.masters[2].scripts().await;
    let refusal = rig.masters[2].proxy.hold_answer(b"OOM");
    let guard = manager.lock("late").acquire().await.unwrap();
    refusal.held().await;
    refusal.let_go();
    // The answers of a master come in order.
    backend.warnings().await;
    guard.release().await;
    // It waits for all releases.
    manager.shutdown().await;
    let sent = rig.masters[2].scripts().await - before;
    // A release whose answer comes late is repeated.
    assert!((2..=3).contains(&sent), "{sent}");
}

/// What an acquisition may have left is released for two leases: the shortened ones.
#[tokio::test]
async fn shutdown_waits_for_shortened_leases_only() {
    let rig = RedLockRig::start().await;
    let manager = rig.manager();
    use_lock(&manager, "warm").await;
    rig.block().await;
    let lock = manager.lock("away").lease(Duration::from_hours(1));
    let lock = lock.wait(Duration::from_secs(1));
    lock.acquire().await.unwrap_err();
    let ended = timeout(rig.lease() * 2 + SOON * 2, manager.shutdown()).await;
    ended.expect("no request can be executed any more");
}
