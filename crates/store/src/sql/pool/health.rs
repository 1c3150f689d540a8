//! Whether a database server answers and accepts writes: when it last did, and when it last did not.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use stocklock_core::stock::DriverError;
use tokio::time::{Instant, timeout, timeout_at};

use super::statement_limit;

/// Older connections are not reused, so that what a server keeps for each of them does not grow
/// without bound, and a server that moved is found at its new address.
const LIFETIME: Duration = Duration::from_mins(30);

/// A connection that is younger when the server refuses a write is kept, because a new one would
/// reach the same server. This bounds how often connections are replaced during a failover.
const REPLACED_FROM_AGE: Duration = Duration::from_millis(250);

/// A connection that was idle for longer is pinged before it is used.
const TRUSTED_IDLE: Duration = Duration::from_secs(10);

/// How much longer than the server's own limit to wait for an answer.
const ANSWER_MARGIN: Duration = Duration::from_millis(500);

/// When a server last answered, when a request to it last went unanswered, and when it last refused a
/// write.
///
/// The pool alone cannot tell busy connections from connections to a server that is gone.
#[derive(Debug)]
pub(crate) struct ServerHealth {
    last: Mutex<Last>,
    pools: Mutex<Vec<Box<dyn GiveBack>>>,
    /// A pool has no connection, because the server allows no more.
    is_short: AtomicBool,
    /// How long to wait for a connection.
    pub(crate) wait_limit: Duration,
    /// How long to wait for one answer. The server has ended the statement by then.
    pub(super) answer_limit: Duration,
    /// The database is a library in this process. It always answers.
    embedded: bool,
}

/// A pool of connections to the server.
pub(super) trait GiveBack: fmt::Debug + Send + Sync {
    /// Closes an idle connection, but not the last one of the pool. Returns whether there was one.
    fn give_back(&self) -> bool;
}

#[derive(Debug, Clone, Copy, Default)]
struct Last {
    success: Option<Instant>,
    /// When a connection last turned out to be dead, or could not be opened.
    failure: Option<Instant>,
    /// When the server last refused a write, or what a connection had prepared.
    refusal: Option<Instant>,
}

impl ServerHealth {
    pub(crate) fn new(wait_limit: Duration, embedded: bool) -> Arc<Self> {
        Arc::new(Self {
            last: Mutex::default(),
            pools: Mutex::default(),
            is_short: AtomicBool::new(false),
            wait_limit,
            answer_limit: statement_limit(wait_limit) + ANSWER_MARGIN,
            embedded,
        })
    }

    pub(super) fn add(&self, pool: Box<dyn GiveBack>) {
        self.pools.lock().push(pool);
    }

    /// The server allows no more connections, and a pool has none. Another one closes a connection that is
    /// idle, or else the next one that comes back.
    pub(super) fn make_room(&self) {
        let gave = self.pools.lock().iter().any(|pool| pool.give_back());
        if !gave {
            self.is_short.store(true, Ordering::Relaxed);
        }
    }

    /// The pool got a connection in another way.
    pub(super) fn has_room(&self) {
        self.is_short.store(false, Ordering::Relaxed);
    }

    /// Whether a connection that comes back must be closed, because its pool `has_others` and another pool
    /// has none.
    pub(super) fn takes_back(&self, has_others: impl FnOnce() -> bool) -> bool {
        self.is_short.load(Ordering::Relaxed)
            && has_others()
            && self.is_short.swap(false, Ordering::Relaxed)
    }

    pub(super) fn record_success(&self) {
        self.last.lock().success = Some(Instant::now());
    }

    pub(super) fn record_failure(&self) {
        self.last.lock().failure = Some(Instant::now());
    }

    pub(super) fn record_refusal(&self) {
        self.last.lock().refusal = Some(Instant::now());
    }

