//! Faults at an exact point of virtual time, on the model of a lock server.

use std::future::pending;
use std::task::Poll;
use std::time::Duration;

use futures_util::{FutureExt, poll};
use stocklock_locks::clock::{BootClock, TokioClock};
use stocklock_locks::memory::{MemoryServer, Question};
use stocklock_locks::{
    LockError, LockManager, LockState, LostReason, ManagerBuilder, ReleaseOutcome,
};
use stocklock_testkit::assert_matches;
use stocklock_testkit::run::rng;
use tokio::time::{Instant, sleep, timeout};

use crate::rig::{Counts, eventually, hand_over, loss};

mod admin;
mod limits;
mod multi;
mod refusals;

pub(super) const LEASE: Duration = Duration::from_secs(10);
pub(super) const RESPONSE: Duration = Duration::from_secs(1);

pub(super) fn server() -> MemoryServer {
    MemoryServer::new(TokioClock::new())
}

pub(super) fn manager(server: &MemoryServer) -> LockManager {
    let builder = builder(server, Duration::from_millis(2));
    builder.lease(LEASE).build()
}

/// A manager with the same latency that counts, and what it has counted.
pub(super) fn counted(server: &MemoryServer) -> (LockManager, Counts) {
    let counts = Counts::default();
    let builder = builder(server, Duration::from_millis(2)).hooks(counts.clone());
    (builder.lease(LEASE).build(), counts)
}

/// A builder of a manager whose requests and answers take this long.
fn builder(server: &MemoryServer, latency: Duration) -> ManagerBuilder {
    let backend = server.client().latency(latency);
    LockManager::builder(backend).clock(TokioClock::new())
}

#[tokio::test(start_paused = true)]
async fn lost_wake_up_costs_at_most_the_fallback() {
    for lock in [LockManager::lock, LockManager::write] {
        let server = server();
        let (one, other) = (manager(&server), manager(&server));
        let guard = lock(&one, "quiet").acquire().await.unwrap();
        let waiter = tokio::spawn(lock(&other, "quiet").acquire());
        sleep(Duration::from_millis(300)).await;
        server.lose_wake_ups(1);
        let begin = Instant::now();
        hand_over(guard, waiter).await;
        let took = begin.elapsed();
        let fallback = Duration::from_millis(500)..=Duration::from_secs(1);
        assert!(fallback.contains(&took), "{took:?}");
    }
}

/// Each waiter in the queue for permits misses the message that it is the first.
#[tokio::test(start_paused = true)]
async fn lost_wake_ups_of_permits_keep_their_order() {
    let server = server();
    let guard = manager(&server).write("quiet").acquire().await.unwrap();
    let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..5 {
        let (manager, sender) = (manager(&server), sender.clone());
        tokio::spawn(async move {
            let lock = manager.write("quiet").wait(LEASE * 3);
            let guard = lock.acquire().await.expect("the lock becomes free");
            sender.send(number).unwrap();
            guard.release().await;
        });
        sleep(Duration::from_millis(100)).await;
    }
    server.lose_wake_ups(u32::MAX);
    let begin = Instant::now();
    guard.release().await;
    for number in 0..5 {
        assert_eq!(order.recv().await, Some(number));
        let most = (number + 1) * Duration::from_secs(1);
        assert!(begin.elapsed() <= most, "{number}: {:?}", begin.elapsed());
    }
}

/// An acquisition spends most of its wait limit behind another task. The rest is too short for an
/// answer of this slow server. It reports the wait limit, not an unavailable server.
#[tokio::test(start_paused = true)]
async fn request_sent_too_late_for_an_answer_hits_wait_limit() {
    let server = server();
    let manager = builder(&server, Duration::from_millis(200)).build();
    let guard = manager.lock("slow").acquire().await.unwrap();
    let late = manager.lock("slow").wait(Duration::from_millis(700));
    let late = tokio::spawn(late.acquire());
    sleep(Duration::from_millis(200)).await;
    guard.release().await;
    let refused = late.await.unwrap().unwrap_err();
    assert_matches!(refused, LockError::WaitLimit { .. });
    // Without other holders, the server itself is too slow.
    let alone = manager.lock("other").wait(Duration::from_millis(100));
    let refused = alone.acquire().await.unwrap_err();
    assert_matches!(refused, LockError::Unavailable(_));
}

