//! The acquisitions and releases that callers wait for.
//!
//! The caller's future runs its job itself, which saves two changes of task. The job does not depend
//! on that future. If the caller drops it, the job continues as a task of the manager's runtime. So do
//! all jobs when the manager is shut down, because a caller may hold a future without polling it.
//!
//! Other requests end with the future of the caller. They too run in the manager's runtime: a connection or a
//! task that they start would otherwise end with the runtime of the first caller.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::runtime::Handle;

use crate::shared::lock::lock;

type Job = BoxFuture<'static, ()>;

/// The runtime of a manager, and the jobs that callers run in their own futures.
#[derive(Clone)]
pub(crate) struct Jobs(Arc<State>);

struct State {
    runtime: Handle,
    /// Each job, and the caller to wake if the job is moved. `None` while the caller polls the job.
    running: Mutex<HashMap<u64, Option<(Job, Waker)>>>,
    next_id: AtomicU64,
}

impl Jobs {
    pub(crate) fn new(runtime: Handle) -> Self {
        Self(Arc::new(State {
            runtime,
            running: Mutex::default(),
            next_id: AtomicU64::new(0),
        }))
    }

    /// Runs a job as a task. This needs no runtime at the caller. If the manager's runtime was shut
    /// down, the job is dropped.
    pub(crate) fn spawn(&self, job: impl Future<Output = ()> + Send + 'static) {
        self.0.runtime.spawn(job);
    }

    /// Polls a future of the caller in the manager's runtime. After the end of that runtime its timers panic,
    /// so the future must first check whether the manager or the lock has ended.
    pub(crate) fn inside<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        let runtime = self.0.runtime.clone();
        let mut future = Box::pin(future);
        poll_fn(move |context| {
            let _inside = runtime.enter();
            future.as_mut().poll(context)
        })
    }

    pub(crate) fn run(&self, job: impl Future<Output = ()> + Send + 'static) -> Running {
        let id = self.0.next_id.fetch_add(1, Ordering::Relaxed);
        let place = Some((job.boxed(), Waker::noop().clone()));
        lock(&self.0.running).insert(id, place);
        let jobs = self.clone();
        Running { jobs, id }
    }

    /// Moves all jobs from their callers to tasks. A job that is being polled follows after that
    /// poll.
    pub(crate) fn move_to_tasks(&self) {
        let running = std::mem::take(&mut *lock(&self.0.running));
        for (job, caller) in running.into_values().flatten() {
            self.spawn(job);
            // From now on, the job wakes its task and not its caller.
            caller.wake();
        }
    }
}

impl std::fmt::Debug for Jobs {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let running = lock(&self.0.running).len();
        formatter.debug_tuple("Jobs").field(&running).finish()
    }
}

/// Runs a job. Completes when the job has ended, or was moved to a task.
#[must_use = "futures do nothing unless polled"]
pub(crate) struct Running {
    jobs: Jobs,
    id: u64,
}

impl Future for Running {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let job = lock(&self.jobs.0.running)
            .get_mut(&self.id)
            .and_then(Option::take);
        let Some((mut job, _)) = job else {
            return Poll::Ready(());
        };
        // The mutex is not locked during the poll, which may run code of the user.
        let polled = {
            // The caller may run in another runtime, which may end before the job.
            let _inside = self.jobs.0.runtime.enter();
            job.poll_unpin(context)
        };
        if polled.is_ready() {
            lock(&self.jobs.0.running).remove(&self.id);
            return polled;
        }
        if let Some(place) = lock(&self.jobs.0.running).get_mut(&self.id) {
            *place = Some((job, context.waker().clone()));
            return polled;
        }
        // `move_to_tasks` ran during the poll.
        self.jobs.spawn(job);
        Poll::Ready(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let job = lock(&self.jobs.0.running).remove(&self.id);
        if let Some((job, _)) = job.flatten() {
            self.jobs.spawn(job);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::runtime::Handle;
    use tokio::sync::oneshot;

    use super::Jobs;

    #[tokio::test(start_paused = true)]
    async fn job_moved_during_its_poll_becomes_a_task() {
        let jobs = Jobs::new(Handle::current());
        let (proceed, may_proceed) = oneshot::channel::<()>();
        let (end, ended) = oneshot::channel();
        let moves = jobs.clone();
        let running = jobs.run(async move {
            moves.move_to_tasks();
            may_proceed.await.unwrap();
            end.send(()).unwrap();
        });
        assert!(running.now_or_never().is_some());
        proceed.send(()).unwrap();
        ended.await.unwrap();
    }
}
