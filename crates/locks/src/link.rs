//! One connection for all who need it, made when it is needed and again after it was lost.
//!
//! It is made in a task of its own, since who asks may leave before it is there. And it is made once
//! at a time: a server that answers nobody is waited for by one attempt, however many ask, and all
//! who asked meanwhile are told how it went.

use std::fmt::{self, Debug, Formatter};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};

use crate::error::BackendError;

type Attempt<T> = Shared<BoxFuture<'static, Result<T, BackendError>>>;

/// The connection, or the attempt to make it.
pub(crate) struct Link<T>(Arc<Mutex<State<T>>>);

struct State<T> {
    current: Option<T>,
    attempt: Option<Attempt<T>>,
    closed: bool,
}

impl<T: Clone + Send + Sync + 'static> Link<T> {
    /// The connection if there is one that is usable, or else one that `connect` makes.
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
            let begin = || self.begin(connect());
            state.attempt.get_or_insert_with(begin).clone()
        };
        attempt.await
    }

    /// The connection, if there is one.
    pub(crate) fn current(&self) -> Option<T> {
        lock(&self.0).current.clone()
    }

    /// Gives up a connection that has failed, unless there is another one already.
    pub(crate) fn forget(&self, is_failed: impl Fn(&T) -> bool) {
        let mut state = lock(&self.0);
        let failed = state.current.take_if(|current| is_failed(current));
        drop(state);
        // Dropping it may close it: not with the mutex held.
        drop(failed);
    }

    /// Takes the connection away, for ever; one that is just being made is dropped when it is there.
    pub(crate) fn close(&self) -> Option<T> {
        let mut state = lock(&self.0);
        state.closed = true;
        state.current.take()
    }

    /// Starts an attempt; its task waits for the mutex that the caller holds.
    fn begin(
        &self,
        connect: impl Future<Output = Result<T, BackendError>> + Send + 'static,
    ) -> Attempt<T> {
        let shared = Arc::clone(&self.0);
        let task = tokio::spawn(async move {
            let made = connect.await;
            let mut state = lock(&shared);
            state.attempt = None;
            if state.closed {
                return Err(BackendError::transient("the connection was closed"));
            }
            let replaced = match &made {
                Ok(connection) => state.current.replace(connection.clone()),
                Err(_) => None,
            };
            drop(state);
            drop(replaced);
            made
        });
        let shared = Arc::clone(&self.0);
        let outcome = async move {
            task.await.unwrap_or_else(|_| {
                lock(&shared).attempt = None;
                Err(BackendError::transient("the runtime has ended"))
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

fn lock<T>(state: &Mutex<State<T>>) -> MutexGuard<'_, State<T>> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use futures_util::future::join_all;
    use tokio::time::{Instant, sleep, timeout};

    use super::Link;
    use crate::error::BackendError;

    const LIMIT: Duration = Duration::from_secs(1);

    /// A server that lets nobody in costs everybody one attempt, also those who have left.
    #[tokio::test(start_paused = true)]
    async fn all_who_ask_at_once_share_one_attempt() {
        let link = Link::<u32>::default();
        let attempts = Arc::new(AtomicU32::new(0));
        let ask = || {
            link.get(
                |_| true,
                || {
                    let attempts = Arc::clone(&attempts);
                    async move {
                        attempts.fetch_add(1, Ordering::SeqCst);
                        sleep(LIMIT).await;
                        Err(BackendError::transient("nobody is let in"))
                    }
                },
            )
        };
        let begin = Instant::now();
        for left in join_all((0..100).map(|_| timeout(LIMIT / 2, ask()))).await {
            assert!(left.is_err());
        }
        for answer in join_all((0..100).map(|_| ask())).await {
            answer.unwrap_err();
        }
        assert_eq!(begin.elapsed(), LIMIT);
        assert_eq!(attempts.load(Ordering::SeqCst), 1);
        ask().await.unwrap_err();
        assert_eq!(attempts.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_made_after_the_end_is_not_kept() {
        let link = Link::<Arc<()>>::default();
        let made = Arc::new(());
        let connect = || {
            let made = Arc::clone(&made);
            async move {
                sleep(LIMIT).await;
                Ok(made)
            }
        };
        let (answer, ()) = tokio::join!(link.get(|_| true, connect), async {
            sleep(LIMIT / 2).await;
            assert!(link.close().is_none());
        });
        answer.unwrap_err();
        assert!(link.current().is_none());
        assert_eq!(Arc::strong_count(&made), 1);
    }
}
