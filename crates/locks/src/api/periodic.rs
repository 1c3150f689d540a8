//! Jobs that run at most once per period over all processes.

use std::time::Duration;

use crate::api::builder::{LockBuilder, Ran};
use crate::api::guard::LockGuard;
use crate::shared::error::LockError;
use crate::shared::retry::until_executed;

/// The result of [`LockBuilder::once_per`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the job may not have run"]
pub enum OncePer<T> {
    /// This process ran the job.
    Ran(Ran<T>),
    /// The job was started less than a period ago, by this process or another one.
    NotDue {
        /// When the job is due, counted from now.
        due_in: Duration,
    },
    /// Another process still runs the job after the wait limit.
    Running,
}

/// Only for back ends with fencing tokens: a quorum of Redis masters has no periods.
impl LockBuilder {
    /// Acquires the lock, runs `body` unless it was started less than `period` ago by any process, and
    /// releases the lock.
    ///
    /// Each process calls this at any time, for example in a loop that sleeps for `due_in`, or from a
    /// timer. If a timer calls it once per period, use a shorter period here, such as half of it:
    /// otherwise a call that comes a moment early skips a whole period.
    ///
    /// The server remembers the start of the job, before `body` runs, and its clock decides when the
    /// next one is due. **At most once** therefore means:
    /// - Two starts are at least `period` apart on the server's clock, unless the server loses its data
    ///   or its clock jumps. On ZooKeeper it is the clock of the leader, and a new leader may have
    ///   another one.
    /// - If the process dies, the job runs again in the next period, not earlier. The same applies if
    ///   `body` fails.
    /// - `body` runs on past its period if it takes longer. The job starts again after it has ended, or
    ///   after it has lost the lock.
    /// - A process that is paused for longer than its lease works on when it wakes up, possibly beside
    ///   the next run. Only the [token](LockGuard::token) in every write stops it.
    ///
    /// The record of the start is kept under the lock's name: on Redis until the end of the period, in a
    /// SQL database and on ZooKeeper until the next start, as one row or node for each job. All callers
    /// must use the same period. After a change, the period of the last start still applies; on ZooKeeper
    /// it is the caller's.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration; use stocklock_locks::{LockManager, OncePer, local::LocalBackend};
    /// let locks = LockManager::new(LocalBackend::new());
    /// let day = Duration::from_secs(24 * 60 * 60);
    /// let report = locks.lock("daily-report").wait(Duration::ZERO);
    /// match report.once_per(day, async |guard| { /* ... */ guard.token() }).await? {
    ///     OncePer::Ran(ran) => println!("done: {:?}", ran.release),
    ///     OncePer::NotDue { due_in } => println!("the next report is due in {due_in:?}"),
    ///     OncePer::Running => println!("another process writes the report"),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The errors of [`run`](Self::run), except `WaitLimit`. After [`LockError::Unavailable`] and
    /// [`LockError::Lost`] the period may have started: the job then does not run before its end.
    ///
    /// # Cancel safety
    /// Dropping the future drops `body` and releases the lock in the background. The period may have
    /// started.
    pub async fn once_per<B, F>(
        self,
        period: Duration,
        body: B,
    ) -> Result<OncePer<F::Output>, LockError>
    where
        B: FnOnce(LockGuard) -> F,
        F: Future,
    {
        let ran = self.run(async move |guard| match guard.begin_period(period).await {
            Ok(None) => Ok(Ok(body(guard).await)),
            Ok(Some(due_in)) => Ok(Err(due_in)),
            Err(error) => Err(error),
        });
        match ran.await {
            Ok(Ran { output, release }) => Ok(match output? {
                Ok(output) => OncePer::Ran(Ran { output, release }),
                Err(due_in) => OncePer::NotDue { due_in },
            }),
            Err(LockError::WaitLimit { .. }) => Ok(OncePer::Running),
            Err(error) => Err(error),
        }
    }
}

impl LockGuard {
    /// Starts a period under the name of this lock. Returns the rest of an earlier one that has not
    /// ended. Repeats the request for twice the response limit of the back end.
    async fn begin_period(&self, period: Duration) -> Result<Option<Duration>, LockError> {
        let hold = self.hold();
        let (backend, clock) = (&*hold.engine.backend, &*hold.engine.clock);
        let limit = backend.properties().response_limit;
        let begin = || backend.begin_period(hold.name(), hold.request.nonce, period);
        self.ask("begin a period of", until_executed(limit, clock, begin))
            .await
    }
}
