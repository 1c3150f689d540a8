//! The lock manager, which acquires, renews and releases the locks of a process.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::api::builder::{LockBuilder, Options};
use crate::backend::{Backend, Claim, Fencing};
use crate::held::jobs::{Jobs, Running};
use crate::held::queue::LocalQueues;
use crate::held::release::{self, ReleaseJob};
use crate::held::watchdog::{Watchdog, WatchdogContext};
use crate::shared::clock::{Clock, default_clock};
use crate::shared::error::{BackendError, LostReason};
use crate::shared::metrics::{Hooks, LockHooks, NoHooks};
use crate::shared::token::Token;

/// Manages the locks on one lock server. A process needs one manager per server; clones are cheap.
///
/// The guards of `LockManager<()>` have no fencing token: see [`Fencing`].
///
/// A manager belongs to the Tokio runtime in which it was built: its connections, tasks and timers are there,
/// whichever runtime calls it, or none. Its tasks end after its last clone and its last guard are dropped.
#[derive(Debug)]
pub struct LockManager<T = Token>(Arc<Inner>, PhantomData<fn() -> T>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) hooks: Hooks,
    pub(crate) defaults: Options,
    pub(crate) queues: LocalQueues,
    pub(crate) permit_queues: LocalQueues,
    pub(crate) watchdog: Arc<Watchdog>,
    pub(crate) jobs: Jobs,
    /// Tracks the acquisitions in progress.
    pub(crate) acquisitions: TaskTracker,
    /// Tracks the releases in progress.
    releases: TaskTracker,
    /// Cancelled by the shutdown, and if the watchdog ends: no more acquisitions.
    pub(crate) closed: CancellationToken,
    hold_ids: AtomicU64,
    _stop_watchdog: DropGuard,
}

impl Inner {
    pub(crate) fn next_hold_id(&self) -> u64 {
        self.hold_ids.fetch_add(1, Ordering::Relaxed)
    }

    /// Releases a lock in the background. It does not block, and needs no runtime.
    pub(crate) fn release(&self, job: ReleaseJob) {
        self.jobs.spawn(self.tracked(job));
    }

    /// Releases a lock in the returned future. If it is dropped, the release continues in the
    /// background.
    pub(crate) fn run_release(&self, job: ReleaseJob) -> Running {
        self.jobs.run(self.tracked(job))
    }

    fn tracked(&self, job: ReleaseJob) -> impl Future<Output = ()> + Send + use<> {
        let context = WatchdogContext {
            backend: Arc::clone(&self.backend),
            clock: Arc::clone(&self.clock),
            hooks: self.hooks.clone(),
        };
        self.releases.track_future(release::run(context, job))
    }
}

impl<T> LockManager<T> {
    /// Creates a manager with default settings.
    ///
    /// # Panics
    /// Panics if it is called outside a Tokio runtime.
    #[must_use]
    pub fn new(backend: impl Fencing<Token = T>) -> Self {
        Self::builder(backend).build()
    }

    /// Creates a builder for a manager with other settings.
    pub fn builder(backend: impl Fencing<Token = T>) -> ManagerBuilder<T> {
        ManagerBuilder {
            backend: Arc::new(backend),
            clock: None,
            hooks: Arc::new(NoHooks),
            defaults: Options::default(),
            token: PhantomData,
        }
    }

    /// Starts to describe an acquisition of the lock with this name: 1 to 1,024 bytes of any text.
    pub fn lock(&self, name: &str) -> LockBuilder<T> {
        LockBuilder::new(self.clone(), name, Claim::Exclusive)
    }

    /// Starts to describe an acquisition of the read lock with this name. Other readers may hold it at
    /// the same time, but no writer.
    ///
    /// Read and write locks are granted in order of arrival, so a stream of readers does not keep a
    /// writer waiting. They exclude each other, but not the [lock](Self::lock) with the same name. Redis,
    /// ZooKeeper and the back ends without a server have them.
    pub fn read(&self, name: &str) -> LockBuilder<T> {
        LockBuilder::new(self.clone(), name, Claim::READ)
    }

    /// Starts to describe an acquisition of the write lock with this name. It has one holder. With this
    /// method alone, it is a mutex that is granted in order of arrival.
    pub fn write(&self, name: &str) -> LockBuilder<T> {
        LockBuilder::new(self.clone(), name, Claim::WRITE)
    }

    /// Starts to describe an acquisition of `take` of the `of` permits with this name: a semaphore. The
    /// permits are granted in order of arrival, renewed like a lock, and returned with the guard, or at
    /// the end of the lease.
    ///
    /// The latest request decides how many permits there are. If that number shrinks, holders keep
    /// theirs, and a waiter that wants more than there are now gets
    /// [`InvalidPermits`](crate::LockError::InvalidPermits). On ZooKeeper it waits until its wait limit,
    /// and those behind it wait too. Do not use a name for both permits and read-write locks: both count
    /// the same permits.
    pub fn permits(&self, name: &str, take: u32, of: u32) -> LockBuilder<T> {
        LockBuilder::new(self.clone(), name, Claim::Permits { take, of })
    }

    /// Returns the number of locks that this manager holds.
    #[must_use]
    pub fn held(&self) -> usize {
        self.0.watchdog.len()
    }

