//! Writes under way: bounded in number, each in a task of its own, waited for at shutdown.
//!
//! A write must not be cut short by a client that leaves or by a deadline, since either may come
//! in the middle of a commit. So it runs detached, and the caller merely waits for it.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use crate::stock::StockError;

/// One replica's writes under way. Clones share the bound.
#[derive(Debug, Clone)]
pub struct Operations {
    tasks: TaskTracker,
    slots: Arc<Semaphore>,
    deadline: Duration,
}

/// The right to have one more write under way.
#[derive(Debug)]
pub(crate) struct Slot(
    #[expect(dead_code, reason = "dropping it is its use")] OwnedSemaphorePermit,
);

impl Operations {
    /// At most `max_in_flight` at once; a caller waits for each until `deadline`.
    #[must_use]
    pub fn new(max_in_flight: usize, deadline: Duration) -> Self {
        Self {
            tasks: TaskTracker::new(),
            slots: Arc::new(Semaphore::new(max_in_flight)),
            deadline,
        }
    }

    /// A slot, or the refusal of one more write.
    pub(crate) fn admit(&self) -> Result<Slot, StockError> {
        let slot = Arc::clone(&self.slots).try_acquire_owned();
        slot.map(Slot).map_err(|_| StockError::Overloaded {
            what: "this replica has as many writes under way as MAX_IN_FLIGHT allows",
        })
    }

    /// Runs `operation` in a task of its own, and waits for it until the deadline.
    ///
    /// # Errors
    /// The operation's own, and [`StockError::OutcomeUnknown`] when the deadline passes first: the
    /// task goes on.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the operation.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        slot: Slot,
        operation: impl Future<Output = Result<T, StockError>> + Send + 'static,
    ) -> Result<T, StockError> {
        let caller = Arc::new(());
        let waiting = Arc::downgrade(&caller);
        let task = async move {
            let result = operation.await;
            drop(slot);
            if let (Err(error), 0) = (&result, waiting.strong_count()) {
                log_unheard(error);
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

    /// How many are under way.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.tasks.len()
    }

    /// Waits until none is under way. Cancel safe.
    pub async fn drained(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// A failure that no answer tells of any more; refusals and contention are nobody's loss.
fn log_unheard(error: &StockError) {
    match error {
        StockError::Internal { .. } | StockError::OutcomeUnknown { .. } => {
            let cause = error.source().map(ToString::to_string);
            tracing::warn!(%error, cause, "a write failed after its caller had left");
        }
        _ => tracing::debug!(%error, "a write was refused after its caller had left"),
    }
}
