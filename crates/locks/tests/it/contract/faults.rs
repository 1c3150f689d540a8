//! Behaviour when the server, or the connection to it, fails.

use std::time::Duration;

use stocklock_locks::backend::{Attempt, Backend as _};
use stocklock_locks::clock::Clock as _;
use stocklock_locks::{LockError, LockManager, LockState, LostReason, ReleaseOutcome};
use stocklock_testkit::assert_matches;

use crate::rig::{
    Faults, RigExt, eventually, holder, loss, request, try_lock, use_lock,
    wait_until_nothing_is_left,
};

pub(super) async fn lock_deleted_on_server_is_lost_before_deadline(rig: &impl Faults) {
    let manager = rig.manager();
    let guard = manager.lock("stolen").acquire().await.unwrap();
    let begin = rig.now();
    rig.take_away("stolen").await;
    assert_eq!(guard.lost().await, LostReason::Stolen);
    assert!(rig.now().since(begin) < rig.lease() / 2 + rig.soon());
    assert_matches!(guard.release().await, ReleaseOutcome::AlreadyLost { .. });
    // The local queue is free again.
    use_lock(&manager, "stolen").await;
}

pub(super) async fn verify_detects_lock_deleted_on_server(rig: &impl Faults) {
    let guard = rig.manager().lock("asked").acquire().await.unwrap();
    guard.verify().await.unwrap();
    rig.take_away("asked").await;
    let error = guard.verify().await.unwrap_err();
    assert_matches!(error, LockError::Lost { .. });
    assert_matches!(guard.state(), LockState::Lost(_));
}