/// Waits in the local queue behind an unanswered request also report the server as unavailable.
#[tokio::test(start_paused = true)]
async fn paused_server_is_unavailable_not_busy() {
    let server = server();
    let manager = manager(&server);
    server.pause();
    let waits = [300, 600, 1_500, 1_700].map(Duration::from_millis);
    let refused = waits.map(|wait| tokio::spawn(manager.lock("frozen").wait(wait).acquire()));
    for (refused, wait) in refused.into_iter().zip(waits) {
        let refused = refused.await.unwrap().unwrap_err();
        let unavailable = matches!(refused, LockError::Unavailable(_));
        assert!(unavailable, "{wait:?}: {refused}");
    }
    // An acquisition that does not wait gives the server time for one answer.
    let begin = Instant::now();
    manager.lock("else").try_acquire().await.unwrap_err();
    assert!(begin.elapsed() < RESPONSE + Duration::from_millis(10));
}

/// Two tasks reach their wait limit at the same time, first the one that waits behind the other. The
/// reason is the lock while another client holds it, and the server while that is silent.
#[tokio::test(start_paused = true)]
async fn equal_wait_limits_report_the_same_reason() {
    let server = server();
    let (one, other) = (manager(&server), manager(&server));
    let wait = async || {
        let lock = one.lock("frozen").wait(RESPONSE / 2);
        let mut first = lock.clone().acquire().boxed();
        assert!(poll!(&mut first).is_pending());
        let (second, first) = futures_util::future::join(lock.acquire(), first).await;
        [first.unwrap_err(), second.unwrap_err()]
    };
    let guard = other.lock("frozen").acquire().await.unwrap();
    for refused in wait().await {
        assert_matches!(refused, LockError::WaitLimit { .. });
    }
    guard.release().await;
    server.pause();
    for refused in wait().await {
        assert_matches!(refused, LockError::Unavailable(_));
    }
}

/// A request that another task has just sent says nothing about the server.
#[tokio::test(start_paused = true)]
async fn short_wait_behind_a_request_is_no_failure() {
    let server = server();
    let manager = builder(&server, RESPONSE / 100).build();
    let mut first = manager.lock("free").acquire().boxed();
    assert!(poll!(&mut first).is_pending());
    assert!(manager.lock("free").try_acquire().await.unwrap().is_none());
    let short = manager.lock("free").wait(RESPONSE / 1_000).acquire();
    assert_matches!(short.await.unwrap_err(), LockError::WaitLimit { .. });
    first.await.unwrap().release().await;
}

