//! The lock manager, which acquires, renews and releases the locks of a process.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Backend, Fencing};
use crate::held::engine::Engine;
use crate::held::options::Options;
use crate::held::release::ReleaseContext;
use crate::shared::clock::{Clock, default_clock};
use crate::shared::error::BackendError;
use crate::shared::metrics::{Hooks, LockHooks, NoHooks};
use crate::shared::token::Token;

/// Manages the locks on one lock server. A process needs one manager per server; clones are cheap.
///
/// The guards of `LockManager<()>` have no fencing token: see [`Fencing`].
///
/// A manager belongs to the Tokio runtime in which it was built: its connections, tasks and timers are there,
/// whichever runtime calls it, or none. Its tasks end after its last clone and its last guard are dropped.
#[derive(Debug)]
pub struct LockManager<T = Token>(Arc<Engine>, PhantomData<fn() -> T>);

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
        let backend = &self.0.backend;
        let shutdown = || Err(BackendError::permanent("the lock manager was shut down"));
        let answer = self.0.ask(backend.ping()).await.unwrap_or_else(shutdown);
        answer.map_err(|error| error.with_request(backend.properties().name, "ping"))
    }

    /// Shuts the manager down: ends all acquisitions, releases all locks, and waits for the server's
    /// answers. Closes connections and sessions, unless another manager uses a clone of the back
    /// end.
    ///
    /// Call it after the work is done. A guard that still exists loses its lock with
    /// [`LostReason::Shutdown`](crate::LostReason::Shutdown), and the lock is released after its
    /// [safety margin](crate::LockBuilder::safety_margin). If the server does not answer, the shutdown
    /// takes up to two leases.
    ///
    /// # Cancel safety
    /// The future may be dropped. The shutdown can then be completed with another call.
    pub async fn shutdown(&self) {
        self.0.shutdown().await;
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
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
        let context = ReleaseContext {
            backend: self.backend,
            clock: self.clock.unwrap_or_else(default_clock),
            hooks: Hooks(self.hooks),
        };
        LockManager(Engine::start(context, self.defaults), PhantomData)
    }
}
