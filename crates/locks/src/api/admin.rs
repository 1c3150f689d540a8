//! Looking into a lock, and taking it away from its holder.
//!
//! For operators: a name that is held for too long, and by which client. See [`LockBuilder::inspect`] and
//! [`LockBuilder::revoke`].

use crate::api::builder::LockBuilder;
use crate::backend::Claim;
use crate::claims::LockView;
use crate::shared::error::{BackendError, LockError};
use crate::shared::nonce::Nonce;

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
        let (engine, options) = (self.manager.engine(), &self.options);
        let view = engine.backend.inspect(&options.name, options.claim);
        let mut view = self.ask("inspect", view).await?;
        view.local_waiters = match options.claim {
            Claim::Exclusive => {
                let tasks = engine.queues.tasks(&options.name);
                tasks.saturating_sub(engine.watchdog.exclusive(&options.name))
            }
            Claim::Permits { .. } => engine.permit_queues.tasks(&options.name),
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
        let (engine, options) = (self.manager.engine(), &self.options);
        let revoke = (engine.backend).revoke(&options.name, holder, options.claim);
        let revoked = self.ask("revoke", revoke).await?;
        if revoked {
            tracing::warn!(lock = %options.name, nonce = %holder, "a lock was revoked");
            engine.watchdog.nudge().renew_now();
        }
        Ok(revoked)
    }

    /// Asks the server, unless it cannot have this lock.
    async fn ask<A>(
        &self,
        operation: &str,
        answer: impl Future<Output = Result<A, BackendError>>,
    ) -> Result<A, LockError> {
        let (engine, options) = (self.manager.engine(), &self.options);
        options.check(&*engine.backend)?;
        let answer = engine.ask(answer).await.ok_or(LockError::Shutdown)?;
        answer.map_err(|error| engine.failed(format!("{operation} {:?}", options.name), error))
    }
}
