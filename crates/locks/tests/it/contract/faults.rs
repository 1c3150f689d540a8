//! What holds when the server, or the way to it, fails.

use std::time::Duration;

use stocklock_locks::{LockError, LockManager, LockState, LostReason, ReleaseOutcome};

use crate::rig::{Counts, Faults, RigExt, eventually};

pub(super) async fn a_lock_taken_away_is_lost_before_its_deadline(rig: &impl Faults) {
    let manager = rig.manager();
    let guard = manager.lock("stolen").acquire().await.unwrap();
    let begin = rig.now();
    rig.take_away("stolen").await;
    assert_eq!(guard.lost().await, rig.taken_away_is());
    assert!(rig.now().since(begin) < rig.lease() / 2 + rig.moment());
    assert!(matches!(
        guard.release().await,
        ReleaseOutcome::AlreadyLost { .. }
    ));
    // The local line is open again.
    manager
        .lock("stolen")
        .acquire()
        .await
        .unwrap()
        .release()
        .await;
}

pub(super) async fn verify_asks_the_server(rig: &impl Faults) {
    let guard = rig.manager().lock("asked").acquire().await.unwrap();
    guard.verify().await.unwrap();
    rig.take_away("asked").await;
    let error = guard.verify().await.unwrap_err();
    assert!(matches!(error, LockError::Lost { .. }), "{error}");
    assert!(matches!(guard.state(), LockState::Lost(_)));
}

/// Fifty runs, each at another point of a renewal's cycle: with its renewals blocked the holder
/// learns of the loss before a waiter, whom no blockade reaches, is granted the lock.
pub(super) async fn lost_comes_before_the_server_may_grant_to_another(rig: &impl Faults) {
    const RUNS: u32 = 50;
    let (manager, other) = (rig.manager(), rig.past_the_proxy());
    let mut runs = tokio::task::JoinSet::new();
    for number in 0..RUNS {
        let name = format!("l{number}");
        let guard = manager.lock(&name).acquire().await.unwrap();
        let next = other.lock(&name).wait(rig.lease() * 5).acquire();
        let clock = rig.clock();
        runs.spawn(async move {
            let next = async {
                let guard = next.await.unwrap();
                (clock.now(), guard)
            };
            let lost = async {
                let reason = guard.lost().await;
                (clock.now(), reason)
            };
            let ((lost, reason), (granted, next)) = tokio::join!(lost, next);
            assert!(
                matches!(reason, LostReason::Expired | LostReason::SessionExpired),
                "{reason}"
            );
            assert!(guard.valid_until() < granted && guard.token() < next.token());
            (lost, granted)
        });
        tokio::time::sleep(rig.lease() / RUNS).await;
    }
    // Each has been renewed, and is somewhere between two renewals.
    tokio::time::sleep(rig.lease() / 2).await;
    assert_eq!((manager.held(), other.held()), (RUNS as usize, 0));
    rig.block_renewals().await;
    for (lost, granted) in runs.join_all().await {
        assert!(lost < granted, "{:?} after the grant", lost.since(granted));
    }
    rig.unblock().await;
}

pub(super) async fn an_acquire_whose_answer_was_lost_has_one_holder(rig: &impl Faults) {
    let counts = Counts::default();
    let one = rig.builder().hooks(counts.clone()).build();
    let other = rig.manager();
    one.lock("warm").acquire().await.unwrap().release().await;
    assert_eq!(counts.attempts(), 1);
    rig.lose_acquire_answer("cut").await;
    let begin = rig.now();
    let guard = one
        .lock("cut")
        .wait(rig.lease() / 2)
        .acquire()
        .await
        .unwrap();
    assert!(rig.now().since(begin) < rig.lease() / 2);
    assert!(counts.attempts() >= 3, "no answer was lost");
    assert_eq!(rig.left().await, 1);
    assert!(other.lock("cut").try_acquire().await.unwrap().is_none());
    guard.verify().await.unwrap();
    guard.release().await;
    assert!(other.lock("cut").try_acquire().await.unwrap().is_some());
}

