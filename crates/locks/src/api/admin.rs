//! Looking into a lock, and taking it away from its holder.
//!
//! For operators: a name that is held for too long, and by which client. See [`LockBuilder::inspect`] and
//! [`LockBuilder::revoke`].

use std::time::Duration;

use async_trait::async_trait;

use crate::api::builder::LockBuilder;
use crate::backend::Claim;
use crate::shared::error::{BackendError, LockError};
use crate::shared::nonce::Nonce;
use crate::shared::sealed::Sealed;
use crate::shared::token::Token;

/// Who has a lock and who waits for it, as the lock server knew when it answered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockView {
    /// The holders. An exclusive lock has at most one.
    pub holders: Vec<Claimant>,
    /// The clients that wait in the server's queue, in order of arrival.
    ///
    /// Exclusive locks have such a queue on ZooKeeper only. On the other servers a waiting client leaves no
    /// trace; only [`local_waiters`](Self::local_waiters) shows those of this process.
    pub waiters: Vec<Claimant>,
    /// How many tasks of this manager wait for the lock. A task that waits in the server's queue counts
    /// here too, and so does one whose release is not confirmed yet.
    pub local_waiters: usize,
}

/// A holder of a lock, or a client that waits for it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Claimant {
    /// Identifies the acquisition.
    pub nonce: Nonce,
    /// How many permits it has, or waits for. 1 for an exclusive lock and for a reader.
    pub permits: u32,
    /// The fencing token of a holder. `None` for a waiter, and if the server issues no tokens.
    pub token: Option<Token>,
    /// What the server knows about the client: the owner of a row in a SQL database, the session on
    /// ZooKeeper. `None` on the other servers.
    pub owner: Option<String>,
    /// For how long a holder has had the lock, or a waiter has waited, by the server's clock. On ZooKeeper
    /// it counts from the arrival in the queue, also for a holder, by the clocks of the server and of this
    /// client. `None` if the server does not know it.
    pub age: Option<Duration>,
    /// How long the claim lives without a renewal. `None` on ZooKeeper, where the session decides.
    pub expires_in: Option<Duration>,
}

/// What the server tells operators about its locks. The claim only selects the kind of lock: exclusive, or
/// permits of any number.
#[async_trait]
pub trait Admin: Sealed + Send + Sync {
    /// Returns the holders and waiters of a name. [`LockView::local_waiters`] is zero.
    ///
    /// # Errors
    /// Returns an error if the server does not answer.
    async fn inspect(&self, name: &str, claim: Claim) -> Result<LockView, BackendError>;

    /// Takes the lock away from this holder, wakes the next waiter, and remembers the nonce for two minutes, and
    /// until the end of its lease: by then, the holder has tried to renew it. Returns false if the nonce held no
    /// lock. A repeated request returns the same.
    ///
    /// What the server remembers of the last token stays: the next token is greater.
    ///
    /// # Errors
    /// Returns an error if it is unknown whether the lock was taken away.
    async fn revoke(&self, name: &str, nonce: Nonce, claim: Claim) -> Result<bool, BackendError>;
}

impl<T> LockBuilder<T> {
    /// Returns who has the lock and who waits for it. With a builder of
    /// [`read`](crate::LockManager::read), [`write`](crate::LockManager::write) or
    /// [`permits`](crate::LockManager::permits), it returns all readers, writers and permits of the name.
    ///
    /// The answer may be outdated when it arrives: use it to look, not to decide.
    ///
    /// # Errors
    /// [`LockError::Unavailable`] if the server does not answer within the response limit of the back end,
    /// [`LockError::Shutdown`] if the manager was shut down, [`LockError::InvalidName`],
    /// [`LockError::InvalidPermits`] and [`LockError::Unsupported`] like
    /// [`acquire`](LockBuilder::acquire).
    ///
    /// # Cancel safety
    /// The future may be dropped at any point.
    pub async fn inspect(&self) -> Result<LockView, LockError> {
        let (inner, options) = (self.manager().inner(), self.options());
        let admin = self.admin()?;
        let view = admin.inspect(&options.name, options.claim);
        let mut view = self.answered("inspect", view).await?;
        view.local_waiters = match options.claim {
            Claim::Exclusive => {
                let tasks = inner.queues.tasks(&options.name);
                tasks.saturating_sub(inner.watchdog.exclusive(&options.name))
            }
            Claim::Permits { .. } => inner.permit_queues.tasks(&options.name),
        };
        Ok(view)
    }

    /// Takes the lock away from a holder, by force. Returns false if this nonce does not hold it: the lock
    /// is free, or another client has acquired it since.
    ///
    /// The next waiter acquires the lock at once, with a greater token. The old holder **continues to work
    /// until it learns of the loss**, with [`LostReason::Revoked`](crate::LostReason::Revoked): at its next
    /// renewal, which is after a third of its lease at the latest, or when it releases or verifies the lock.
    /// If it belongs to this manager, it learns of it at once. Only the token in the guarded write protects
    /// the data until then, and only after the next holder has written.
    ///
    /// # Errors
    /// The errors of [`inspect`](Self::inspect). After [`LockError::Unavailable`] it is unknown whether the
    /// lock was taken away. A repeated call is safe: it never affects another holder, and returns true if
    /// the first one succeeded.
    ///
    /// # Cancel safety
    /// The future may be dropped at any point. The lock may have been taken away nevertheless.
    pub async fn revoke(&self, holder: Nonce) -> Result<bool, LockError> {
        let (inner, options) = (self.manager().inner(), self.options());
        let admin = self.admin()?;
        let revoke = admin.revoke(&options.name, holder, options.claim);
        let revoked = self.answered("revoke", revoke).await?;
        if revoked {
            tracing::warn!(lock = %options.name, nonce = %holder, "a lock was revoked");
            inner.watchdog.nudge().renew_now();
        }
        Ok(revoked)
    }

    fn admin(&self) -> Result<&dyn Admin, LockError> {
        let inner = self.manager().inner();
        if inner.closed.is_cancelled() {
            return Err(LockError::Shutdown);
        }
        self.options().check(&*inner.backend)?;
        let none = || BackendError::permanent("this back end shows no holders");
        let admin = inner.backend.admin().ok_or_else(none);
        admin.map_err(|error| self.failed("inspect", error))
    }

    /// Waits for an answer, but not longer than the response limit.
    async fn answered<A>(
        &self,
        operation: &str,
        answer: impl Future<Output = Result<A, BackendError>>,
    ) -> Result<A, LockError> {
        let inner = self.manager().inner();
        let limit = inner.backend.properties().response_limit;
        let answer = inner.jobs.inside(async {
            tokio::select! {
                biased;
                () = inner.closed.cancelled() => None,
                answer = answer => Some(answer),
                () = inner.clock.sleep_until(inner.clock.now() + limit) => {
                    Some(Err(BackendError::transient(format!("no answer within {limit:?}"))))
                }
            }
        });
        let answer = answer.await.ok_or(LockError::Shutdown)?;
        answer.map_err(|error| self.failed(operation, error))
    }

    fn failed(&self, operation: &str, error: BackendError) -> LockError {
        let server = self.manager().inner().backend.properties().name;
        let request = format!("{operation} {:?}", self.options().name);
        LockError::Unavailable(error.with_request(server, request))
    }
}
