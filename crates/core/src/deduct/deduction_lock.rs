//! The lock of one deduction, across all of its attempts.
//!
//! A deduction keeps its lock until the outcome of the commit is known. It repeats an attempt that
//! was refused, or whose outcome is unknown, under the same lock. It acquires only a lost lock
//! again.

use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::ports::{HeldLock, Lock, LockError};
use crate::stock::{Operation, Sku, Warehouse};

/// The name of a level's lock. SKUs and warehouses contain no colon, so two levels never share it.
#[must_use]
pub fn lock_name(sku: &Sku, warehouse: &Warehouse) -> String {
    format!("stock:{sku}:{warehouse}")
}

/// The lock of one deduction, held or not.
#[derive(Debug)]
pub struct DeductionLock<'a> {
    lock: &'a dyn Lock,
    name: String,
    started: Instant,
    /// Never contended, because the attempts run one after the other.
    held: Mutex<Option<Box<dyn HeldLock>>>,
}

impl<'a> DeductionLock<'a> {
    /// The lock of the deduction's level. It is not acquired yet.
    pub(crate) fn new(deduction: &Operation, lock: &'a dyn Lock) -> Self {
        let (sku, warehouse) = deduction.level();
        Self {
            lock,
            name: lock_name(sku, warehouse),
            started: Instant::now(),
            held: Mutex::new(None),
        }
    }

    pub(super) fn lock(&self) -> &'a dyn Lock {
        self.lock
    }

    /// Acquires the lock unless it is held. Waits until the deduction has taken `limit` in total.
    pub(super) async fn acquire(&self, limit: Duration) -> Result<(), LockError> {
        let mut held = self.held.lock().await;
        if held.is_none() {
            let wait = limit.saturating_sub(self.started.elapsed());
            *held = Some(self.lock.acquire(&self.name, wait).await?);
        }
        Ok(())
    }

    /// The held lock; `None` before [`DeductionLock::acquire`] and after
    /// [`DeductionLock::release`].
    pub(crate) async fn held(&self) -> MutexGuard<'_, Option<Box<dyn HeldLock>>> {
        self.held.lock().await
    }

    /// Releases the lock. Stops waiting for the server's confirmation when `limit` ends, because
    /// the answer to the caller is already known. The release itself continues in the background.
    pub(super) async fn release(&self, limit: impl Future<Output = ()>) {
        let Some(held) = self.held.lock().await.take() else {
            return;
        };
        tokio::select! {
            biased;
            () = held.release() => {}
            () = limit => {}
        }
    }
}
