//! A shared connection that is opened on demand, and opened again after it was lost.
//!
//! It is opened in a separate task, because a caller may be cancelled before the connection is
//! ready. There is at most one attempt at a time. All callers that wait for it get the same result.

use std::fmt::{self, Debug, Formatter};
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};

use crate::shared::error::BackendError;
use crate::shared::lock::lock;

type Attempt<T> = Shared<BoxFuture<'static, Result<T, BackendError>>>;

/// The current connection and the current attempt to open one.
pub(crate) struct Link<T>(Arc<Mutex<State<T>>>);

struct State<T> {
    current: Option<T>,
    attempt: Option<Attempt<T>>,
    closed: bool,
}

impl<T: Clone + Send + Sync + 'static> Link<T> {
    /// Returns the current connection if it is usable. Otherwise opens one with `connect`.
    pub(crate) async fn get<F>(
        &self,
        usable: impl Fn(&T) -> bool,
        connect: impl FnOnce() -> F,
    ) -> Result<T, BackendError>
    where
        F: Future<Output = Result<T, BackendError>> + Send + 'static,
    {
        let attempt = {
            let mut state = lock(&self.0);
            if let Some(current) = state.current.as_ref().filter(|current| usable(current)) {
                return Ok(current.clone());
            }
            let start = || self.start_attempt(connect());
            state.attempt.get_or_insert_with(start).clone()
        };
        attempt.await
    }

    #[cfg(any(test, feature = "redis", feature = "zookeeper"))]
    pub(crate) fn current(&self) -> Option<T> {
        lock(&self.0).current.clone()
    }

    /// Drops the current connection if `is_failed` says that it is the failed one.
    #[cfg(feature = "redis")]
    pub(crate) fn forget(&self, is_failed: impl Fn(&T) -> bool) {
        // The drop may close the connection, so it comes after the mutex is unlocked.
        let failed = lock(&self.0).current.take_if(|current| is_failed(current));
        drop(failed);
    }

    /// Allows connections again after [`close`](Self::close).
    pub(crate) fn open(&self) {
        lock(&self.0).closed = false;
    }

    /// Removes and returns the connection. A connection that is still being opened is dropped when
    /// it is ready. No other one is opened before [`open`](Self::open).
    pub(crate) fn close(&self) -> Option<T> {
        let mut state = lock(&self.0);
        state.closed = true;
        state.current.take()
    }

    /// Starts an attempt. The caller holds the mutex, so the task cannot finish before `attempt` is
    /// stored.
    fn start_attempt(
        &self,
        connect: impl Future<Output = Result<T, BackendError>> + Send + 'static,
    ) -> Attempt<T> {
        let shared = Arc::clone(&self.0);
        let task = tokio::spawn(async move {
            let result = connect.await;
            let mut state = lock(&shared);
            state.attempt = None;
            if state.closed {
                return Err(BackendError::transient(
                    "the connection was closed by this process",
                ));
            }
            let replaced = match &result {
                Ok(connection) => state.current.replace(connection.clone()),
                Err(_) => None,
            };
            drop(state);
            drop(replaced);
            result
        });
        let shared = Arc::clone(&self.0);
        let outcome = async move {
            task.await.unwrap_or_else(|_| {
                lock(&shared).attempt = None;
                Err(BackendError::transient(
                    "the task that opens the connection ended early: it panicked, or the Tokio runtime \
                     was shut down",
                ))
            })
        };
        outcome.boxed().shared()
    }
}

impl<T> Default for Link<T> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(State {
            current: None,
            attempt: None,
            closed: false,
        })))
    }
}

impl<T> Debug for Link<T> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let state = lock(&self.0);
        formatter
            .debug_struct("Link")
            .field("connected", &state.current.is_some())
            .field("connecting", &state.attempt.is_some())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use futures_util::future::join_all;
    use tokio::time::{Instant, sleep, timeout};

    use super::Link;
    use crate::shared::error::BackendError;

    const LIMIT: Duration = Duration::from_secs(1);

    /// A server that accepts no connection costs one attempt for all callers, including those that
    /// stopped waiting.
    #[tokio::test(start_paused = true)]
    async fn concurrent_callers_share_one_attempt() {
        let link = Link::<u32>::default();
        let attempts = Arc::new(AtomicU32::new(0));
        let get = || {
            link.get(
                |_| true,
                || {
                    let attempts = Arc::clone(&attempts);
                    async move {
                        attempts.fetch_add(1, Ordering::SeqCst);
                        sleep(LIMIT).await;
                        Err(BackendError::transient("refused"))
                    }
                },
            )
        };
        let start = Instant::now();
        for result in join_all((0..100).map(|_| timeout(LIMIT / 2, get()))).await {
            assert!(result.is_err());
        }
        for answer in join_all((0..100).map(|_| get())).await {
            answer.unwrap_err();
        }
        assert_eq!(start.elapsed(), LIMIT);
        assert_eq!(attempts.load(Ordering::SeqCst), 1);
        get().await.unwrap_err();
        assert_eq!(attempts.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn connection_opened_after_close_is_dropped() {
        let link = Link::<Arc<()>>::default();
        let connection = Arc::new(());
        let connect = || {
            let connection = Arc::clone(&connection);
            async move {
                sleep(LIMIT).await;
                Ok(connection)
            }
        };
        let (answer, ()) = tokio::join!(link.get(|_| true, connect), async {
            sleep(LIMIT / 2).await;
            assert!(link.close().is_none());
        });
        answer.unwrap_err();
        assert!(link.current().is_none());
        assert_eq!(Arc::strong_count(&connection), 1);
    }
}