/// Unanswered renewals make a guard suspect. The next successful renewal makes it held again.
#[tokio::test(start_paused = true)]
async fn guard_is_suspect_until_a_renewal_succeeds() {
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

/// The server is paused until the deadline has passed, and then executes all delayed renewals. The
/// guard stays lost, reported it within 2 ms of the deadline, and no lock is left.
#[tokio::test(start_paused = true)]
async fn renewal_that_arrives_after_loss_is_ignored() {
    let server = server();
    let begin = Instant::now();
    let guard = manager(&server).lock("late").acquire().await.unwrap();
    sleep(LEASE / 4).await;
    server.pause();
    let reason = guard.lost().await;
    assert_eq!(reason, LostReason::Expired);
    let deadline = LEASE * 9 / 10;
    let lost = begin.elapsed();
    let expected = deadline..=deadline + Duration::from_millis(2);
    assert!(expected.contains(&lost), "{lost:?}");
    server.resume();
    // The release is sent after the safety margin.
    sleep(LEASE * 9 / 100).await;
    assert_eq!(server.held(), 1);
    sleep(Duration::from_millis(200)).await;
    assert_eq!(guard.state(), LockState::Lost(LostReason::Expired));
    assert_eq!(server.held(), 0);
    let outcome = guard.release().await;
    assert_matches!(outcome, ReleaseOutcome::AlreadyLost { .. });
}

/// The server starts the new lease when it gets the renewal, so time that the answer takes counts.
#[tokio::test(start_paused = true)]
async fn renewed_validity_counts_from_sending() {
    let server = server();
    let latency = Duration::from_millis(300);
    let slow = builder(&server, latency).lease(LEASE).build();
    let guard = slow.lock("slow").acquire().await.unwrap();
    guard.extend(LEASE).await.unwrap();
    let remaining = guard.remaining();
    assert!(remaining + latency * 2 <= LEASE * 9 / 10, "{remaining:?}");
}

/// The answer takes longer than the lease, so the guard would be invalid at once.
#[tokio::test(start_paused = true)]
async fn grant_that_arrives_after_its_lease_is_released() {
    let server = server();
    let slow = builder(&server, Duration::from_millis(300)).build();
    let lock = slow.lock("slow").lease(Duration::from_millis(400));
    let error = lock.acquire().await.unwrap_err();
    assert_matches!(error, LockError::Unavailable(_));
    sleep(Duration::from_secs(2)).await;
    assert_eq!((server.held(), slow.held(), slow.names()), (0, 0, 0));
}

/// Each lock is counted once, according to the server's answer to its release, even if no caller
/// waits for that answer.
#[tokio::test(start_paused = true)]
async fn loss_found_at_release_is_counted_without_a_waiter() {
    let server = server();
    let (manager, counts) = counted(&server);
    let acquire = async || manager.lock("gone").acquire().await.unwrap();
    let counted = || (counts.released(), counts.lost(), counts.dropped());

    let guard = acquire().await;
    server.expire("gone");
    let outcome = guard.release().await;
    assert_matches!(outcome, ReleaseOutcome::AlreadyLost { .. });
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

    // The repeated release finds nothing, but the first one was executed: this is no loss.
    let guard = acquire().await;
    server.lose_answers(Question::Release, 1);
    let outcome = guard.release().await;
    assert_matches!(outcome, ReleaseOutcome::Unconfirmed { .. });
    assert_eq!(server.held(), 0);
    sleep(RESPONSE * 2).await;
    assert_eq!(counted(), (2, 3, 2));
}

#[tokio::test(start_paused = true)]
async fn run_returns_output_and_loss_found_at_release() {
    let server = server();
    let run = manager(&server).lock("gone").run(async |guard| {
        server.expire("gone");
        guard.check().unwrap();
        42
    });
    let ran = run.await.unwrap();
    assert_eq!(loss(ran.release), Some(LostReason::Stolen));
    assert_eq!(ran.output, 42);
}

/// The user drops the future of a body. That is no guard that was forgotten.
#[tokio::test(start_paused = true)]
async fn dropped_bodies_are_no_dropped_guards() {
    let server = server();
    let (manager, counts) = counted(&server);
    let run = manager.lock("run").run(async |_| pending::<()>().await);
    timeout(RESPONSE, run).await.unwrap_err();
    let lead = manager.lock("lead").lead(|_| pending::<()>());
    timeout(RESPONSE, lead).await.unwrap_err();
    sleep(RESPONSE).await;
    assert_eq!((counts.dropped(), counts.released()), (0, 2));
    assert_eq!(server.held(), 0);
}

/// A caller keeps futures without polling them.
#[tokio::test(start_paused = true)]
async fn shutdown_ends_futures_that_are_not_polled() {
    let server = server();
    let manager = manager(&server);
    let guard = manager.lock("held").acquire().await.unwrap();
    let mut release = Box::pin(guard.release());
    let mut acquisition = Box::pin(manager.lock("other").acquire());
    let mut queued = Box::pin(manager.lock("other").acquire());
    assert!(futures_util::poll!(&mut release).is_pending());
    assert!(futures_util::poll!(&mut acquisition).is_pending());
    assert!(futures_util::poll!(&mut queued).is_pending());
    let ended = tokio::time::timeout(RESPONSE * 5, manager.shutdown()).await;
    ended.expect("the shutdown ends");
    assert_eq!(server.held(), 0);
    assert_matches!(release.await, ReleaseOutcome::Released { .. });
    for refused in [acquisition, queued] {
        assert_matches!(refused.await.unwrap_err(), LockError::Shutdown);
    }
}

/// A task waits for its release when the manager is shut down. Nothing else wakes it.
#[tokio::test(start_paused = true)]
async fn shutdown_wakes_task_that_waits_for_its_release() {
    let server = server();
    let manager = manager(&server);
    let guard = manager.lock("held").acquire().await.unwrap();
    let release = tokio::spawn(guard.release());
    tokio::task::yield_now().await;
    manager.shutdown().await;
    let released = tokio::time::timeout(RESPONSE, release).await.unwrap();
    assert_matches!(released.unwrap(), ReleaseOutcome::Released { .. });
}

/// One thread drops futures while another thread completes their acquisitions.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn futures_dropped_on_completion_leave_nothing() {
    let server = MemoryServer::new(BootClock);
    let counts = Counts::default();
    let builder = LockManager::builder(server.client()).hooks(counts.clone());
    let manager = builder.build();
    for round in 0..20_000_u32 {
        let mut acquisition = Box::pin(manager.lock(&format!("n{}", round % 7)).acquire());
        if let Poll::Ready(guard) = futures_util::poll!(&mut acquisition) {
            guard.unwrap().release().await;
        }
        let pause = rng().u32(0..2_000);
        for _ in 0..pause {
            std::hint::spin_loop();
        }
    }
    let nothing = async || (manager.held(), manager.names(), server.held()) == (0, 0, 0);
    eventually("nothing is left", Duration::from_secs(5), nothing).await;
    assert_eq!((counts.dropped(), counts.lost()), (0, 0));
}
