//! What needs a server that fails to order, at an instant of virtual time.

use std::task::Poll;
use std::time::Duration;

use stocklock_locks::clock::TokioClock;
use stocklock_locks::local::LocalBackend;
use stocklock_locks::memory::{MemoryServer, Question};
use stocklock_locks::{LockError, LockManager, LockState, LostReason, ReleaseOutcome};
use tokio::time::{Instant, sleep};

use crate::rig::{Counts, eventually};

const LEASE: Duration = Duration::from_secs(10);
const RESPONSE: Duration = Duration::from_secs(1);

fn server() -> MemoryServer {
    MemoryServer::new(TokioClock::new())
}

fn manager(server: &MemoryServer) -> LockManager {
    let backend = server.client().latency(Duration::from_millis(2));
    LockManager::builder(backend)
        .clock(TokioClock::new())
        .lease(LEASE)
        .build()
}

#[tokio::test(start_paused = true)]
async fn a_lost_wake_up_costs_at_most_the_fallback() {
    let server = server();
    let (one, other) = (manager(&server), manager(&server));
    let guard = one.lock("quiet").acquire().await.unwrap();
    let waiter = tokio::spawn(other.lock("quiet").acquire());
    sleep(Duration::from_millis(300)).await;
    server.lose_wake_ups(1);
    let begin = Instant::now();
    guard.release().await;
    waiter.await.unwrap().unwrap().release().await;
    assert!(
        begin.elapsed() <= Duration::from_secs(1),
        "{:?}",
        begin.elapsed()
    );
}

/// Its wait limit went by behind another one, and what was left is shorter than the server takes:
/// the server is slow, not away.
#[tokio::test(start_paused = true)]
async fn who_came_to_the_server_too_late_was_kept_waiting_by_others() {
    let server = server();
    let backend = server.client().latency(Duration::from_millis(200));
    let manager = LockManager::builder(backend)
        .clock(TokioClock::new())
        .build();
    let guard = manager.lock("slow").acquire().await.unwrap();
    let late = manager.lock("slow").wait(Duration::from_millis(700));
    let late = tokio::spawn(late.acquire());
    sleep(Duration::from_millis(200)).await;
    guard.release().await;
    let refused = late.await.unwrap().unwrap_err();
    assert!(matches!(refused, LockError::WaitLimit { .. }), "{refused}");
    // Who was kept waiting by nobody has only the server to blame.
    let alone = manager.lock("other").wait(Duration::from_millis(100));
    let refused = alone.acquire().await.unwrap_err();
    assert!(matches!(refused, LockError::Unavailable(_)), "{refused}");
}

/// The first request is overtaken by those that are told that the lock is busy, and arrives when
/// the lock is free and nobody wants it any more.
#[tokio::test(start_paused = true)]
async fn a_late_request_takes_nothing_although_others_were_answered() {
    let server = server();
    let guard = manager(&server).lock("busy").acquire().await.unwrap();
    server.delay_requests(Question::Acquire, 1);
    let counts = Counts::default();
    let late = LockManager::builder(server.client())
        .clock(TokioClock::new())
        .hooks(counts.clone())
        .build();
    let lock = late.lock("busy").wait(RESPONSE * 3);
    let refused = lock.acquire().await.unwrap_err();
    assert!(matches!(refused, LockError::WaitLimit { .. }), "{refused}");
    assert!(counts.attempts() > 2, "{}", counts.attempts());
    guard.release().await;
    server.deliver();
    sleep(Duration::from_millis(100)).await;
    assert_eq!(server.held(), 0);
}

/// A server that stands still keeps everybody waiting, also those who come to it so late that it
/// could not answer within their limit.
#[tokio::test(start_paused = true)]
async fn a_frozen_server_is_not_a_busy_lock() {
    let server = server();
    let manager = manager(&server);
    server.pause();
    let waits = [300, 600, 1_500, 1_700].map(Duration::from_millis);
    let refused = waits.map(|wait| tokio::spawn(manager.lock("frozen").wait(wait).acquire()));
    for (refused, wait) in refused.into_iter().zip(waits) {
        let refused = refused.await.unwrap().unwrap_err();
        let is_told = matches!(refused, LockError::Unavailable(_));
        assert!(is_told, "{wait:?}: {refused}");
    }
}

/// Renewals that get no answer make a guard suspect, and the next one that does mends it.
#[tokio::test(start_paused = true)]
async fn a_guard_is_suspect_while_renewals_fail_and_then_held_again() {
    let server = server();
    let guard = manager(&server).lock("kept").acquire().await.unwrap();
    let before = guard.valid_until();
    server.lose_requests(Question::Renew, 3);
    sleep(LEASE / 3 + Duration::from_millis(100)).await;
    assert_eq!(guard.state(), LockState::Suspect);
    guard.check().unwrap();
    assert_eq!(guard.valid_until(), before);
    sleep(LEASE / 3).await;
    assert_eq!(guard.state(), LockState::Held);
    assert!(guard.valid_until() > before);
}

