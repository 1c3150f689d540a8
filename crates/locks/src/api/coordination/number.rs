//! A number that several processes share.

use std::sync::Arc;
use std::time::Duration;

use crate::api::manager::LockManager;
use crate::backend::{Change, Changed, NumberKey, NumberRequest, Numbers};
use crate::held::options::NAME_MAX;
use crate::shared::error::{BackendError, LockError};
use crate::shared::retry::{Backoff, until_executed};

/// A 64-bit number that several processes share: a counter, or a value that all of them follow. Created
/// by [`LockManager::number`](crate::LockManager::number). It is zero at first.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use stocklock_locks::{LockManager, local::LocalBackend};
/// let locks = LockManager::new(LocalBackend::new());
/// let imports = locks.number("imports");
/// assert_eq!(imports.add(1).await?, 1);
/// assert_eq!(imports.add(1).await?, 2);
/// imports.remove().await?;
/// # Ok(()) }
/// ```
///
/// **Exactly once.** A change whose answer is lost is repeated for twice the response limit of the back
/// end, and the server recognises the repetition. On Redis each change leaves a key for two minutes, which
/// contains its answer. On ZooKeeper the node of the number contains the last 32 changes; if more than
/// that followed an unanswered one, or the number was removed, the call returns `Unavailable`.
///
/// **Loss.** A number is as durable as the data of its server. If Redis loses its data, the number is zero
/// again. Do not count money or stock with it: write those to the database that has the other data.
///
/// # Errors
/// All methods return
/// - [`LockError::Unavailable`] if the server did not answer in time. A change may then have been made, or
///   be made within two minutes. Also if a sum does not fit into 64 bits.
/// - [`LockError::Unsupported`] if the back end has no numbers.
/// - [`LockError::InvalidName`] if the name is empty or too long.
/// - [`LockError::Shutdown`] if the manager was shut down.
///
/// # Cancel safety
/// A future that changes the number may be dropped; the change may be made nevertheless. The other
/// futures have no effect.
#[derive(Debug, Clone)]
pub struct Number {
    pub(super) manager: LockManager,
    pub(super) key: NumberKey,
    /// How long the number stays after a change.
    pub(super) keep: Option<Duration>,
}

#[expect(
    clippy::missing_errors_doc,
    reason = "the head of the type lists the errors"
)]
impl Number {
    pub(super) fn new(
        manager: &LockManager,
        kind: &'static str,
        name: &str,
        keep: Option<Duration>,
    ) -> Self {
        let (manager, name) = (manager.clone(), Arc::from(name));
        let key = NumberKey { kind, name };
        Self { manager, key, keep }
    }

    /// Sets how long the number stays on the server after a change by this process. Default: until it is
    /// [removed](Self::remove). ZooKeeper ignores it.
    #[must_use]
    pub fn expires_after(mut self, time: Duration) -> Self {
        self.keep = Some(time);
        self
    }

    /// Returns the number. All changes that were answered before are in it.
    pub async fn get(&self) -> Result<i64, LockError> {
        let numbers = self.numbers()?;
        self.ask("read", || numbers.read(&self.key, None)).await
    }

    /// Adds to the number, and returns the sum. No other call returns the same sum of positive numbers,
    /// unless the number was set or removed.
    pub async fn add(&self, by: i64) -> Result<i64, LockError> {
        Ok(self.change(Change::Add(by)).await?.value)
    }

    /// Replaces the number.
    pub async fn set(&self, to: i64) -> Result<(), LockError> {
        self.change(Change::Set(to)).await.map(drop)
    }

    /// Replaces the number if it is `expected`. Returns whether it was.
    pub async fn compare_exchange(&self, expected: i64, to: i64) -> Result<bool, LockError> {
        let exchange = Change::Exchange { expected, to };
        Ok(self.change(exchange).await?.is_changed)
    }

    /// Waits until `is_wanted` returns true for the number, and returns it. Returns `None` if that did not
    /// happen within `limit`. With a limit of zero, the server still gets time for one answer.
    ///
    /// The number may change several times between two calls of `is_wanted`.
    pub async fn wait_for(
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
                engine.clock.sleep_until(again).await;
            }
            match failure {
                Some(error) => Err(self.unavailable("wait for", error)),
                None => Ok(None),
            }
        };
        let waited = engine.until_closed(wait).await;
        waited.unwrap_or(Err(LockError::Shutdown))
    }

    /// Removes the number from the server, so it is zero. Call it when no process changes the number any
    /// more: on ZooKeeper, the removal also forgets which changes were made, so the first change of a number
    /// may count again if its answer is lost.
    pub async fn remove(&self) -> Result<(), LockError> {
        let remove = Change::Remove { only: None };
        self.change(remove).await.map(drop)
    }
}

impl Number {
    pub(super) fn numbers(&self) -> Result<&dyn Numbers, LockError> {
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
    pub(super) async fn ask<T, F>(
        &self,
        operation: &str,
        request: impl FnMut() -> F + Send,
    ) -> Result<T, LockError>
    where
        T: Send,
        F: Future<Output = Result<T, BackendError>> + Send,
    {
        let engine = self.manager.engine();
        let limit = engine.backend.properties().response_limit;
        let answer = engine.until_closed(until_executed(limit, &*engine.clock, request));
        let answer = answer.await.ok_or(LockError::Shutdown)?;
        answer.map_err(|error| self.unavailable(operation, error))
    }

    pub(super) async fn change(&self, change: Change) -> Result<Changed, LockError> {
        let numbers = self.numbers()?;
        let request = NumberRequest::new(self.key.clone(), change, self.keep);
        self.ask("change", || numbers.change(&request)).await
    }
}