/// The same, and whoever asked has gone before anything could be repeated.
pub(super) async fn an_acquire_given_up_after_its_answer_was_lost_leaves_nothing(
    rig: &impl Faults,
) {
    let manager = rig.manager();
    manager
        .lock("warm")
        .acquire()
        .await
        .unwrap()
        .release()
        .await;
    for round in 0..8 {
        rig.lose_acquire_answer("cut").await;
        let time = rig.step() * 2_u32.pow(round);
        // Acquired after all, in the later rounds, or not.
        drop(tokio::time::timeout(time, manager.lock("cut").acquire()).await);
        let gone = async || manager.names() == 0 && rig.left().await == 0;
        eventually("nothing is left", rig.lease() / 2, gone).await;
    }
    rig.manager()
        .lock("cut")
        .acquire()
        .await
        .unwrap()
        .release()
        .await;
}

pub(super) async fn a_server_that_gives_no_answer_is_unavailable(rig: &impl Faults) {
    let manager = rig.manager();
    manager
        .lock("warm")
        .acquire()
        .await
        .unwrap()
        .release()
        .await;
    rig.block().await;
    let begin = rig.now();
    let limit = Duration::from_millis(300);
    let lock = manager.lock("away").wait(limit);
    let (first, second) = tokio::join!(lock.clone().acquire(), lock.acquire());
    for error in [first.unwrap_err(), second.unwrap_err()] {
        assert!(matches!(error, LockError::Unavailable(_)), "{error}");
    }
    assert!(rig.now().since(begin) < limit + rig.moment());
    rig.unblock().await;
    eventually("nothing is left", rig.lease(), async || {
        rig.left().await == 0
    })
    .await;
}

pub(super) async fn a_release_that_cannot_arrive_is_repeated(rig: &impl Faults) {
    let (one, other) = (rig.manager(), rig.manager());
    let guard = one.lock("kept").lease(rig.lease()).acquire().await.unwrap();
    rig.block().await;
    let release = tokio::spawn(guard.release());
    tokio::time::sleep(rig.lease() / 5).await;
    rig.unblock().await;
    let outcome = release.await.unwrap();
    assert!(
        !matches!(outcome, ReleaseOutcome::AlreadyLost { .. }),
        "{outcome:?}"
    );
    other
        .lock("kept")
        .wait(rig.lease() * 2)
        .acquire()
        .await
        .unwrap()
        .release()
        .await;
    eventually("nothing is left", rig.lease(), async || {
        rig.left().await == 0
    })
    .await;
}

pub(super) async fn ping_says_whether_the_server_answers(rig: &impl Faults) {
    let (used, fresh) = (rig.manager(), rig.manager());
    let limit = rig.backend().response_limit();
    let asks_in_time = async |manager: &LockManager| {
        let begin = rig.now();
        let answer = manager.ping().await;
        let took = rig.now().since(begin);
        assert!(took < limit + rig.moment(), "{took:?}");
        answer
    };
    asks_in_time(&used).await.unwrap();
    rig.block().await;
    for manager in [&used, &fresh] {
        asks_in_time(manager).await.unwrap_err();
    }
    rig.unblock().await;
    rig.crash().await;
    for manager in [&used, &fresh] {
        asks_in_time(manager).await.unwrap_err();
    }
    rig.bring_up().await;
    for manager in [&used, &fresh] {
        let answers = async || manager.ping().await.is_ok();
        eventually("it answers again", Duration::from_secs(20), answers).await;
    }
}

pub(super) async fn a_server_that_comes_back_is_used_again(rig: &impl Faults) {
    let manager = rig.manager();
    let guard = manager.lock("again").acquire().await.unwrap();
    rig.crash().await;
    rig.bring_up().await;
    let lock = manager.lock("other").wait(Duration::from_secs(20));
    let other = lock.acquire().await.unwrap();
    other.release().await;
    // The old one is lost, or was kept by a server that remembers; never silently in between.
    if guard.verify().await.is_ok() {
        assert!(
            rig.manager()
                .lock("again")
                .try_acquire()
                .await
                .unwrap()
                .is_none()
        );
    }
    drop(guard);
    let lock = manager.lock("again").wait(Duration::from_secs(20));
    lock.acquire().await.unwrap().release().await;
}