    /// Waits for an operation as long as a server that is alive can take: the wait for a connection, which a
    /// write has behind it, and `statements` that each take as long as the server allows.
    ///
    /// # Errors
    /// The server did not answer.
    pub(crate) async fn bounded<T>(
        &self,
        statements: u32,
        operation: impl Future<Output = T>,
    ) -> Result<T, DriverError> {
        if self.embedded {
            return Ok(operation.await);
        }
        let limit = self.wait_limit + statements * self.answer_limit;
        let answered = timeout(limit, operation).await;
        answered.map_err(|_elapsed| {
            self.record_failure();
            format!("the database has not answered for {limit:?}").into()
        })
    }

    /// Waits for the answer to a request that was sent then. Not longer than a server that is alive can
    /// take: `None`.
    pub(super) async fn by_limit<T>(
        &self,
        sent: Instant,
        answer: impl Future<Output = T>,
    ) -> Option<T> {
        if self.embedded {
            return Some(answer.await);
        }
        timeout_at(sent + self.answer_limit, answer).await.ok()
    }

    /// Whether a connection may be used without a ping. A connection that was idle when another one
    /// turned out to be dead may have died of the same cause.
    pub(super) fn trusts(&self, idle: Duration) -> bool {
        let since_failure = self.last.lock().failure.map(|failure| failure.elapsed());
        let limit = since_failure.map_or(TRUSTED_IDLE, |since| since.min(TRUSTED_IDLE));
        self.embedded || idle < limit
    }

    /// Whether a connection of this age must be replaced: it is old, or it was open when the server
    /// last refused a write, or what a connection had prepared. After a failover, a new connection may
    /// reach a server that accepts it; after a change of the schema, it prepares its statements again.
    pub(super) fn is_outdated(&self, age: Duration) -> bool {
        let since_refusal = self.last.lock().refusal.map(|refusal| refusal.elapsed());
        age > LIFETIME || since_refusal.is_some_and(|since| age >= since + REPLACED_FROM_AGE)
    }

    /// Whether the server answered within the time that any statement may take, and no connection
    /// was found dead since.
    pub(super) fn is_answering(&self) -> bool {
        let Last {
            success, failure, ..
        } = *self.last.lock();
        let recent = success.is_some_and(|success| success.elapsed() <= self.answer_limit);
        self.embedded || recent && success > failure
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn dead_connection_makes_idle_ones_untrusted() {
        let health = ServerHealth::new(2 * SECOND, false);
        tokio::time::advance(5 * SECOND).await;
        assert!(health.trusts(SECOND));
        assert!(!health.trusts(TRUSTED_IDLE));

        let silence = health.bounded(1, std::future::pending::<()>()).await;
        silence.expect_err("the server does not answer");
        tokio::time::advance(SECOND).await;
        assert!(!health.trusts(2 * SECOND), "it was idle before");
        assert!(health.trusts(SECOND / 2), "it has been used since");
    }

    #[tokio::test(start_paused = true)]
    async fn server_is_answering_after_success_until_failure() {
        let health = ServerHealth::new(2 * SECOND, false);
        assert!(!health.is_answering());
        tokio::time::advance(SECOND).await;
        health.record_success();
        assert!(health.is_answering());
        tokio::time::advance(SECOND).await;
        health.record_failure();
        assert!(!health.is_answering());
        tokio::time::advance(SECOND).await;
        health.record_success();
        assert!(health.is_answering());
        tokio::time::advance(health.answer_limit + SECOND).await;
        assert!(!health.is_answering());
    }

    #[tokio::test(start_paused = true)]
    async fn refused_write_outdates_the_connections_open_then() {
        let health = ServerHealth::new(2 * SECOND, false);
        assert!(!health.is_outdated(LIFETIME));
        assert!(health.is_outdated(LIFETIME + SECOND));
        health.record_refusal();
        assert!(health.is_outdated(SECOND));
        assert!(!health.is_outdated(SECOND / 8), "it was new");
        tokio::time::advance(SECOND).await;
        assert!(!health.is_outdated(SECOND), "it was opened afterwards");
        assert!(health.is_outdated(2 * SECOND));
    }

    #[tokio::test(start_paused = true)]
    async fn embedded_database_is_not_bounded() {
        let health = ServerHealth::new(SECOND, true);
        let operation = tokio::time::sleep(100 * SECOND);
        health.bounded(1, operation).await.expect("no bound");
        assert!(health.is_answering());
    }
}
