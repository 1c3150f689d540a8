//! Runtimes that end at once with all their tasks. On back ends without a server process, this
//! stands for a killed client process. Callers in other runtimes get an error.

#![expect(
    clippy::async_yields_async,
    reason = "a task is awaited after the end of another runtime"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures_executor::block_on;
use futures_util::FutureExt;
use stocklock_locks::backend::Fencing;
use stocklock_locks::clock::{BootClock, TokioClock};
use stocklock_locks::local::LocalBackend;
use stocklock_locks::memory::{MemoryServer, Question};
use stocklock_locks::{
    LockError, LockGuard, LockManager, LostReason, OncePer, ReleaseOutcome, Token,
};
use stocklock_testkit::assert_matches;
use tokio::runtime::{Builder, Runtime};

use crate::rig::{Counts, eventually, lost_reason};

const LEASE: Duration = Duration::from_millis(400);
const SOON: Duration = Duration::from_secs(10);

/// A simulated process: a runtime with one manager.
struct Process {
    runtime: Runtime,
    manager: LockManager,
}

impl Process {
    fn start(backend: impl Fencing<Token = Token>) -> Self {
        let mut runtime = Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().unwrap();
        let builder = LockManager::builder(backend).lease(LEASE);
        let manager = {
            let _inside = runtime.enter();
            builder.build()
        };
        Self { runtime, manager }
    }

    fn acquire(&self) -> tokio::task::JoinHandle<LockGuard> {
        let lock = self.manager.lock("held").wait(LEASE + SOON);
        self.runtime
            .spawn(async move { lock.acquire().await.unwrap() })
    }

    /// Ends all tasks at once, without cleanup.
    fn kill(self) {
        self.runtime.shutdown_background();
    }
}

/// One process holds the lock and two wait for it. The holder and the first waiter are killed.
async fn third_process_acquires([holder, first, second]: [Process; 3]) {
    let guard = holder.acquire().await.unwrap();
    let token = guard.token();
    let _never = first.acquire();
    let waits = async || first.manager.names() == 1;
    eventually("the first waiter waits", SOON, waits).await;
    let next = second.acquire();
    let waits = async || second.manager.names() == 1;
    eventually("the second waiter waits", SOON, waits).await;
    first.kill();
    let begin = tokio::time::Instant::now();
    holder.kill();
    let next = next.await.unwrap();
    assert!(begin.elapsed() < LEASE + SOON, "{:?}", begin.elapsed());
    assert!(token < next.token());
    assert!(guard.check().is_err());
    second.runtime.spawn(next.release()).await.unwrap();
    // The runtime of this guard is gone. Its lease has already expired.
    drop(guard);
    second.kill();
}

#[test]
fn lock_of_ended_runtime_goes_to_next_waiter_locally() {
    let backend = LocalBackend::new();
    // Outside a runtime, because they end runtimes.
    let processes = [(); 3].map(|()| Process::start(backend.clone()));
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(third_process_acquires(processes));
    assert_eq!(backend.held(), 0);
}

/// A manager on the model, with timers of its own runtime, which is not the one of its callers.
struct Elsewhere {
    server: MemoryServer,
    manager: LockManager,
    counts: Counts,
}

/// Starts an acquisition or release in the runtime of the caller, ends that of the manager, and returns
/// what the caller gets.
fn outcome_after_end<T>(start: impl AsyncFnOnce(&Elsewhere) -> tokio::task::JoinHandle<T>) -> T {
    let mut runtime = Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).enable_all().build().unwrap();
    let elsewhere = {
        let _inside = runtime.enter();
        let (server, counts) = (MemoryServer::new(TokioClock::new()), Counts::default());
        let manager = LockManager::builder(server.client()).clock(TokioClock::new());
        Elsewhere {
            manager: manager.hooks(counts.clone()).build(),
            server,
            counts,
        }
    };
    let caller = Builder::new_current_thread().enable_all().build().unwrap();
    let outcome = caller.block_on(async {
        let outcome = start(&elsewhere).await;
        // The future runs until it waits. The next poll is after the end of the runtime.
        tokio::task::yield_now().await;
        outcome
    });
    runtime.shutdown_timeout(SOON);
    caller.block_on(outcome).expect("it does not panic")
}

