//! Several locks that are held together.

use std::time::Duration;

use futures_util::future::join_all;
use stocklock_locks::{LockError, LockGuard, LockManager, LostReason, MultiLock, ReleaseOutcome};
use stocklock_testkit::assert_matches;

use super::cancel::cut_after;
use crate::rig::{Rig, RigExt, eventually, loss, try_lock, wait_until_nothing_is_left};

fn all<T>(manager: &LockManager<T>, names: &[&str]) -> MultiLock<T> {
    MultiLock::of(names.iter().map(|name| manager.lock(name)))
}

/// A busy lock in the middle: the one before it is released, and the one behind it is not acquired.
pub(super) async fn multi_lock_takes_all_or_nothing(rig: &impl Rig) {
    let (one, other) = (rig.manager(), rig.manager());
    let holder = one.lock("b").acquire().await.unwrap();
    let names = ["c", "a", "b", "a"];
    assert!(all(&other, &names).try_acquire().await.unwrap().is_none());
    let limit = Duration::from_millis(200);
    let error = all(&other, &names).wait(limit).acquire().await.unwrap_err();
    assert_matches!(error, LockError::WaitLimit { waited } if *waited >= limit);
    let only_holder = async || rig.left().await == 1 && other.names() == 0;
    eventually("only the holder is left", rig.soon(), only_holder).await;
    holder.release().await;

    let guard = all(&other, &names).acquire().await.unwrap();
    let held: Vec<_> = guard.guards().iter().map(LockGuard::name).collect();
    assert_eq!(held, ["a", "b", "c"]);
    assert_eq!(guard.get("b").unwrap().name(), "b");
    for name in held {
        assert!(try_lock(&one, name).await.is_none());
    }
    guard.verify().await.unwrap();
    assert!(guard.remaining() > Duration::ZERO);
    assert_matches!(guard.release().await, ReleaseOutcome::Released { .. });
    wait_until_nothing_is_left(rig, rig.soon()).await;
}

/// The first lock takes most of the wait limit, so only the rest is left for the second one.
pub(super) async fn multi_lock_has_one_wait_limit(rig: &impl Rig) {
    let (one, other) = (rig.manager(), rig.manager());
    let first = one.lock("a").acquire().await.unwrap();
    let _second = one.lock("b").acquire().await.unwrap();
    let limit = Duration::from_secs(6);
    let begin = rig.now();
    let both = tokio::spawn(all(&other, &["a", "b"]).wait(limit).acquire());
    tokio::time::sleep(limit * 2 / 3).await;
    first.release().await;
    let error = both.await.unwrap().unwrap_err();
    let took = rig.now().since(begin);
    assert_matches!(error, LockError::WaitLimit { waited } if *waited >= limit);
    // A second limit would end later.
    assert!(took < limit * 5 / 3, "{took:?}");
}

/// Four tasks in two processes take three locks, and each names them in another order.
pub(super) async fn multi_locks_in_any_order_never_deadlock(rig: &impl Rig) {
    let orders = [
        ["a", "b", "c"],
        ["c", "b", "a"],
        ["b", "c", "a"],
        ["c", "a", "b"],
    ];
    let managers = [rig.manager(), rig.manager()];
    let lock = async |(number, names): (usize, [&str; 3])| {
        for _ in 0..5 {
            let locks = all(&managers[number % 2], &names).wait(Duration::from_mins(1));
            let guard = locks.acquire().await.expect("the locks become free");
            guard.check().unwrap();
            guard.release().await;
        }
    };
    join_all(orders.into_iter().enumerate().map(lock)).await;
    wait_until_nothing_is_left(rig, rig.soon()).await;
}

/// One lock of three reaches its maximum hold time. The others stay held until the release.
pub(super) async fn loss_of_one_lock_is_loss_of_all(rig: &impl Rig) {
    let (one, other) = (rig.manager(), rig.manager());
    let locks = [
        one.lock("a"),
        one.lock("b").max_hold(Duration::from_secs(3)),
        one.lock("c"),
    ];
    let guard = MultiLock::of(locks).acquire().await.unwrap();
    guard.check().unwrap();
    assert_eq!(guard.lost().await, LostReason::MaxHold);
    let error = guard.check().unwrap_err();
    assert_matches!(error, LockError::Lost { .. });
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert!(try_lock(&other, "c").await.is_none());
    assert_eq!(loss(guard.release().await), Some(LostReason::MaxHold));
    assert!(try_lock(&other, "c").await.is_some());
}

/// Drops acquisitions of three locks after increasing times, until they complete before the drop.
pub(super) async fn multi_lock_dropped_at_any_time_leaves_nothing(rig: &impl Rig) {
    let (manager, counts) = rig.counted();
    for round in 0.. {
        let locks = all(&manager, &["x", "y", "z"]);
        let cut = cut_after(rig, rig.step() * round * 4, locks.acquire()).await;
        let is_acquired = cut.is_some();
        if let Some(guard) = cut {
            guard.unwrap().release().await;
        }
        let nothing = async || rig.left().await == 0 && manager.names() == 0;
        eventually("nothing is left", rig.soon(), nothing).await;
        if is_acquired {
            break;
        }
    }
    assert_eq!((manager.held(), counts.dropped(), counts.lost()), (0, 0, 0));
}
