//! Losses, late requests and failing hooks at an exact point of virtual time, on the model of a lock
//! server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use stocklock_locks::clock::{Clock, Moment, TokioClock};
use stocklock_locks::memory::Question;
use stocklock_locks::metrics::{AttemptOutcome, LockHooks, NotAcquired};
use stocklock_locks::{LockError, LockManager, LostReason, OncePer, ReleaseOutcome};
use stocklock_testkit::assert_matches;
use tokio::time::{Instant, sleep, timeout};

use super::model::{LEASE, RESPONSE, manager, server};
use crate::rig::{loss, lost_reason, try_lock};

const MOMENT: Duration = Duration::from_millis(50);

/// The first attempt times out. It arrives after the server has forgotten the lock of the second one.
#[tokio::test(start_paused = true)]
async fn late_duplicate_of_lost_acquire_takes_nothing() {
    let server = server();
    let manager = manager(&server);
    server.delay_requests(Question::Acquire, 1);
    let lock = manager.lock("twice").wait(RESPONSE * 3);
    let guard = lock.acquire().await.unwrap();
    server.expire("twice");
    assert_eq!(guard.lost().await, LostReason::Stolen);
    sleep(MOMENT).await;
    server.deliver();
    sleep(MOMENT).await;
    assert_eq!(server.held(), 0);
}

/// Each method panics. The watchdog, the releases and the acquisitions continue.
#[tokio::test(start_paused = true)]
async fn panicking_hooks_stop_nothing() {
    #[derive(Debug)]
    struct Panics;
    impl LockHooks for Panics {
        fn started(&self, _: &'static str) {
            panic!("started");
        }
        fn acquired(&self, _: &'static str, _: Duration, _: bool) {
            panic!("acquired");
        }
        fn not_acquired(&self, _: &'static str, _: Duration, _: NotAcquired) {
            panic!("not acquired");
        }
        fn attempted(&self, _: &'static str, _: AttemptOutcome) {
            panic!("attempted");
        }
        fn renewed(&self, _: usize, _: Duration, _: bool) {
            panic!("renewed");
        }
        fn released(&self, _: &'static str, _: Duration) {
            panic!("released");
        }
        fn lost(&self, _: &'static str, _: Duration, _: LostReason) {
            panic!("lost");
        }
        fn guard_dropped(&self, _: &'static str) {
            panic!("dropped");
        }
    }
    let server = server();
    let builder = LockManager::builder(server.client()).clock(TokioClock::new());
    let manager = builder.lease(LEASE).hooks(Panics).build();
    let short = manager.lock("lost").max_hold(LEASE / 2);
    let lost = short.acquire().await.unwrap();
    let guard = manager.lock("kept").acquire().await.unwrap();
    assert!(try_lock(&manager, "kept").await.is_none());
    assert_eq!(lost.lost().await, LostReason::MaxHold);
    sleep(LEASE * 3).await;
    guard.verify().await.unwrap();
    assert_matches!(guard.release().await, ReleaseOutcome::Released { .. });
    drop(manager.lock("dropped").acquire().await.unwrap());
    sleep(MOMENT).await;
    assert_eq!((server.held(), manager.held(), manager.names()), (0, 0, 0));
    manager.shutdown().await;
}

/// A task that hangs does not keep its lock for as long as its process runs. A leader does.
#[tokio::test(start_paused = true)]
async fn hold_without_limit_ends_after_a_day() {
    let server = server();
    let manager = manager(&server);
    let leader = manager.lock("leader").campaign().await.unwrap();
    let begin = Instant::now();
    let hung = manager.lock("hung").acquire().await.unwrap();
    let day = Duration::from_hours(24);
    let lost = timeout(day * 2, hung.lost()).await;
    assert_eq!(lost.expect("it is lost"), LostReason::MaxHold);
    let held = begin.elapsed();
    assert!(held >= day && held < day + LEASE, "{held:?}");
    leader.verify().await.unwrap();
}

type Action = Box<dyn FnOnce() + Send>;

/// A clock that does something when it is read for the next time.
#[derive(Clone)]
struct Trap(TokioClock, Arc<Mutex<Option<Action>>>);

impl std::fmt::Debug for Trap {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Trap")
    }
}

impl Clock for Trap {
    fn now(&self) -> Moment {
        let sprung = self.1.lock().unwrap().take();
        if let Some(sprung) = sprung {
            sprung();
        }
        self.0.now()
    }

    fn sleep_until(&self, moment: Moment) -> BoxFuture<'static, ()> {
        self.0.sleep_until(moment)
    }
}

/// The lock is lost after the release has checked it, and before it has left.
#[tokio::test(start_paused = true)]
async fn loss_during_release_is_reported() {
    let server = server();
    let trap = Trap(TokioClock::new(), Arc::default());
    let builder = LockManager::builder(server.client()).clock(trap.clone());
    let manager = builder.lease(LEASE).build();
    let guard = manager.lock("raced").acquire().await.unwrap();
    let stops = manager.clone();
    *trap.1.lock().unwrap() = Some(Box::new(move || {
        // This loses all locks, and then waits for their releases.
        assert!(stops.shutdown().now_or_never().is_none());
    }));
    assert_eq!(loss(guard.release().await), Some(LostReason::Shutdown));
}

