//! The one who acquires, renews and releases, for a whole process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::backend::Backend;
use crate::builder::{LockBuilder, Options};
use crate::clock::{Clock, default_clock};
use crate::error::{BackendError, LostReason};
use crate::metrics::{LockHooks, NoHooks};
use crate::queue::Queue;
use crate::release::{self, Order, ReleaseJob};
use crate::watchdog::{Means, Watchdog};

/// Locks of one server; one for each process and server, cloned freely.
///
/// It belongs to the Tokio runtime in which it was made. Its tasks end with its last clone and the
/// last guard.
#[derive(Debug, Clone)]
pub struct LockManager(Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) hooks: Arc<dyn LockHooks>,
    pub(crate) defaults: Options,
    pub(crate) queue: Queue,
    pub(crate) watchdog: Arc<Watchdog>,
    pub(crate) runtime: Handle,
    /// Acquisitions under way.
    pub(crate) acquisitions: TaskTracker,
    /// No more acquisitions.
    pub(crate) closed: CancellationToken,
    orders: mpsc::UnboundedSender<Order>,
    holds: AtomicU64,
    _watchdog: DropGuard,
}

impl Inner {
    pub(crate) fn next_hold_id(&self) -> u64 {
        self.holds.fetch_add(1, Ordering::Relaxed)
    }

    /// Has a lock given up; neither blocks nor needs a runtime.
    pub(crate) fn release(&self, job: ReleaseJob) {
        // Without its task, which only the runtime's end stops early, the lease is what is left.
        let _ = self.orders.send(Order::Release(job));
    }
}

impl LockManager {
    /// A manager with default settings.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    #[must_use]
    pub fn new(backend: impl Backend) -> Self {
        Self::builder(backend).build()
    }

    /// A manager with settings of its own.
    pub fn builder(backend: impl Backend) -> ManagerBuilder {
        ManagerBuilder {
            backend: Arc::new(backend),
            clock: None,
            hooks: Arc::new(NoHooks),
            defaults: Options::default(),
        }
    }

    /// Describes the acquisition of the lock with this name: any text of 1 to 1,024 bytes.
    pub fn lock(&self, name: &str) -> LockBuilder {
        LockBuilder::new(self.clone(), name)
    }

    /// How many locks this manager holds now.
    #[must_use]
    pub fn held(&self) -> usize {
        self.0.watchdog.len()
    }

    /// How many names somebody in this process holds or waits for.
    #[must_use]
    pub fn names(&self) -> usize {
        self.0.queue.len()
    }

    /// Asks the lock server for a sign of life, in one round trip; for readiness probes.
    ///
    /// It connects where nothing has connected yet, and creates no lock, key or node. That the
    /// server answers does not prove that it would grant a lock: a replica of Redis answers too.
    ///
    /// # Errors
    /// When there is no answer within the back end's response limit, or a refusal, or when the
    /// manager was shut down.
    ///
    /// # Cancel safety
    /// May be dropped at any point.
    pub async fn ping(&self) -> Result<(), BackendError> {
        let inner = self.inner();
        let limit = inner.backend.response_limit();
        let answer = tokio::select! {
            biased;
            () = inner.closed.cancelled() => {
                Err(BackendError::permanent("the lock manager was shut down"))
            }
            answer = inner.backend.ping() => answer,
            () = inner.clock.sleep_until(inner.clock.now() + limit) => {
                Err(BackendError::transient(format!("no answer within {limit:?}")))
            }
        };
        answer.map_err(|error| error.asked(inner.backend.name(), "ping"))
    }

    /// Stops acquiring, gives up everything that is held, waits until the server knows, and ends
    /// connections and sessions.
    ///
    /// Call it when the work is done: a guard that is still alive is lost, with
    /// [`LostReason::Shutdown`]. A server that gives no answer is waited for up to two leases.
    ///
    /// # Cancel safety
    /// May be dropped, and called again.
    pub async fn shutdown(&self) {
        self.0.closed.cancel();
        self.0.acquisitions.close();
        self.0.acquisitions.wait().await;
        self.0.watchdog.lose_all(LostReason::Shutdown);
        let (done, is_done) = oneshot::channel();
        if self.0.orders.send(Order::Drain(done)).is_ok() {
            // An error means that the task has ended, with nothing left to do.
            let _ = is_done.await;
        }
        self.0.backend.close().await;
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.0
    }
}

/// Settings of a [`LockManager`].
#[derive(Debug)]
#[must_use = "it does nothing before build"]
pub struct ManagerBuilder {
    backend: Arc<dyn Backend>,
    clock: Option<Arc<dyn Clock>>,
    hooks: Arc<dyn LockHooks>,
    defaults: Options,
}

impl ManagerBuilder {
    /// The clock; on Linux the boot clock unless told.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }

    /// Who counts; nobody unless told.
    pub fn hooks(mut self, hooks: impl LockHooks) -> Self {
        self.hooks = Arc::new(hooks);
        self
    }

    /// The wait limit of locks that name none; 5 s unless told.
    pub fn wait(mut self, limit: Duration) -> Self {
        self.defaults.wait = limit;
        self
    }

    /// The lease of locks that name none; 10 s unless told.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.defaults.set_lease(lease);
        self
    }

    /// The longest hold of locks that name none; without a bound unless told.
    pub fn max_hold(mut self, limit: Duration) -> Self {
        self.defaults.max_hold = Some(limit);
        self
    }

    /// Starts the manager's tasks.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    #[must_use]
    pub fn build(self) -> LockManager {
        let runtime = Handle::current();
        let means = Means {
            backend: self.backend,
            clock: self.clock.unwrap_or_else(default_clock),
            hooks: self.hooks,
        };
        let watchdog = Arc::new(Watchdog::default());
        means.backend.attach(watchdog.nudge());
        let ended = CancellationToken::new();
        runtime.spawn(Arc::clone(&watchdog).run(means.clone(), ended.clone()));
        let (orders, inbox) = mpsc::unbounded_channel();
        runtime.spawn(release::run(means.clone(), inbox));
        LockManager(Arc::new(Inner {
            backend: means.backend,
            clock: means.clock,
            hooks: means.hooks,
            defaults: self.defaults,
            queue: Queue::default(),
            watchdog,
            runtime,
            acquisitions: TaskTracker::new(),
            closed: CancellationToken::new(),
            orders,
            holds: AtomicU64::new(0),
            _watchdog: ended.drop_guard(),
        }))
    }
}