/// The server is silent until the deadline has passed, and then carries out every renewal that was
/// on its way. The loss stays, the deadline was kept to the millisecond, and no lock is left.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_arrives_after_the_loss_is_not_believed() {
    let server = server();
    let begin = Instant::now();
    let guard = manager(&server).lock("late").acquire().await.unwrap();
    sleep(LEASE / 4).await;
    server.pause();
    let reason = guard.lost().await;
    assert_eq!(reason, LostReason::Expired);
    let deadline = LEASE * 9 / 10;
    let late = begin.elapsed().checked_sub(deadline);
    assert!(
        late.is_some_and(|late| late <= Duration::from_millis(2)),
        "{late:?}"
    );
    server.resume();
    sleep(Duration::from_millis(100)).await;
    assert_eq!(guard.state(), LockState::Lost(LostReason::Expired));
    assert_eq!(server.held(), 0);
    let outcome = guard.release().await;
    assert!(
        matches!(outcome, ReleaseOutcome::AlreadyLost { .. }),
        "{outcome:?}"
    );
}

/// A grant whose answer takes longer than the lease is worth nothing, and is given back.
#[tokio::test(start_paused = true)]
async fn a_grant_that_comes_too_late_is_given_back() {
    let server = server();
    let backend = server.client().latency(Duration::from_millis(300));
    let slow = LockManager::builder(backend)
        .clock(TokioClock::new())
        .build();
    let lock = slow.lock("slow").lease(Duration::from_millis(400));
    let error = lock.acquire().await.unwrap_err();
    assert!(matches!(error, LockError::Unavailable(_)), "{error}");
    sleep(Duration::from_secs(2)).await;
    assert_eq!((server.held(), slow.held(), slow.names()), (0, 0, 0));
}

/// The answer to a release is lost: its caller is told so, and the lock is free.
#[tokio::test(start_paused = true)]
async fn a_release_without_an_answer_is_unconfirmed() {
    let server = server();
    let guard = manager(&server).lock("said").acquire().await.unwrap();
    server.lose_answers(Question::Release, 1);
    let outcome = guard.release().await;
    assert!(
        matches!(outcome, ReleaseOutcome::Unconfirmed { .. }),
        "{outcome:?}"
    );
    assert_eq!(server.held(), 0);
}

/// Each lock is counted once, by what the server says of its release, whoever has heard that.
#[tokio::test(start_paused = true)]
async fn a_loss_found_at_the_release_is_counted_also_when_nobody_waits_for_it() {
    let server = server();
    let counts = Counts::default();
    let backend = server.client().latency(Duration::from_millis(2));
    let manager = LockManager::builder(backend)
        .clock(TokioClock::new())
        .hooks(counts.clone())
        .build();
    let acquire = async || manager.lock("gone").acquire().await.unwrap();
    let counted = || (counts.released(), counts.lost(), counts.dropped());

    let guard = acquire().await;
    server.expire("gone");
    let outcome = guard.release().await;
    let is_lost = matches!(outcome, ReleaseOutcome::AlreadyLost { .. });
    assert!(is_lost, "{outcome:?}");
    assert_eq!(counted(), (0, 1, 0));

    let guard = acquire().await;
    server.expire("gone");
    let release = Box::pin(guard.release());
    assert!(futures_util::poll!(release).is_pending());
    sleep(Duration::from_millis(10)).await;
    assert_eq!(counted(), (0, 2, 0));

    let guard = acquire().await;
    server.expire("gone");
    drop(guard);
    sleep(Duration::from_millis(10)).await;
    assert_eq!(counted(), (0, 3, 1));

    drop(acquire().await);
    sleep(Duration::from_millis(10)).await;
    assert_eq!(counted(), (1, 3, 2));

    // Asked twice, the server knows nothing of it: it was held to the end.
    let guard = acquire().await;
    server.lose_answers(Question::Release, 1);
    guard.release().await;
    sleep(RESPONSE * 2).await;
    assert_eq!(counted(), (2, 3, 2));
}

#[tokio::test(start_paused = true)]
async fn run_tells_of_a_loss_that_only_the_release_found() {
    let server = server();
    let run = manager(&server).lock("gone").run(async |guard| {
        server.expire("gone");
        guard.check().unwrap();
    });
    let lost = run.await.unwrap_err();
    let is_stolen = matches!(
        lost,
        LockError::Lost {
            reason: LostReason::Stolen
        }
    );
    assert!(is_stolen, "{lost}");
}

/// A server that never answers costs the wait limit, or for a single try its response limit.
#[tokio::test(start_paused = true)]
async fn a_silent_server_costs_no_more_than_the_limits() {
    let server = server();
    let manager = manager(&server);
    server.pause();
    let limit = Duration::from_millis(250);
    let begin = Instant::now();
    manager
        .lock("away")
        .wait(limit)
        .acquire()
        .await
        .unwrap_err();
    assert!(begin.elapsed() < limit + Duration::from_millis(10));
    let begin = Instant::now();
    manager.lock("else").try_acquire().await.unwrap_err();
    assert!(begin.elapsed() < RESPONSE + Duration::from_millis(10));
}

/// Futures dropped by one thread while another completes their acquisitions.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn futures_dropped_as_they_complete_leave_nothing() {
    let backend = LocalBackend::new();
    let counts = Counts::default();
    let builder = LockManager::builder(backend.clone()).hooks(counts.clone());
    let manager = builder.build();
    for round in 0..20_000_u32 {
        let mut acquisition = Box::pin(manager.lock(&format!("n{}", round % 7)).acquire());
        if let Poll::Ready(guard) = futures_util::poll!(&mut acquisition) {
            guard.unwrap().release().await;
        }
        for _ in 0..fastrand::u32(0..2_000) {
            std::hint::spin_loop();
        }
    }
    let nothing = async || (manager.held(), manager.names(), backend.held()) == (0, 0, 0);
    eventually("nothing is left", Duration::from_secs(5), nothing).await;
    assert_eq!((counts.dropped(), counts.lost()), (0, 0));
}
