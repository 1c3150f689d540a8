//! Small coordination: numbers, latches and barriers that several processes share.
//!
//! A [`Number`] is changed exactly once per call, even if an answer is lost. A [`Latch`] opens when enough
//! participants have arrived. A [`Barrier`] lets participants in together, and out together. Redis,
//! ZooKeeper and the back ends without a server have them; on others, each call returns
//! [`LockError::Unsupported`].
//!
//! Participants that wait are woken by the change itself: over pub/sub on Redis, with a watch on
//! ZooKeeper. Every wait has a limit.

use std::sync::Arc;
use std::time::Duration;

use crate::api::manager::LockManager;
use crate::backend::{Change, Changed, NumberKey, NumberRequest, Numbers};
use crate::held::options::NAME_MAX;
use crate::shared::error::{BackendError, LockError};
use crate::shared::retry::{Backoff, until_executed};

mod barrier;
mod latch;
mod number;

pub use barrier::{Barrier, Party};
pub use latch::Latch;
pub use number::Number;

impl LockManager {
    /// Returns the shared number with this name: 1 to 1,024 bytes of any text. Nothing is sent yet.
    #[must_use]
    pub fn number(&self, name: &str) -> Number {
        Number::new(Register::new(self, "number", name, None))
    }

    /// Returns the latch with this name, which opens after `count` arrivals. Nothing is sent yet.
    #[must_use]
    pub fn latch(&self, name: &str, count: u32) -> Latch {
        Latch::new(self, name, count)
    }

    /// Returns the barrier with this name for `parties` participants. Nothing is sent yet.
    #[must_use]
    pub fn barrier(&self, name: &str, parties: u32) -> Barrier {
        Barrier::new(self, name, parties)
    }
}

#[derive(Debug, Clone)]
struct Register {
    manager: LockManager,
    key: NumberKey,
    /// How long the number stays after a change.
    keep: Option<Duration>,
}

impl Register {
    fn new(manager: &LockManager, kind: &'static str, name: &str, keep: Option<Duration>) -> Self {
        Self {
            manager: manager.clone(),
            key: NumberKey {
                kind,
                name: Arc::from(name),
            },
            keep,
        }
    }

    fn numbers(&self) -> Result<&dyn Numbers, LockError> {
        if !(1..=NAME_MAX).contains(&self.key.name.len()) {
            return Err(LockError::InvalidName { limit: NAME_MAX });
        }
        let backend = &self.manager.engine().backend;
        backend.numbers().ok_or_else(|| LockError::Unsupported {
            server: backend.properties().name,
        })
    }

    fn unavailable(&self, operation: &str, error: BackendError) -> LockError {
        let NumberKey { kind, name } = &self.key;
        let request = format!("{operation} the {kind} {name:?}");
        self.manager.engine().failed(request, error)
    }

    /// Sends a request until it is answered, or the manager is shut down.
    async fn ask<T, F>(
        &self,
        operation: &str,
        request: impl FnMut() -> F + Send,
    ) -> Result<T, LockError>
    where
        T: Send,
        F: Future<Output = Result<T, BackendError>> + Send,
    {
        let engine = self.manager.engine();
        let answer = engine.jobs.inside(async {
            let answered = until_executed(
                engine.backend.properties().response_limit,
                &*engine.clock,
                request,
            );
            tokio::select! {
                biased;
                () = engine.closed.cancelled() => Err(LockError::Shutdown),
                answer = answered => answer.map_err(|error| self.unavailable(operation, error)),
            }
        });
        answer.await
    }

    async fn change(&self, change: Change) -> Result<Changed, LockError> {
        let numbers = self.numbers()?;
        let request = NumberRequest::new(self.key.clone(), change, self.keep);
        self.ask("change", || numbers.change(&request)).await
    }

    async fn get(&self) -> Result<i64, LockError> {
        let numbers = self.numbers()?;
        self.ask("read", || numbers.read(&self.key, None)).await
    }

    /// Waits until the number is as wanted, and returns it. `None` if it was not so until the limit. With
    /// a limit of zero, the server still gets time for one answer.
    async fn wait_for(
        &self,
        limit: Duration,
        is_wanted: impl Fn(i64) -> bool,
    ) -> Result<Option<i64>, LockError> {
        let numbers = self.numbers()?;
        let engine = self.manager.engine();
        let started = engine.clock.now();
        let mut until = started + limit;
        if limit.is_zero() {
            until = started + engine.backend.properties().response_limit;
        }
        let mut known = None;
        let mut failure = Some(BackendError::transient("no answer within the wait limit"));
        let mut backoff = Backoff::default();
        let wait = async {
            loop {
                let answer = tokio::select! {
                    biased;
                    () = engine.closed.cancelled() => return Err(LockError::Shutdown),
                    answer = numbers.read(&self.key, known) => answer,
                    () = engine.clock.sleep_until(until) => break,
                };
                let error = match answer {
                    Ok(value) if is_wanted(value) => return Ok(Some(value)),
                    Ok(value) => {
                        (known, failure, until) = (Some(value), None, started + limit);
                        backoff.reset();
                        continue;
                    }
                    Err(error) => error,
                };
                let again = engine.clock.now() + backoff.next();
                let is_over = error.is_permanent() || again >= until;
                failure = Some(error);
                if is_over {
                    break;
                }
                tokio::select! {
                    biased;
                    () = engine.closed.cancelled() => return Err(LockError::Shutdown),
                    () = engine.clock.sleep_until(again) => {}
                }
            }
            match failure {
                Some(error) => Err(self.unavailable("wait for", error)),
                None => Ok(None),
            }
        };
        engine.jobs.inside(wait).await
    }
}
