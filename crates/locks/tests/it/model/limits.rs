//! Limits that no setting can exceed.

use std::time::Duration;

use stocklock_locks::{LockError, LostReason};
use stocklock_testkit::assert_matches;
use tokio::time::{Instant, timeout};

use super::{LEASE, manager, server};

#[tokio::test(start_paused = true)]
async fn lock_has_at_most_a_thousand_guards() {
    let server = server();
    let guard = manager(&server).lock("shared").acquire().await.unwrap();
    let guards: Vec<_> = (1..1_000).map(|_| guard.reenter().unwrap()).collect();
    let error = guard.reenter().unwrap_err();
    assert_matches!(error, LockError::ReentryLimit { limit: 1_000 });
    for other in guards {
        other.release().await;
    }
    let again = guard.reenter().unwrap();
    guard.release().await;
    again.check().unwrap();
    again.release().await;
    assert_eq!(server.held(), 0);
}

/// Settings that would let a dead or hanging holder keep its lock for ever, or lose it at once.
#[tokio::test(start_paused = true)]
async fn leases_and_holds_have_limits() {
    const DAY: Duration = Duration::from_hours(24);
    let server = server();
    let (one, other) = (manager(&server), manager(&server));
    let begin = Instant::now();
    let lock = one.lock("dead").lease(Duration::MAX).max_renewals(0);
    let guard = lock.acquire().await.unwrap();
    guard.extend(Duration::MAX).await.unwrap();
    let next = other.lock("dead").wait(DAY * 2).acquire().await;
    assert!(begin.elapsed() < DAY + LEASE, "{:?}", begin.elapsed());
    next.unwrap().release().await;
    let guard = one.lock("hung").lease(DAY).max_hold(Duration::MAX);
    let guard = guard.acquire().await;
    let lost = timeout(DAY * 31, guard.unwrap().lost()).await;
    assert_eq!(lost.expect("it is lost"), LostReason::MaxHold);
    let guard = one.lock("short").max_hold(Duration::ZERO).acquire().await;
    assert_eq!(guard.unwrap().lost().await, LostReason::MaxHold);
}
