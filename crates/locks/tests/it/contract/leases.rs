//! What holds as time passes.

use std::time::Duration;

use stocklock_locks::{LockError, LockState, LostReason, ReleaseOutcome};

use crate::rig::{Ahead, Counts, Rig, RigExt, eventually};

pub(super) async fn a_lock_that_is_not_renewed_runs_out(rig: &impl Rig) {
    let (one, other) = (rig.manager(), rig.manager());
    let guard = one.lock("short").max_renewals(0).acquire().await.unwrap();
    let begin = rig.now();
    assert!(guard.valid_until() < rig.now() + rig.lease());
    let next = other
        .lock("short")
        .wait(rig.lease() * 2)
        .acquire()
        .await
        .unwrap();
    // The next one comes after the first has learnt of its loss.
    assert!(matches!(
        guard.check(),
        Err(LockError::Lost {
            reason: LostReason::MaxRenewals
        })
    ));
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert!(rig.now().since(begin) < rig.lease() + rig.moment());
    assert!(guard.token() < next.token());
}

pub(super) async fn renewals_keep_a_lock_for_many_leases(rig: &impl Rig) {
    let counts = Counts::default();
    let one = rig.builder().hooks(counts.clone()).build();
    let guard = one.lock("kept").acquire().await.unwrap();
    let token = guard.token();
    let error = rig
        .manager()
        .lock("kept")
        .wait(rig.lease() * 4)
        .acquire()
        .await
        .unwrap_err();
    assert!(matches!(error, LockError::WaitLimit { .. }), "{error}");
    assert_eq!(guard.state(), LockState::Held);
    assert_eq!(guard.token(), token);
    guard.verify().await.unwrap();
    assert!(
        (8..=20).contains(&counts.renewals()),
        "{}",
        counts.renewals()
    );
    assert!(matches!(
        guard.release().await,
        ReleaseOutcome::Released { .. }
    ));
    assert_eq!(one.held(), 0);
}

pub(super) async fn many_locks_are_renewed_in_few_requests(rig: &impl Rig) {
    let counts = Counts::default();
    let manager = rig.builder().hooks(counts.clone()).build();
    let lock = |number| manager.lock(&format!("n{number}")).acquire();
    let guards = futures_util::future::join_all((0..200).map(lock)).await;
    tokio::time::sleep(rig.lease()).await;
    // Two or three rounds of two batches, where the locks were acquired at about the same time; a
    // machine that is busy may be late with the second.
    assert!(counts.renewals() <= 40, "{}", counts.renewals());
    eventually("all were renewed twice", rig.lease(), async || {
        counts.renewals() >= 4
    })
    .await;
    for guard in guards {
        let guard = guard.unwrap();
        guard.check().unwrap();
        guard.release().await;
    }
}

pub(super) async fn max_hold_ends_a_holder_that_hangs(rig: &impl Rig) {
    let (one, other) = (rig.manager(), rig.manager());
    let limit = rig.lease() * 3 / 2;
    let begin = rig.now();
    let guard = one.lock("hung").max_hold(limit).acquire().await.unwrap();
    let lost = guard.lost();
    let next = other
        .lock("hung")
        .wait(rig.lease() * 4)
        .acquire()
        .await
        .unwrap();
    let took = rig.now().since(begin);
    assert!(took >= limit && took < limit + rig.moment(), "{took:?}");
    assert_eq!(lost.await, LostReason::MaxHold);
    assert!(matches!(
        guard.release().await,
        ReleaseOutcome::AlreadyLost {
            reason: LostReason::MaxHold,
            ..
        }
    ));
    next.verify().await.unwrap();
}

pub(super) async fn max_renewals_ends_a_holder_that_hangs(rig: &impl Rig) {
    let (one, other) = (rig.manager(), rig.manager());
    let begin = rig.now();
    let guard = one.lock("renewed").max_renewals(3).acquire().await.unwrap();
    let next = other
        .lock("renewed")
        .wait(rig.lease() * 4)
        .acquire()
        .await
        .unwrap();
    let took = rig.now().since(begin);
    // Three thirds of a lease, and one lease less its margin.
    assert!(
        took >= rig.lease() * 3 / 2 && took < rig.lease() * 2 + rig.moment(),
        "{took:?}"
    );
    assert_eq!(guard.lost().await, LostReason::MaxRenewals);
    next.verify().await.unwrap();
}

pub(super) async fn release_after_the_loss_says_so_and_frees_nobody(rig: &impl Rig) {
    let (one, other) = (rig.manager(), rig.manager());
    let guard = one.lock("late").max_renewals(0).acquire().await.unwrap();
    let next = other
        .lock("late")
        .wait(rig.lease() * 2)
        .acquire()
        .await
        .unwrap();
    let outcome = guard.release().await;
    let ReleaseOutcome::AlreadyLost { reason, held_for } = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(reason, LostReason::MaxRenewals);
    assert!(held_for >= rig.lease() / 2);
    next.verify().await.unwrap();
    next.release().await;
}

pub(super) async fn run_drops_its_body_when_the_lock_is_lost(rig: &impl Rig) {
    let (sender, dropped) = tokio::sync::oneshot::channel::<()>();
    let run = rig
        .manager()
        .lock("body")
        .max_renewals(0)
        .run(|_guard| async move {
            let _sender = sender;
            std::future::pending::<()>().await;
        });
    let error = run.await.unwrap_err();
    assert!(
        matches!(
            error,
            LockError::Lost {
                reason: LostReason::MaxRenewals
            }
        ),
        "{error}"
    );
    assert!(dropped.await.is_err());
}

/// No instant of a client is ever sent: only durations are.
pub(super) async fn a_clock_that_is_an_hour_ahead_changes_nothing(rig: &impl Rig) {
    let hour = Duration::from_hours(1);
    let ahead = rig.builder().clock(Ahead(rig.clock(), hour)).build();
    let behind = rig.manager();
    let guard = ahead.lock("time").acquire().await.unwrap();
    let error = behind
        .lock("time")
        .wait(rig.lease() * 3 / 2)
        .acquire()
        .await
        .unwrap_err();
    assert!(matches!(error, LockError::WaitLimit { .. }), "{error}");
    guard.check().unwrap();
    let token = guard.token();
    guard.release().await;
    let guard = behind.lock("time").acquire().await.unwrap();
    assert!(token < guard.token());
    let error = ahead
        .lock("time")
        .wait(rig.lease() * 3 / 2)
        .acquire()
        .await
        .unwrap_err();
    assert!(matches!(error, LockError::WaitLimit { .. }), "{error}");
    guard.check().unwrap();
}

pub(super) async fn extend_moves_the_deadline(rig: &impl Rig) {
    let guard = rig
        .manager()
        .lock("extended")
        .max_renewals(0)
        .acquire()
        .await
        .unwrap();
    let before = guard.valid_until();
    tokio::time::sleep(rig.lease() / 4).await;
    guard.extend(rig.lease()).await.unwrap();
    assert!(guard.valid_until() > before);
    guard.verify().await.unwrap();
    // Within the lease that it was given, but past the first one.
    tokio::time::sleep(before.since(rig.now())).await;
    guard.check().unwrap();
}