    /// Returns the number of lock names that tasks of this manager hold or wait for. A name with
    /// permits counts only while a task waits.
    #[must_use]
    pub fn names(&self) -> usize {
        self.0.queues.len() + self.0.permit_queues.len()
    }

    /// Checks that the lock server answers, in one round trip. Use it for readiness probes.
    ///
    /// It connects if there is no connection yet, and creates no lock, key or node. A success does
    /// not prove that the server would grant a lock: a Redis replica answers too.
    ///
    /// # Errors
    /// Returns an error if the server does not answer within the response limit of the back end, if
    /// it refuses the request, or if the manager was shut down.
    ///
    /// # Cancel safety
    /// The future may be dropped at any point.
    pub async fn ping(&self) -> Result<(), BackendError> {
        let inner = self.inner();
        let limit = inner.backend.properties().response_limit;
        let answer = inner.jobs.inside(async {
            tokio::select! {
                biased;
                () = inner.closed.cancelled() => {
                    Err(BackendError::permanent("the lock manager was shut down"))
                }
                answer = inner.backend.ping() => answer,
                () = inner.clock.sleep_until(inner.clock.now() + limit) => {
                    Err(BackendError::transient(format!("no answer within {limit:?}")))
                }
            }
        });
        let answer = answer.await;
        answer.map_err(|error| error.with_request(inner.backend.properties().name, "ping"))
    }

    /// Shuts the manager down: ends all acquisitions, releases all locks, and waits for the server's
    /// answers. Closes connections and sessions, unless another manager uses a clone of the back
    /// end.
    ///
    /// Call it after the work is done. A guard that still exists loses its lock with
    /// [`LostReason::Shutdown`], and the lock is released after its
    /// [safety margin](LockBuilder::safety_margin). If the server does not answer, the shutdown
    /// takes up to two leases.
    ///
    /// # Cancel safety
    /// The future may be dropped. The shutdown can then be completed with another call.
    pub async fn shutdown(&self) {
        self.0.closed.cancel();
        self.0.jobs.move_to_tasks();
        self.0.acquisitions.close();
        self.0.acquisitions.wait().await;
        self.0.watchdog.lose_all(LostReason::Shutdown);
        self.0.jobs.move_to_tasks();
        self.0.releases.close();
        self.0.releases.wait().await;
        self.0.backend.detach(&self.0.watchdog.nudge()).await;
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.0
    }
}

/// Not derived, because a clone needs no clone of a token.
impl<T> Clone for LockManager<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0), PhantomData)
    }
}

/// The settings of a [`LockManager`]. Created by [`LockManager::builder`].
#[derive(Debug)]
#[must_use = "it does nothing before build"]
pub struct ManagerBuilder<T = Token> {
    backend: Arc<dyn Backend>,
    clock: Option<Arc<dyn Clock>>,
    hooks: Arc<dyn LockHooks>,
    defaults: Options,
    token: PhantomData<fn() -> T>,
}

impl<T> ManagerBuilder<T> {
    /// Sets the clock. Default: the boot clock on Linux, otherwise the clock of the runtime.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }

    /// Sets the receiver of metrics. Default: none.
    pub fn hooks(mut self, hooks: impl LockHooks) -> Self {
        self.hooks = Arc::new(hooks);
        self
    }

    /// Sets the default wait limit of locks. Default: 5 s.
    pub fn wait(mut self, limit: Duration) -> Self {
        self.defaults.wait = limit;
        self
    }

    /// Sets the default lease of locks. Default: 10 s; minimum: 20 ms; maximum: 24 hours.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.defaults.set_lease(lease);
        self
    }

    /// Sets the default maximum hold time of locks, also of leaders. Default: 24 hours, and no limit for
    /// leaders. Minimum: 20 ms; maximum: 30 days.
    pub fn max_hold(mut self, limit: Duration) -> Self {
        self.defaults.set_max_hold(limit);
        self
    }

    /// Builds the manager and starts its tasks.
    ///
    /// # Panics
    /// Panics if it is called outside a Tokio runtime.
    #[must_use]
    pub fn build(self) -> LockManager<T> {
        let runtime = Handle::current();
        let context = WatchdogContext {
            backend: self.backend,
            clock: self.clock.unwrap_or_else(default_clock),
            hooks: Hooks(self.hooks),
        };
        let closed = CancellationToken::new();
        let watchdog = Arc::new(Watchdog::default());
        context.backend.attach(watchdog.nudge());
        let stopped = CancellationToken::new();
        let watch = Arc::clone(&watchdog).run(context.clone(), stopped.clone(), closed.clone());
        runtime.spawn(watch);
        let queues = LocalQueues::new(1 + context.backend.lookahead());
        let inner = Inner {
            backend: context.backend,
            clock: context.clock,
            hooks: context.hooks,
            defaults: self.defaults,
            queues,
            permit_queues: LocalQueues::new(1),
            watchdog,
            jobs: Jobs::new(runtime),
            acquisitions: TaskTracker::new(),
            releases: TaskTracker::new(),
            closed,
            hold_ids: AtomicU64::new(0),
            _stop_watchdog: stopped.drop_guard(),
        };
        LockManager(Arc::new(inner), PhantomData)
    }
}