/// One acquisition waits in the local queue, and one pauses after an error. Without an order in `select!`, one
/// of three polls would begin with the timer.
#[test]
fn end_of_runtime_ends_waits_in_local_queue() {
    for _ in 0..20 {
        let refused = outcome_after_end(async |elsewhere| {
            let Elsewhere {
                server,
                manager,
                counts,
            } = elsewhere;
            let guard = manager.lock("held").acquire().await.unwrap();
            server.refuse_requests(Question::Acquire, u32::MAX);
            let queued = manager.lock("held").acquire();
            let paused = manager.lock("away").wait(LEASE * 100).acquire();
            let refused = tokio::spawn(async move {
                let (queued, paused) = tokio::join!(queued, paused);
                drop(guard);
                [queued.unwrap_err(), paused.unwrap_err()]
            });
            let fails = async || counts.failed() >= 3;
            eventually("attempts fail", SOON, fails).await;
            refused
        });
        for refused in refused {
            assert_matches!(refused, LockError::Shutdown);
        }
    }
}

/// The release waits for an answer, which is lost with the runtime.
#[test]
fn end_of_runtime_leaves_release_unconfirmed() {
    for _ in 0..20 {
        let outcome = outcome_after_end(async |elsewhere| {
            let guard = elsewhere.manager.lock("held").acquire().await.unwrap();
            elsewhere.server.delay_requests(Question::Release, 1);
            tokio::spawn(guard.release())
        });
        assert_matches!(outcome, ReleaseOutcome::Unconfirmed { .. });
    }
}

/// These requests run in the future of the caller. They wait for an answer that never comes.
#[test]
fn end_of_runtime_ends_requests_that_are_no_jobs() {
    for _ in 0..20 {
        let (pinged, verified, added) = outcome_after_end(async |elsewhere| {
            let manager = elsewhere.manager.clone();
            let guard = manager.lock("held").acquire().await.unwrap();
            elsewhere.server.pause();
            tokio::spawn(async move {
                let number = manager.number("hits");
                tokio::join!(manager.ping(), guard.verify(), number.add(1))
            })
        });
        assert!(pinged.unwrap_err().is_permanent());
        let verified = lost_reason(&verified.unwrap_err());
        assert_eq!(verified, Some(LostReason::Shutdown));
        assert_matches!(added.unwrap_err(), LockError::Shutdown);
    }
}

/// Connections, tasks and timers belong to the runtime of the manager.
#[test]
fn requests_need_no_runtime_of_the_caller() {
    let server = MemoryServer::new(BootClock);
    let process = Process::start(server.client());
    let manager = &process.manager;
    block_on(async {
        manager.ping().await.unwrap();
        let guard = manager.write("a").acquire().await.unwrap();
        guard.verify().await.unwrap();
        guard.extend(LEASE).await.unwrap();
        guard.downgrade().await.unwrap();
        let view = manager.read("a").inspect().await.unwrap();
        let nonce = view.holders[0].nonce;
        assert!(manager.read("a").revoke(nonce).await.unwrap());
        guard.release().await;

        let number = manager.number("n");
        assert_eq!(number.add(1).await.unwrap(), 1);
        let found = number.wait_for(SOON, |value| value == 1).await;
        assert_eq!(found.unwrap(), Some(1));
        let latch = manager.latch("l", 1);
        latch.arrive().await.unwrap();
        latch.wait(SOON).await.unwrap();
        let party = manager.barrier("b", 1).enter(SOON).await.unwrap();
        party.leave(SOON).await.unwrap();
        let job = manager.lock("job").once_per(SOON, async |_| ()).await;
        assert_matches!(job.unwrap(), OncePer::Ran(_));
    });
    process.kill();
}

#[derive(Default)]
struct Wakes(AtomicU32);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Tokio passes a task that wakes itself while it runs to another thread, which costs more than the
/// lock.
#[tokio::test]
async fn lock_does_not_wake_the_task_that_uses_it() {
    let manager = LockManager::new(LocalBackend::new());
    let counter = Arc::new(Wakes::default());
    let waker = Waker::from(Arc::clone(&counter));
    let mut context = Context::from_waker(&waker);
    let acquired = manager
        .lock("free")
        .acquire()
        .boxed()
        .poll_unpin(&mut context);
    let Poll::Ready(Ok(guard)) = acquired else {
        panic!("{acquired:?}");
    };
    let released = guard.release().boxed().poll_unpin(&mut context);
    assert_matches!(released, Poll::Ready(ReleaseOutcome::Released { .. }));
    assert_eq!(counter.0.load(Ordering::SeqCst), 0);
}
