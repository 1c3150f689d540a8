//! One deduction's hold on its lock, across all of its attempts.
//!
//! The lock is held until the outcome of the commit is known: an attempt that was refused, or whose
//! commit is in doubt, is repeated under the same one. Only a lock that was lost is acquired anew.

use std::time::Duration;

use stocklock_locks::LockError;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::lock::{Held, Lock};
use crate::stock::Deduction;

/// The lock of what is deducted, held or not.
#[derive(Debug)]
pub(super) struct Tenure<'a> {
    lock: &'a dyn Lock,
    name: String,
    began: Instant,
    /// Attempts are made one after the other, so nobody ever waits for this mutex.
    held: Mutex<Option<Box<dyn Held>>>,
}

impl<'a> Tenure<'a> {
    /// Holds nothing yet.
    pub(super) fn of(deduction: &Deduction, lock: &'a dyn Lock) -> Self {
        Self {
            lock,
            // Neither name can contain a colon.
            name: format!("stock:{}:{}", deduction.sku, deduction.warehouse),
            began: Instant::now(),
            held: Mutex::new(None),
        }
    }

    pub(super) fn lock(&self) -> &'a dyn Lock {
        self.lock
    }

    /// Acquires the lock unless it is held, waiting until `limit` after the tenure began.
    pub(super) async fn secure(&self, limit: Duration) -> Result<(), LockError> {
        let mut held = self.held.lock().await;
        if held.is_none() {
            let wait = limit.saturating_sub(self.began.elapsed());
            *held = Some(self.lock.acquire(&self.name, wait).await?);
        }
        Ok(())
    }

    /// What is held; `None` before [`Tenure::secure`] and after [`Tenure::end`].
    pub(super) async fn held(&self) -> MutexGuard<'_, Option<Box<dyn Held>>> {
        self.held.lock().await
    }

    /// Gives up what is held, and waits for the service's word on it until `enough` ends: the
    /// answer to the caller is known already, and must not hang on a service that went away. The
    /// release itself goes on.
    pub(super) async fn end(&self, enough: impl Future<Output = ()>) {
        let Some(held) = self.held.lock().await.take() else {
            return;
        };
        tokio::select! {
            biased;
            () = held.release() => {}
            () = enough => {}
        }
    }
}