/// A reconnect makes the manager renew its locks. That is no renewal of a limited lock.
#[tokio::test(start_paused = true)]
async fn renewal_after_reconnect_does_not_count() {
    let server = server();
    let manager = manager(&server);
    let lock = manager.lock("limited").max_renewals(2);
    let guard = lock.clone().acquire().await.unwrap();
    let begin = Instant::now();
    let never = manager.lock("never").max_renewals(0).acquire();
    let never = never.await.unwrap();
    let deadline = never.valid_until();
    for _ in 0..4 {
        server.cause_renewals();
        sleep(MOMENT).await;
    }
    assert_eq!(never.valid_until(), deadline);
    assert_eq!(guard.lost().await, LostReason::MaxRenewals);
    let expected = LEASE * 2 / 3 + LEASE * 9 / 10;
    let took = begin.elapsed();
    assert!(
        took + MOMENT > expected && took < expected + MOMENT,
        "{took:?}"
    );
    // It detects a loss at once.
    let guard = lock.wait(LEASE).acquire().await.unwrap();
    server.expire("limited");
    server.cause_renewals();
    sleep(MOMENT).await;
    guard.check().unwrap_err();
}

/// A clock breaks, and the watchdog with it. The locks are lost, and no other is acquired.
#[tokio::test(start_paused = true)]
async fn locks_are_lost_if_the_watchdog_ends() {
    #[derive(Debug, Clone)]
    struct Breaks(TokioClock, Arc<AtomicBool>);
    impl Clock for Breaks {
        fn now(&self) -> Moment {
            self.0.now()
        }
        fn sleep_until(&self, moment: Moment) -> BoxFuture<'static, ()> {
            assert!(!self.1.load(Ordering::SeqCst), "no timer");
            self.0.sleep_until(moment)
        }
    }
    let server = server();
    let clock = Breaks(TokioClock::new(), Arc::default());
    let builder = LockManager::builder(server.client()).clock(clock.clone());
    let manager = builder.lease(LEASE).build();
    let guard = manager.lock("kept").acquire().await.unwrap();
    clock.1.store(true, Ordering::SeqCst);
    // The renewal wakes the watchdog, which then sets a timer.
    server.cause_renewals();
    sleep(MOMENT).await;
    clock.1.store(false, Ordering::SeqCst);
    let error = guard.check().unwrap_err();
    assert_eq!(lost_reason(&error), Some(LostReason::Shutdown));
    let error = manager.lock("next").acquire().await.unwrap_err();
    assert_matches!(error, LockError::Shutdown);
    sleep(LEASE).await;
    assert_eq!(server.held(), 0);
}

/// A long extension does not slow the renewals down, which detect a lock that was taken away.
#[tokio::test(start_paused = true)]
async fn renewals_keep_their_pace_after_extend() {
    let server = server();
    let guard = manager(&server).lock("long").acquire().await.unwrap();
    guard.extend(Duration::from_hours(1)).await.unwrap();
    for _ in 0..3 {
        sleep(LEASE).await;
        guard.check().unwrap();
    }
    assert!(guard.remaining() > LEASE * 10);
    server.expire("long");
    let begin = Instant::now();
    assert_eq!(guard.lost().await, LostReason::Stolen);
    assert!(begin.elapsed() < LEASE / 2, "{:?}", begin.elapsed());
}

/// The server starts the period, but its answer is lost. The repeated request finds the period of this
/// acquisition, so the job runs. Without any answer it does not run, and is not due either.
#[tokio::test(start_paused = true)]
async fn period_with_lost_answer_starts_once() {
    let server = server();
    let manager = manager(&server);
    let day = Duration::from_hours(24);
    let job = async || manager.lock("job").once_per(day, async |_| ()).await;
    server.lose_answers(Question::Period, 1);
    assert_matches!(job().await.unwrap(), OncePer::Ran(_));
    assert_matches!(job().await.unwrap(), OncePer::NotDue { .. });
    sleep(day).await;
    server.lose_answers(Question::Period, u32::MAX);
    assert_matches!(job().await.unwrap_err(), LockError::Unavailable(_));
    server.lose_answers(Question::Period, 0);
    assert_matches!(job().await.unwrap(), OncePer::NotDue { .. });
    assert_eq!(server.held(), 0);
}

/// The candidate waits until the server answers, longer than any wait limit.
#[tokio::test(start_paused = true)]
async fn candidacy_outlasts_silent_server() {
    let server = server();
    let manager = manager(&server);
    server.pause();
    let candidate = tokio::spawn(manager.lock("leader").campaign());
    sleep(Duration::from_hours(1)).await;
    server.resume();
    let leader = candidate.await.unwrap().unwrap();
    leader.verify().await.unwrap();
    leader.release().await;
}
