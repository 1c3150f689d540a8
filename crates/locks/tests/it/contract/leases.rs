//! Leases, renewals and limits: behaviour as time passes.

use std::fmt::Debug;
use std::time::Duration;

use stocklock_locks::{LockBuilder, LockError, LockState, LostReason, ReleaseOutcome};
use stocklock_testkit::assert_matches;

use crate::rig::{Ahead, Rig, RigExt, eventually, loss, lost_reason};

async fn assert_hits_wait_limit<T: Debug>(lock: LockBuilder<T>) {
    let error = lock.acquire().await.unwrap_err();
    assert_matches!(error, LockError::WaitLimit { .. });
}

pub(super) async fn lock_without_renewals_expires(rig: &impl Rig) {
    let (one, other) = (rig.manager(), rig.manager());
    let lock = rig.lock(&one, "short").max_renewals(0);
    let guard = lock.acquire().await.unwrap();
    let begin = rig.now();
    assert!(guard.valid_until() < rig.now() + rig.lease());
    let next = rig.lock(&other, "short").wait(rig.leases(2));
    let next = next.acquire().await.unwrap();
    // The next holder gets the lock only after the first guard reports its loss.
    let reason = lost_reason(&guard.check().unwrap_err());
    assert_eq!(reason, Some(LostReason::MaxRenewals));
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert!(rig.now().since(begin) < rig.leases(1));
    rig.assert_grows(rig.token(&guard), &next);
}

pub(super) async fn renewals_keep_lock_for_many_leases(rig: &impl Rig) {
    let (one, counts) = rig.counted();
    let guard = rig.lock(&one, "kept").acquire().await.unwrap();
    let token = rig.token(&guard);
    assert_hits_wait_limit(rig.lock(&rig.manager(), "kept").wait(rig.lease() * 4)).await;
    let is_held = async || guard.state() == LockState::Held;
    eventually("a renewal succeeds", rig.lease(), is_held).await;
    assert_eq!(rig.token(&guard), token);
    guard.verify().await.unwrap();
    let renewals = counts.renewals();
    assert!((4..=20).contains(&renewals), "{renewals}");
    assert_matches!(guard.release().await, ReleaseOutcome::Released { .. });
    assert_eq!(one.held(), 0);
}

pub(super) async fn many_locks_are_renewed_in_few_requests(rig: &impl Rig) {
    let (manager, counts) = rig.counted();
    let lock = |number| rig.lock(&manager, &format!("n{number}")).acquire();
    let guards = futures_util::future::join_all((0..200).map(lock)).await;
    tokio::time::sleep(rig.lease()).await;
    // Two or three rounds of two batches, if the locks were acquired at about the same time. On a
    // busy machine the second round may be late.
    assert!(counts.renewals() <= 40, "{}", counts.renewals());
    let twice = async || counts.renewals() >= 4;
    eventually("all locks were renewed twice", rig.leases(1), twice).await;
    for guard in guards {
        let guard = guard.unwrap();
        guard.check().unwrap();
        guard.release().await;
    }
}

/// The holder learns of the loss at `max_hold`, and gets its safety margin to stop.
pub(super) async fn max_hold_ends_hanging_holder(rig: &impl Rig) {
    let (one, other) = (rig.manager(), rig.manager());
    let limit = rig.lease() * 3 / 2;
    let margin = rig.lease() / 4;
    let begin = rig.now();
    let lock = rig.lock(&one, "hung").max_hold(limit).safety_margin(margin);
    let guard = lock.acquire().await.unwrap();
    let next = rig.lock(&other, "hung").wait(rig.leases(4)).acquire();
    let lost = async {
        let reason = guard.lost().await;
        (reason, rig.now().since(begin))
    };
    let ((reason, lost), next) = tokio::join!(lost, next);
    let (next, took) = (next.unwrap(), rig.now().since(begin));
    assert_eq!(reason, LostReason::MaxHold);
    assert!(lost >= limit && lost < limit + rig.soon(), "{lost:?}");
    let free = limit + margin;
    assert!(took >= free && took < free + rig.soon(), "{took:?}");
    assert_eq!(loss(guard.release().await), Some(LostReason::MaxHold));
    next.verify().await.unwrap();
}

