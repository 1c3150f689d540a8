//! A server that refuses requests: what it refuses was not executed, and costs no other request.

use std::time::Duration;

use stocklock_locks::memory::Question;
use stocklock_locks::{LockError, LockManager, ReleaseOutcome};
use stocklock_testkit::assert_matches;
use tokio::time::sleep;

use super::{RESPONSE, builder, manager, server};

#[tokio::test(start_paused = true)]
async fn refused_acquisition_is_not_released() {
    for lock in [LockManager::lock, LockManager::write] {
        let server = server();
        // The answers take no time. A request that is on its way at the wait limit would be released.
        let manager = builder(&server, Duration::ZERO).build();
        server.refuse_requests(Question::Acquire, u32::MAX);
        let error = lock(&manager, "full").try_acquire().await.unwrap_err();
        assert_matches!(error, LockError::Unavailable(error) if !error.is_permanent());
        assert_eq!(server.requests(Question::Acquire), 1);
        let wait = lock(&manager, "full").wait(RESPONSE).acquire();
        assert_matches!(wait.await.unwrap_err(), LockError::Unavailable(_));
        assert!(server.requests(Question::Acquire) > 4);
        manager.shutdown().await;
        assert_eq!(server.requests(Question::Release), 0);
    }
}

/// The first request has no answer, and may still arrive. All later ones are refused.
#[tokio::test(start_paused = true)]
async fn refusal_says_nothing_about_an_earlier_request() {
    let server = server();
    let manager = manager(&server);
    server.delay_requests(Question::Acquire, 1);
    let wait = tokio::spawn(manager.lock("late").wait(RESPONSE * 3).acquire());
    sleep(RESPONSE / 2).await;
    server.refuse_requests(Question::Acquire, u32::MAX);
    assert_matches!(wait.await.unwrap().unwrap_err(), LockError::Unavailable(_));
    sleep(RESPONSE).await;
    assert_eq!(server.requests(Question::Release), 1);
    server.deliver();
    sleep(RESPONSE).await;
    assert_eq!(server.held(), 0);
}

/// The releases are refused for two leases, which are two hours here.
#[tokio::test(start_paused = true)]
async fn refused_release_is_repeated_each_few_seconds() {
    let server = server();
    let manager = manager(&server);
    let lock = manager.lock("long").lease(Duration::from_hours(1));
    let guard = lock.acquire().await.unwrap();
    server.refuse_requests(Question::Release, u32::MAX);
    let outcome = guard.release().await;
    assert_matches!(outcome, ReleaseOutcome::Unconfirmed { .. });
    manager.shutdown().await;
    let releases = server.requests(Question::Release);
    assert!((1_000..=2_500).contains(&releases), "{releases}");
}