/// Blocks the renewals of fifty holders, each at another point of its renewal cycle. Each holder
/// learns of its loss before a waiter with a working connection gets the lock.
pub(super) async fn loss_is_reported_before_next_grant(rig: &impl Faults) {
    const RUNS: u32 = 50;
    let (manager, other) = (rig.manager(), rig.past_the_proxy());
    let mut runs = tokio::task::JoinSet::new();
    for number in 0..RUNS {
        let name = format!("l{number}");
        let guard = rig.lock(&manager, &name).acquire().await.unwrap();
        let next = rig.lock(&other, &name).wait(rig.lease() * 5);
        let clock = rig.clock();
        runs.spawn(async move {
            let next = async {
                loop {
                    // On a busy machine, a grant may arrive too late to be of use.
                    match next.clone().acquire().await {
                        Ok(guard) => return (clock.now(), guard),
                        Err(LockError::Unavailable(_) | LockError::WaitLimit { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            };
            let lost = async {
                let reason = guard.lost().await;
                (clock.now(), reason)
            };
            let ((lost, reason), (granted, next)) = tokio::join!(lost, next);
            assert_matches!(reason, LostReason::Expired | LostReason::SessionExpired);
            assert!(guard.valid_until() < granted);
            (lost, granted, guard, next)
        });
        tokio::time::sleep(rig.lease() / RUNS).await;
    }
    // By now each lock was renewed, and is between two renewals. On a busy machine, some are lost already.
    tokio::time::sleep(rig.lease() / 2).await;
    assert_ne!(manager.held(), 0);
    rig.block_renewals().await;
    for (lost, granted, guard, next) in runs.join_all().await {
        rig.assert_grows(rig.token(&guard), &next);
        assert!(lost < granted, "{:?} after the grant", lost.since(granted));
    }
    rig.unblock().await;
}

pub(super) async fn acquire_with_lost_answer_has_one_holder(rig: &impl Faults) {
    let ((one, counts), other) = (rig.counted(), rig.manager());
    let warm = rig.lock(&one, "warm").acquire().await.unwrap();
    warm.release().await;
    assert_eq!(counts.attempts(), 1);
    rig.lose_acquire_answer("cut").await;
    // The wait ends before the lease of the lost answer.
    let lease = rig.lease().max(rig.soon() * 2);
    let lock = rig.lock(&one, "cut").lease(lease).wait(lease / 2);
    let guard = lock.acquire().await.unwrap();
    assert!(counts.attempts() >= 3, "no answer was lost");
    assert_eq!(rig.left().await, 1);
    let second = async || rig.lock(&other, "cut").try_acquire().await.unwrap();
    assert!(second().await.is_none());
    let holder = holder(rig.lock(&other, "cut")).await;
    assert_eq!(holder.token, rig.token(&guard));
    guard.verify().await.unwrap();
    guard.release().await;
    assert!(second().await.is_some());
}

/// An attempt that was not answered arrives after another attempt acquired the lock, and after the lock was
/// taken away.
pub(super) async fn late_request_of_revoked_lock_takes_nothing(rig: &impl Faults) {
    let (backend, operator) = (rig.backend(), rig.manager());
    let request = request("late", rig.lease());
    let attempt = backend.contender(request.clone()).attempt().await;
    assert_matches!(attempt.unwrap(), Attempt::Held(_));
    assert!(operator.lock("late").revoke(request.nonce).await.unwrap());
    let late = backend.contender(request).attempt().await;
    let error = late.unwrap_err();
    assert!(error.is_permanent(), "{error}");
    assert_eq!(rig.left().await, 0);
    use_lock(&operator, "late").await;
}

/// The caller drops the future before the request can be repeated.
pub(super) async fn acquire_dropped_after_lost_answer_leaves_nothing(rig: &impl Faults) {
    let manager = rig.manager();
    use_lock(&manager, "warm").await;
    for round in 0..8 {
        rig.lose_acquire_answer("cut").await;
        let time = rig.step() * 2_u32.pow(round);
        // In later rounds there is enough time to acquire the lock.
        let lease = rig.lease().max(rig.soon() * 2);
        let lock = manager.lock("cut").lease(lease);
        drop(tokio::time::timeout(time, lock.acquire()).await);
        let gone = async || manager.names() == 0 && rig.left().await == 0;
        eventually("nothing is left", lease * 3 / 4, gone).await;
    }
    use_lock(&rig.manager(), "cut").await;
}

pub(super) async fn silent_server_is_reported_as_unavailable(rig: &impl Faults) {
    let manager = rig.manager();
    use_lock(&manager, "warm").await;
    rig.block().await;
    let begin = rig.now();
    let limit = Duration::from_millis(300);
    let lock = rig.lock(&manager, "away").wait(limit);
    let (first, second) = tokio::join!(lock.clone().acquire(), lock.acquire());
    for error in [first.unwrap_err(), second.unwrap_err()] {
        assert_matches!(error, LockError::Unavailable(_));
    }
    assert!(rig.now().since(begin) < limit + rig.soon());
    rig.unblock().await;
    wait_until_nothing_is_left(rig, rig.leases(1)).await;
}

pub(super) async fn blocked_release_is_repeated(rig: &impl Faults) {
    let (one, other) = (rig.manager(), rig.manager());
    let lock = rig.lock(&one, "kept").lease(rig.lease());
    let guard = lock.acquire().await.unwrap();
    rig.block().await;
    let release = tokio::spawn(guard.release());
    tokio::time::sleep(rig.lease() / 5).await;
    rig.unblock().await;
    let outcome = release.await.unwrap();
    assert_eq!(loss(outcome), None);
    let lock = rig.lock(&other, "kept").wait(rig.leases(2));
    lock.acquire().await.unwrap().release().await;
    wait_until_nothing_is_left(rig, rig.leases(1)).await;
}

pub(super) async fn ping_succeeds_only_while_server_answers(rig: &impl Faults) {
    let (used, fresh) = (rig.manager(), rig.manager());
    let limit = rig.backend().properties().response_limit;
    let ping = async |manager: &LockManager<_>| {
        let begin = rig.now();
        let answer = manager.ping().await;
        let took = rig.now().since(begin);
        assert!(took < limit + rig.soon(), "{took:?}");
        answer
    };
    ping(&used).await.unwrap();
    rig.block().await;
    for manager in [&used, &fresh] {
        ping(manager).await.unwrap_err();
    }
    rig.unblock().await;
    rig.crash().await;
    for manager in [&used, &fresh] {
        ping(manager).await.unwrap_err();
    }
    rig.bring_up().await;
    for manager in [&used, &fresh] {
        let answers = async || manager.ping().await.is_ok();
        eventually("the server answers again", Duration::from_secs(20), answers).await;
    }
}

pub(super) async fn restarted_server_is_used_again(rig: &impl Faults) {
    let manager = rig.manager();
    let guard = manager.lock("again").acquire().await.unwrap();
    rig.crash().await;
    rig.bring_up().await;
    let lock = manager.lock("other").wait(Duration::from_secs(20));
    lock.acquire().await.unwrap().release().await;
    // The first lock is lost, or the server still has it. Then no other client can acquire it.
    if guard.verify().await.is_ok() {
        assert!(try_lock(&rig.manager(), "again").await.is_none());
    }
    drop(guard);
    let lock = manager.lock("again").wait(Duration::from_secs(20));
    lock.acquire().await.unwrap().release().await;
}
