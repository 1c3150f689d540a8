//! An ensemble of three servers, whose leader dies, is stopped or cut off: a holder learns of its loss before
//! another session gets the lock.

use std::time::Duration;

use rstest::rstest;
use stocklock_locks::clock::{BootClock, Clock};
use stocklock_locks::metrics::LockHooks;
use stocklock_locks::zookeeper::ZooKeeperBackend;
use stocklock_locks::{LockError, LockGuard, LockManager, LostReason, ReleaseOutcome};
use stocklock_testkit::assert_matches;
use stocklock_testkit::servers::ZooKeeperEnsemble;
use tokio::sync::Notify;

use crate::rig::try_lock;

const SESSION: Duration = Duration::from_secs(4);
const LONG: Duration = Duration::from_mins(1);
const RETRY: Duration = Duration::from_millis(50);

fn backend(servers: &str) -> ZooKeeperBackend {
    let builder = ZooKeeperBackend::builder(servers).session_timeout(SESSION);
    builder.build().unwrap()
}

/// Waits until `next` has the lock of `guard`. Checks that the guard lost it before. While the servers
/// elect a leader, the session of `next` may end, and no server admits another one.
async fn lost_before_grant(guard: LockGuard, next: &LockManager) {
    let lost = async {
        let reason = guard.lost().await;
        (reason, BootClock.now())
    };
    let granted = async {
        loop {
            match next.lock("kept").wait(LONG).acquire().await {
                Err(LockError::Unavailable(_)) => tokio::time::sleep(RETRY).await,
                next => return (next.unwrap(), BootClock.now()),
            }
        }
    };
    let ((reason, lost), (next, granted)) = tokio::join!(lost, granted);
    assert_matches!(reason, LostReason::Expired | LostReason::SessionExpired);
    assert!(lost < granted, "{:?} after the grant", lost.since(granted));
    assert!(guard.token() < next.token());
    next.release().await;
}

/// The leader is cut off from its followers, but not from the holder. It stays in office for ten
/// minutes, and would answer reads and syncs. The others elect another leader, which ends the
/// session.
#[tokio::test]
async fn deposed_leader_keeps_no_lock_alive() {
    let ensemble = ZooKeeperEnsemble::start().await;
    let holder = LockManager::new(backend(&ensemble.address(2)));
    let others = format!("{},{}", ensemble.address(0), ensemble.address(1));
    let other = LockManager::new(backend(&others));
    let guard = holder.lock("kept").acquire().await.unwrap();
    ensemble.cut_leader_off().await;
    lost_before_grant(guard, &other).await;
    assert_eq!(ensemble.role(2).await.unwrap(), "leader");
}

/// The server of the holder stops right after it has confirmed a renewal. The leader has not yet
/// heard that the session is alive.
#[tokio::test]
async fn lock_is_lost_in_time_with_its_server() {
    #[derive(Debug, Clone, Default)]
    struct Renewed(std::sync::Arc<Notify>);
    impl LockHooks for Renewed {
        fn renewed(&self, _: usize, _: Duration, _: bool) {
            self.0.notify_one();
        }
    }
    let ensemble = ZooKeeperEnsemble::start().await;
    let renewed = Renewed::default();
    let builder = LockManager::builder(backend(&ensemble.address(0))).hooks(renewed.clone());
    let holder = builder.build();
    let other = LockManager::new(backend(&ensemble.address(1)));
    let guard = holder.lock("kept").acquire().await.unwrap();
    for _ in 0..2 {
        renewed.0.notified().await;
    }
    ensemble.stop(0).await;
    lost_before_grant(guard, &other).await;
}

/// The leader dies or stops. The holder finds another server, and keeps its lock.
#[rstest]
#[tokio::test]
async fn lock_outlives_its_leader(#[values(true, false)] dies: bool) {
    let ensemble = ZooKeeperEnsemble::start().await;
    let servers = [2, 0, 1].map(|server| ensemble.address(server)).join(",");
    let builder = ZooKeeperBackend::builder(&servers).session_timeout(SESSION * 5);
    let holder = LockManager::new(builder.build().unwrap());
    let guard = holder.lock("kept").acquire().await.unwrap();
    if dies {
        ensemble.kill(2);
    } else {
        ensemble.stop(2).await;
    }
    let other = LockManager::new(backend(&ensemble.address(1)));
    let waits = other.lock("kept").wait(SESSION * 3).acquire().await;
    waits.unwrap_err();
    guard.verify().await.unwrap();
    assert!(try_lock(&other, "kept").await.is_none());
    assert_matches!(guard.release().await, ReleaseOutcome::Released { .. });
    assert!(try_lock(&other, "kept").await.is_some());
}
