//! The state of a manager, which its guards and tasks share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::runtime::Handle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::backend::Backend;
use crate::held::jobs::{Jobs, Running};
use crate::held::options::Options;
use crate::held::queue::LocalQueues;
use crate::held::release::{self, ReleaseContext, ReleaseJob};
use crate::held::watchdog::Watchdog;
use crate::shared::clock::Clock;
use crate::shared::error::{BackendError, LockError, LostReason};
use crate::shared::metrics::Hooks;

#[derive(Debug)]
pub(crate) struct Engine {
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

impl Engine {
    /// Registers a manager at its back end, and starts its watchdog.
    ///
    /// # Panics
    /// Panics if it is called outside a Tokio runtime.
    pub(crate) fn start(context: ReleaseContext, defaults: Options) -> Arc<Self> {
        let runtime = Handle::current();
        let closed = CancellationToken::new();
        let watchdog = Arc::new(Watchdog::default());
        context.backend.attach(watchdog.nudge());
        let stopped = CancellationToken::new();
        let watch = Arc::clone(&watchdog).run(context.clone(), stopped.clone(), closed.clone());
        runtime.spawn(watch);
        Arc::new(Self {
            queues: LocalQueues::new(1 + context.backend.properties().lookahead),
            permit_queues: LocalQueues::new(1),
            backend: context.backend,
            clock: context.clock,
            hooks: context.hooks,
            defaults,
            watchdog,
            jobs: Jobs::new(runtime),
            acquisitions: TaskTracker::new(),
            releases: TaskTracker::new(),
            closed,
            hold_ids: AtomicU64::new(0),
            _stop_watchdog: stopped.drop_guard(),
        })
    }

    pub(crate) async fn shutdown(&self) {
        self.closed.cancel();
        self.jobs.move_to_tasks();
        self.acquisitions.close();
        self.acquisitions.wait().await;
        self.watchdog.lose_all(LostReason::Shutdown);
        self.jobs.move_to_tasks();
        self.releases.close();
        self.releases.wait().await;
        self.backend.detach(&self.watchdog.nudge()).await;
    }

    /// Sends a request in the manager's runtime, and waits for its answer, but not longer than the response
    /// limit. `None` if the manager was shut down.
    pub(crate) async fn ask<A>(
        &self,
        request: impl Future<Output = Result<A, BackendError>>,
    ) -> Option<Result<A, BackendError>> {
        let limit = self.backend.properties().response_limit;
        let answer = self.until_closed(async {
            tokio::select! {
                biased;
                answer = request => answer,
                () = self.clock.sleep_until(self.clock.now() + limit) => {
                    Err(BackendError::transient(format!("no answer within {limit:?}")))
                }
            }
        });
        answer.await
    }

    /// Polls a future in the manager's runtime. `None` if the manager was shut down.
    pub(crate) async fn until_closed<A>(&self, answer: impl Future<Output = A>) -> Option<A> {
        let answer = self.jobs.inside(async {
            tokio::select! {
                biased;
                () = self.closed.cancelled() => None,
                answer = answer => Some(answer),
            }
        });
        answer.await
    }

    /// Adds the kind of server and the request to an error.
    pub(crate) fn failed(&self, request: impl Into<String>, error: BackendError) -> LockError {
        LockError::Unavailable(error.with_request(self.backend.properties().name, request))
    }

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
        let context = ReleaseContext {
            backend: Arc::clone(&self.backend),
            clock: Arc::clone(&self.clock),
            hooks: self.hooks.clone(),
        };
        self.releases.track_future(release::run(context, job))
    }
}