/// The work that a shutdown interrupts gets its safety margin to stop, like after any other loss.
pub(super) async fn lock_lost_at_shutdown_stays_held_for_its_margin(rig: &impl Rig) {
    let (one, other) = (rig.manager(), rig.manager());
    let margin = rig.lease() / 4;
    let lock = rig.lock(&one, "stopped").safety_margin(margin);
    let guard = lock.acquire().await.unwrap();
    let next = tokio::spawn(rig.lock(&other, "stopped").wait(rig.leases(4)).acquire());
    let begin = rig.now();
    one.shutdown().await;
    assert_eq!(guard.lost().await, LostReason::Shutdown);
    next.await.unwrap().unwrap().release().await;
    let took = rig.now().since(begin);
    assert!(took >= margin && took < margin + rig.soon(), "{took:?}");
}

pub(super) async fn max_renewals_ends_hanging_holder(rig: &impl Rig) {
    let (one, other) = (rig.manager(), rig.manager());
    let begin = rig.now();
    let lock = rig.lock(&one, "renewed").max_renewals(3);
    let guard = lock.acquire().await.unwrap();
    let next = rig.lock(&other, "renewed").wait(rig.leases(4));
    let next = next.acquire().await.unwrap();
    let took = rig.now().since(begin);
    // Three renewals at a third of the lease each, then one lease minus its margin.
    let expected = rig.lease() * 3 / 2..rig.leases(2);
    assert!(expected.contains(&took), "{took:?}");
    assert_eq!(guard.lost().await, LostReason::MaxRenewals);
    next.verify().await.unwrap();
}

pub(super) async fn release_after_loss_reports_it_and_keeps_next_holder(rig: &impl Rig) {
    let (one, other) = (rig.manager(), rig.manager());
    let lock = rig.lock(&one, "late").max_renewals(0);
    let guard = lock.acquire().await.unwrap();
    let next = rig.lock(&other, "late").wait(rig.leases(2));
    let next = next.acquire().await.unwrap();
    let outcome = guard.release().await;
    let ReleaseOutcome::AlreadyLost { reason, held_for } = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(reason, LostReason::MaxRenewals);
    assert!(held_for >= rig.lease() / 2);
    next.verify().await.unwrap();
    next.release().await;
}

pub(super) async fn run_drops_body_when_lock_is_lost(rig: &impl Rig) {
    let (sender, dropped) = tokio::sync::oneshot::channel::<()>();
    let lock = rig.lock(&rig.manager(), "body").max_renewals(0);
    let run = lock.run(|_guard| async move {
        let _sender = sender;
        std::future::pending::<()>().await;
    });
    let reason = lost_reason(&run.await.unwrap_err());
    assert_eq!(reason, Some(LostReason::MaxRenewals));
    assert!(dropped.await.is_err());
}

/// Clients send only durations to the server, never points in time.
pub(super) async fn client_clock_one_hour_ahead_has_no_effect(rig: &impl Rig) {
    let hour = Duration::from_hours(1);
    let ahead = rig.builder().clock(Ahead(rig.clock(), hour)).build();
    let behind = rig.manager();
    let guard = rig.lock(&ahead, "time").acquire().await.unwrap();
    assert_hits_wait_limit(rig.lock(&behind, "time").wait(rig.lease() * 3 / 2)).await;
    guard.check().unwrap();
    let token = rig.token(&guard);
    guard.release().await;
    let guard = rig.lock(&behind, "time").acquire().await.unwrap();
    rig.assert_grows(token, &guard);
    assert_hits_wait_limit(rig.lock(&ahead, "time").wait(rig.lease() * 3 / 2)).await;
    guard.check().unwrap();
}

pub(super) async fn extend_moves_deadline(rig: &impl Rig) {
    let lock = rig.lock(&rig.manager(), "extended").max_renewals(0);
    let guard = lock.acquire().await.unwrap();
    let before = guard.valid_until();
    tokio::time::sleep(rig.lease() / 4).await;
    guard.extend(rig.lease()).await.unwrap();
    assert!(guard.valid_until() > before);
    guard.verify().await.unwrap();
    // The first lease has expired, but not the extended one.
    tokio::time::sleep(before.since(rig.now())).await;
    guard.check().unwrap();
}
