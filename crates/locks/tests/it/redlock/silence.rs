//! A silent master does not delay an answer that it cannot change. The limits are so long that a test which
//! waits for the silent master fails.

use std::time::Duration;

use stocklock_locks::backend::{Attempt, Backend as _, Release, Renewed, Request};
use stocklock_locks::redis::redlock::RedLockBackend;
use stocklock_locks::{LockManager, LostReason};
use stocklock_testkit::assert_matches;
use stocklock_testkit::proxy::Mode;
use tokio::time::Instant;

use super::votes::set_foreign;
use super::{SOON, foreign_vote, set};
use crate::rig::redlock::RedLockRig;
use crate::rig::{RigExt as _, loss, lost_reason, request, revoke_holder};

/// A renewal waits for a quarter of it at most.
const MAX_LEASE: Duration = Duration::from_secs(40);

/// Masters, and a back end that waits up to a minute for a silent one.
async fn start(masters: usize) -> (RedLockRig, RedLockBackend) {
    let rig = RedLockRig::with_max_lease(masters, MAX_LEASE).await;
    let backend = rig.patient(SOON * 2);
    (rig, backend)
}

/// Acquires a lock with the votes of all masters.
async fn held(rig: &RedLockRig, backend: &RedLockBackend, name: &str) -> Request {
    let request = request(name, MAX_LEASE);
    let attempt = backend.contender(request.clone()).attempt().await;
    assert_matches!(attempt.unwrap(), Attempt::Held(_));
    rig.wait_for_votes(name).await;
    request
}

/// Long before the back end gives the silent master up.
fn assert_soon(begin: Instant) {
    let took = begin.elapsed();
    assert!(took < MAX_LEASE / 4, "{took:?}");
}

/// One lock of the request was released in the meantime: no master is asked for it.
#[tokio::test]
async fn renewal_with_a_released_lock_answers_at_once() {
    let (rig, backend) = start(3).await;
    let gone = held(&rig, &backend, "gone").await;
    let kept = held(&rig, &backend, "kept").await;
    let release = backend.release(&gone, false).await;
    assert_eq!(release.unwrap(), Release::Released);
    rig.masters[2].proxy.set(Mode::Blackhole).await;
    let begin = Instant::now();
    let renewed = backend.renew(&[gone, kept]).await;
    assert_soon(begin);
    let renewed = renewed.unwrap();
    assert_eq!(renewed[0], Renewed::Gone(LostReason::Stolen));
    assert_matches!(renewed[1], Renewed::Held(_));
}

/// One lock has lost a vote, so it needs the silent master.
#[tokio::test]
async fn renewal_answers_before_the_watchdog_gives_it_up() {
    let (rig, backend) = start(3).await;
    let needing = held(&rig, &backend, "needs").await;
    let kept = held(&rig, &backend, "kept").await;
    rig.masters[2].proxy.set(Mode::Blackhole).await;
    assert!(rig.forget(1, "needs").await);
    let begin = Instant::now();
    let renewed = backend.renew(&[needing, kept]).await;
    // A watchdog waits for a third of the lease.
    let took = begin.elapsed();
    assert!(took < MAX_LEASE / 3, "{took:?}");
    let renewed = renewed.unwrap();
    assert_eq!(renewed[0], Renewed::Unknown);
    assert_matches!(renewed[1], Renewed::Held(_));
}

/// Two of three masters are silent, so no renewal succeeds.
#[tokio::test]
async fn renewals_without_a_majority_count_as_failed() {
    let rig = RedLockRig::start().await;
    let (manager, counts) = rig.counted();
    let guard = manager.lock("kept").acquire().await.unwrap();
    for master in &rig.masters[1..] {
        master.proxy.set(Mode::Blackhole).await;
    }
    assert_eq!(guard.lost().await, LostReason::Expired);
    assert!(counts.unanswered() > 0);
}

#[tokio::test]
async fn loss_is_known_without_the_silent_master() {
    let (rig, backend) = start(3).await;
    let one = held(&rig, &backend, "verified").await;
    let other = held(&rig, &backend, "released").await;
    for master in 0..2 {
        assert!(rig.forget(master, "verified").await);
        assert!(rig.forget(master, "released").await);
    }
    rig.masters[2].proxy.set(Mode::Blackhole).await;
    let begin = Instant::now();
    let reason = LostReason::Stolen;
    let verified = backend.verify("verified", one.nonce).await;
    assert_eq!(verified.unwrap(), Some(reason));
    let release = backend.release(&other, false).await;
    assert_eq!(release.unwrap(), Release::NotHeld(reason));
    assert_soon(begin);
}

#[tokio::test]
async fn operator_needs_no_silent_master() {
    let (rig, backend) = start(3).await;
    let [one, operator] = [(); 2].map(|()| LockManager::new(backend.clone()));
    let guards = ["verified", "released"].map(async |name| {
        let lock = one.lock(name).lease(MAX_LEASE);
        let guard = lock.acquire().await.unwrap();
        rig.wait_for_votes(name).await;
        guard
    });
    let [verified, released] = guards;
    let (verified, released) = (verified.await, released.await);
    rig.masters[2].proxy.set(Mode::Blackhole).await;
    let begin = Instant::now();
    for name in ["verified", "released"] {
        revoke_holder(operator.lock(name)).await;
        let view = operator.lock(name).inspect().await.unwrap();
        assert_eq!(view.holders, []);
    }
    let error = verified.verify().await.unwrap_err();
    assert_eq!(lost_reason(&error), Some(LostReason::Revoked));
    assert_eq!(loss(released.release().await), Some(LostReason::Revoked));
    assert_soon(begin);
}

/// Two of five votes are taken and one key is foreign, so the silent master cannot complete a majority.
#[tokio::test]
async fn busy_lock_is_known_without_the_silent_master() {
    let (rig, backend) = start(5).await;
    let warm = held(&rig, &backend, "warm").await;
    for master in 0..2 {
        set(&rig, master, "busy", &foreign_vote()).await;
    }
    set_foreign(&rig, 2, "busy").await;
    rig.masters[4].proxy.set(Mode::Blackhole).await;
    let begin = Instant::now();
    let mut contender = backend.contender(request("busy", MAX_LEASE));
    assert_matches!(contender.attempt().await.unwrap(), Attempt::Busy { .. });
    assert_eq!(backend.verify("warm", warm.nonce).await.unwrap(), None);
    assert_soon(begin);
}
