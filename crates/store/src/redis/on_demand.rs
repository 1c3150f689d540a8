//! A value that is obtained when it is first needed, and again after it was dropped.
//!
//! There is at most one attempt to obtain it at a time, and all callers wait for its result. If a server
//! does not respond, every caller therefore waits for one limit, not for one after another.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, ready};
use redis::{ErrorKind, RedisError, RedisResult};
use tokio::time::timeout;

/// An attempt that all callers wait for. After it succeeded, it yields the value.
pub(super) type Attempt<T> = Shared<BoxFuture<'static, RedisResult<T>>>;

/// After a failed attempt, callers wait for the next one only this fraction of the limit. A server
/// that is back accepts at once. If it is still down, other requests need the callers' slots.
const WAIT_DIVISOR_AFTER_FAILURE: u32 = 8;

#[derive(Debug)]
pub(super) struct OnDemand<T: Clone>(Mutex<Current<T>>);

#[derive(Debug)]
struct Current<T: Clone> {
    attempt: Option<Attempt<T>>,
    /// The error of the previous attempt, if it failed.
    failure: Option<RedisError>,
}

impl<T: Clone> Default for OnDemand<T> {
    fn default() -> Self {
        Self(Mutex::new(Current::none()))
    }
}

impl<T: Clone> Current<T> {
    fn none() -> Self {
        Self {
            attempt: None,
            failure: None,
        }
    }
}

impl<T: Clone + Send + 'static> OnDemand<T> {
    /// The value, and the attempt that obtained it. If there is none, `start` makes one. Callers wait for at
    /// most `limit`, or for a fraction of it if the attempt before has failed.
    ///
    /// # Cancel safety
    /// If the future is dropped, the attempt goes on.
    pub(super) async fn get<F>(
        &self,
        limit: Duration,
        start: impl FnOnce() -> F,
    ) -> RedisResult<(T, Attempt<T>)>
    where
        F: Future<Output = RedisResult<T>> + Send + 'static,
    {
        let (attempt, failure) = {
            let mut current = self.current();
            if let Some(attempt) = &current.attempt {
                match attempt.clone().now_or_never() {
                    Some(Ok(value)) => return Ok((value, attempt.clone())),
                    Some(Err(error)) => {
                        current.attempt = None;
                        current.failure = Some(error);
                    }
                    None => {}
                }
            }
            let start = || in_a_task(start());
            let attempt = current.attempt.get_or_insert_with(start).clone();
            (attempt, current.failure.clone())
        };
        let obtained = match failure {
            None => attempt.clone().await,
            Some(failure) => {
                let wait = limit / WAIT_DIVISOR_AFTER_FAILURE;
                let waited = timeout(wait, attempt.clone()).await;
                waited.unwrap_or(Err(failure))
            }
        };
        Ok((obtained?, attempt))
    }

    /// Drops the value of this attempt. A later value stays. Returns whether it was the current one.
    pub(super) fn drop_attempt(&self, attempt: &Attempt<T>) -> bool {
        let mut current = self.current();
        let is_current = |now: &Attempt<T>| now.ptr_eq(attempt);
        let is_current = current.attempt.as_ref().is_some_and(is_current);
        if is_current {
            *current = Current::none();
        }
        is_current
    }

    /// Drops the value. The next caller obtains another one.
    pub(super) fn clear(&self) {
        *self.current() = Current::none();
    }

    /// The same, but an attempt that has not ended goes on, and yields the next value.
    pub(super) fn expire(&self) {
        let mut current = self.current();
        let attempt = current.attempt.clone();
        if attempt.is_some_and(|attempt| attempt.now_or_never().is_some()) {
            *current = Current::none();
        }
    }

    /// Replaces the value by another one.
    pub(super) fn set(&self, value: T) {
        self.current().attempt = Some(ready(Ok(value)).boxed().shared());
    }

    fn current(&self) -> MutexGuard<'_, Current<T>> {
        // No code panics while it holds this mutex.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts in a separate task, because the caller may be cancelled before the end.
fn in_a_task<T, F>(obtain: F) -> Attempt<T>
where
    T: Clone + Send + 'static,
    F: Future<Output = RedisResult<T>> + Send + 'static,
{
    let obtained = tokio::spawn(obtain).map(|ended| {
        ended.unwrap_or_else(|_| {
            let why = "the attempt to connect was aborted";
            Err(RedisError::from((ErrorKind::Io, why)))
        })
    });
    obtained.boxed().shared()
}
