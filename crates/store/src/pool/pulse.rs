//! What is known of a database's life: when it last answered, and when it last failed to.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::statement_limit;

/// A connection that was idle for longer is asked whether it still lives before it is used.
const TRUSTED_IDLE: Duration = Duration::from_secs(10);

/// How long to wait for a server's word on a statement: it has given up by itself by then, and
/// said so.
fn patience(wait_limit: Duration) -> Duration {
    statement_limit(wait_limit) + Duration::from_millis(500)
}

/// Nobody answers.
#[derive(Debug, thiserror::Error)]
#[error("the database has not answered for {0:?}")]
pub(crate) struct Silence(Duration);

/// The database's last sign of life, when a connection was opened, or came back and answered; and
/// when one last failed to.
///
/// The pool itself cannot tell connections that are busy from connections that nobody answers.
#[derive(Debug)]
pub(crate) struct Pulse {
    started: Instant,
    /// Milliseconds since `started`, plus one; zero while there was none.
    last: AtomicU64,
    /// The same of the last connection that turned out to be dead.
    missed: AtomicU64,
    wait_limit: Duration,
    patience: Duration,
}

impl Pulse {
    pub(crate) fn new(wait_limit: Duration) -> Arc<Self> {
        Arc::new(Self {
            started: Instant::now(),
            last: AtomicU64::new(0),
            missed: AtomicU64::new(0),
            wait_limit,
            patience: patience(wait_limit),
        })
    }

    pub(crate) fn beat(&self) {
        self.last.store(self.now(), Ordering::Relaxed);
    }

    fn miss(&self) {
        self.missed.store(self.now(), Ordering::Relaxed);
    }

    /// Waits for an operation, but no longer than a database that lives could take: the wait for a
    /// connection, and `statements` of which each may last as long as the server lets it. What is
    /// merely slow the server has ended before, so that only silence is counted as such.
    pub(crate) async fn listen<T>(
        &self,
        statements: u32,
        operation: impl Future<Output = T>,
    ) -> Result<T, Silence> {
        let limit = self.wait_limit + statements * self.patience;
        let heard = tokio::time::timeout(limit, operation).await;
        heard.map_err(|_elapsed| {
            self.miss();
            Silence(limit)
        })
    }

    /// Whether a connection may be used without being asked first. None may that was idle already
    /// when another one turned out to be dead, for both may have died of the same.
    pub(super) fn trusts(&self, idle: Duration) -> bool {
        let idle_ms = u64::try_from(idle.as_millis()).unwrap_or(u64::MAX);
        let idle_since = self.now().saturating_sub(idle_ms);
        idle < TRUSTED_IDLE && idle_since > self.missed.load(Ordering::Relaxed)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).map_or(u64::MAX, |ms| ms + 1)
    }

    /// Whether there was one within the time that any statement of ours may take.
    pub(super) fn is_recent(&self) -> bool {
        let last = self.last.load(Ordering::Relaxed);
        let age = Duration::from_millis(self.now().saturating_sub(last));
        last > self.missed.load(Ordering::Relaxed) && age <= self.patience
    }

    /// Whether a connection that was left amid something may be used again: one that does not
    /// answer, or answers anything but what was asked (an abandoned statement may leave it out of
    /// step), may not.
    pub(super) async fn answers(&self, roll_back: impl Future<Output = sqlx::Result<()>>) -> bool {
        match tokio::time::timeout(self.patience, roll_back).await {
            Ok(Ok(())) => {
                self.beat();
                return true;
            }
            // Of the statement that was left, most probably: the server lives, and has said so.
            Ok(Err(error @ sqlx::Error::Database(_))) => {
                tracing::debug!(%error, "a connection is dropped");
                return false;
            }
            Ok(Err(error)) => tracing::debug!(%error, "a connection is dropped"),
            Err(_elapsed) => tracing::debug!("a connection that does not answer is dropped"),
        }
        self.miss();
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn one_dead_connection_makes_those_suspect_that_were_idle_beside_it() {
        let pulse = Pulse::new(2 * SECOND);
        tokio::time::advance(5 * SECOND).await;
        assert!(pulse.trusts(SECOND));
        assert!(!pulse.trusts(TRUSTED_IDLE));

        let silence = pulse.listen(1, std::future::pending::<()>()).await;
        silence.expect_err("nobody answers");
        tokio::time::advance(SECOND).await;
        assert!(!pulse.trusts(2 * SECOND), "it was idle before");
        assert!(pulse.trusts(SECOND / 2), "it has been used since");
    }

    #[tokio::test(start_paused = true)]
    async fn a_dead_connection_ends_what_was_known_of_life() {
        let pulse = Pulse::new(2 * SECOND);
        assert!(!pulse.is_recent());
        tokio::time::advance(SECOND).await;
        pulse.beat();
        assert!(pulse.is_recent());
        tokio::time::advance(SECOND).await;
        let dead = async { Err(sqlx::Error::WorkerCrashed) };
        assert!(!pulse.answers(dead).await);
        assert!(!pulse.is_recent());
        tokio::time::advance(SECOND).await;
        pulse.beat();
        assert!(pulse.is_recent());
    }
}
