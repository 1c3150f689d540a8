//! The bound on concurrent writes. Each write runs in its own task.
//!
//! A client that disconnects, or a deadline, must not cut a write short, because either may come in
//! the middle of a commit. So the write runs detached, and the caller only waits for it.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use crate::stock::StockError;

/// The running writes of one replica. Clones share the bound.
#[derive(Debug, Clone)]
pub struct WritePool {
    tasks: TaskTracker,
    slots: Arc<Semaphore>,
    deadline: Duration,
}

/// The right to run one more write.
#[derive(Debug)]
pub(crate) struct WriteSlot(
    #[expect(dead_code, reason = "dropping it frees the slot")] OwnedSemaphorePermit,
);

impl WritePool {
    /// At most `max_in_flight` writes at once. A caller waits for its write until `deadline`.
    #[must_use]
    pub fn new(max_in_flight: usize, deadline: Duration) -> Self {
        Self {
            tasks: TaskTracker::new(),
            slots: Arc::new(Semaphore::new(max_in_flight)),
            deadline,
        }
    }

    /// Reserves a slot.
    ///
    /// # Errors
    /// [`StockError::Overloaded`] if all slots are taken.
    pub(crate) fn admit(&self) -> Result<WriteSlot, StockError> {
        let slot = Arc::clone(&self.slots).try_acquire_owned();
        slot.map(WriteSlot).map_err(|_| StockError::Overloaded {
            what: "this replica already runs as many writes as MAX_IN_FLIGHT allows",
        })
    }

    /// Runs `write` in its own task, and waits for it until the deadline.
    ///
    /// # Errors
    /// The errors of `write`, and [`StockError::OutcomeUnknown`] if the deadline passes first; the
    /// task continues then.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the write.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        slot: WriteSlot,
        write: impl Future<Output = Result<T, StockError>> + Send + 'static,
    ) -> Result<T, StockError> {
        let caller = Arc::new(());
        let waiting = Arc::downgrade(&caller);
        let task = async move {
            let result = write.await;
            drop(slot);
            if let (Err(error), 0) = (&result, waiting.strong_count()) {
                log_unanswered(error);
            }
            result
        };
        let answer = tokio::time::timeout(self.deadline, self.tasks.spawn(task.in_current_span()));
        let result = match answer.await {
            Ok(Ok(result)) => result,
            Ok(Err(join_error)) => Err(StockError::Internal {
                what: join_error.to_string(),
            }),
            Err(deadline) => Err(StockError::OutcomeUnknown {
                source: deadline.into(),
            }),
        };
        drop(caller);
        result
    }

    /// The number of running writes.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.tasks.len()
    }

    /// Waits until no write runs. Cancel safe.
    pub async fn drained(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Logs an error whose client has already disconnected. Refusals cost the client nothing, so only
/// defects and unknown outcomes are warnings.
fn log_unanswered(error: &StockError) {
    match error {
        StockError::Internal { .. } | StockError::OutcomeUnknown { .. } => {
            let cause = error.source().map(ToString::to_string);
            tracing::warn!(%error, cause, "a write failed after its client had disconnected");
        }
        _ => tracing::debug!(%error, "a write was refused after its client had disconnected"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn write_keeps_its_slot_after_its_caller_has_left() {
        let pool = WritePool::new(1, Duration::from_mins(1));
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let slot = pool.admit().expect("a free slot");
        let write = async move {
            ended.await.expect("the test ends the write");
            Ok(())
        };
        let caller = pool.run(slot, write);
        tokio::time::timeout(Duration::ZERO, caller)
            .await
            .expect_err("the write has not ended");
        assert!(pool.admit().is_err());
        end.send(()).expect("the write runs");
        pool.drained().await;
        assert!(pool.admit().is_ok());
    }
}
