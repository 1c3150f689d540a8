//! Locks that are acquired together, on the model.

use std::time::Duration;

use stocklock_locks::{LockError, LostReason, MultiLock, ReleaseOutcome};
use stocklock_testkit::assert_matches;
use tokio::time::{Instant, sleep};

use super::{LEASE, manager, server};

/// Locks of two servers, of which each name is taken once: the write lock contains the read lock.
#[tokio::test(start_paused = true)]
async fn multi_lock_spans_managers_and_claims() {
    let servers = [server(), server()];
    let managers = [manager(&servers[0]), manager(&servers[1])];
    let locks = MultiLock::of([
        managers[1].lock("b"),
        managers[0].lock("b"),
        managers[1].lock("b"),
        managers[0].read("a"),
        managers[0].write("a"),
    ]);
    let guard = locks.acquire().await.unwrap();
    let held = [servers[0].held(), servers[1].held(), guard.guards().len()];
    assert_eq!(held, [2, 1, 3]);
    let reader = managers[0].read("a").try_acquire().await.unwrap();
    assert!(reader.is_none());
    servers[1].expire("b");
    assert_eq!(guard.lost().await, LostReason::Stolen);
    let outcome = guard.release().await;
    assert_matches!(outcome, ReleaseOutcome::AlreadyLost { .. });
    assert_eq!((servers[0].held(), servers[1].held()), (0, 0));
}

/// The first lock is lost while the acquisition waits for the second one.
#[tokio::test(start_paused = true)]
async fn loss_ends_wait_of_multi_lock_for_the_rest() {
    let server = server();
    let [one, other] = [manager(&server), manager(&server)];
    let holder = other.lock("b").acquire().await.unwrap();
    let locks = MultiLock::of([one.lock("a").wait(LEASE * 3), one.lock("b")]);
    let both = tokio::spawn(locks.acquire());
    sleep(Duration::from_secs(1)).await;
    server.expire("a");
    let begin = Instant::now();
    let error = both.await.unwrap().unwrap_err();
    assert_matches!(
        error,
        LockError::Lost {
            reason: LostReason::Stolen
        }
    );
    assert!(begin.elapsed() <= LEASE / 3, "{:?}", begin.elapsed());
    holder.release().await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!((server.held(), one.names()), (0, 0));
}
