//! Leader election: a lock that each process wants for as long as it runs.

use std::time::Duration;

use crate::api::builder::{LockBuilder, Ran};
use crate::api::guard::LockGuard;
use crate::shared::error::LockError;

/// How long one acquisition waits. Nothing depends on it: the next one follows at once.
const ROUND: Duration = Duration::from_mins(10);

impl<T> LockBuilder<T> {
    /// Acquires the lock, waiting without a limit: a candidacy for leadership. The wait limit of this
    /// builder does not apply, and an unavailable server only prolongs the wait.
    ///
    /// The guard is the leadership: [`lost`](LockGuard::lost) completes when it ends,
    /// [`release`](LockGuard::release) resigns, and the [token](LockGuard::token) grows with each
    /// leader. The lock is renewed until then, so a leader stays until it dies, resigns, or reaches
    /// [`max_hold`](Self::max_hold). A dead leader is replaced after its lease.
    ///
    /// There can be two leaders for a moment, if one was paused for longer than its lease. It must
    /// pass its token to all writes, like any holder of a lock.
    ///
    /// # Errors
    /// - [`LockError::Unavailable`] only for problems that an operator must fix, such as a wrong
    ///   password.
    /// - The other errors of [`acquire`](Self::acquire), except `WaitLimit`.
    ///
    /// # Cancel safety
    /// Same as [`acquire`](Self::acquire).
    pub async fn campaign(mut self) -> Result<LockGuard<T>, LockError> {
        // A leader leads until it dies or resigns, unless a limit was set.
        self.options.max_hold.get_or_insert(Duration::MAX);
        loop {
            match self.clone().wait(ROUND).acquire().await {
                Err(LockError::WaitLimit { .. }) => {}
                Err(LockError::Unavailable(error)) if !error.is_permanent() => {
                    tracing::warn!(lock = %self.options.name, %error, "no leader can be elected");
                }
                elected => return elected,
            }
        }
    }

    /// Waits for leadership, and runs `body` as the leader. If the leadership is lost, `body` is
    /// dropped at its current await point, and the candidacy starts again.
    ///
    /// `body` receives a guard for the token and for checks, and its output ends the candidacy.
    /// [`Ran::release`] tells whether this process was the leader until then.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration; use stocklock_locks::{LockManager, local::LocalBackend};
    /// let locks = LockManager::new(LocalBackend::new());
    /// let leader = locks.lock("importer").lease(Duration::from_secs(5));
    /// let ran = leader.lead(async |guard| {
    ///     // ... work as the leader; pass guard.token() to every write ...
    ///     guard.token()
    /// });
    /// println!("led with token {}", ran.await?.output);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The errors of [`campaign`](Self::campaign).
    ///
    /// # Cancel safety
    /// Dropping the future drops `body` and resigns in the background.
    pub async fn lead<B, F>(self, mut body: B) -> Result<Ran<F::Output>, LockError>
    where
        B: FnMut(LockGuard<T>) -> F,
        F: Future,
    {
        loop {
            // This fails only if the lock is lost.
            if let Ok(ran) = self.clone().campaign().await?.run(&mut body).await {
                return Ok(ran);
            }
        }
    }
}
