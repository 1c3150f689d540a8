//! From attempts to an answer: bounded retries, and commits in doubt.
//!
//! Every attempt of an operation carries the same operation id, and the ledger's unique index
//! takes it once only. So a commit in doubt is settled by executing again: if the first attempt
//! did happen, or is still happening, the index says so. (A look-up could not: the first
//! transaction may still be open.)
//!
//! [`until_settled`] neither spawns nor sleeps by a clock of its own: all pauses go through the
//! policy's sleep, so that the tests can explore every interleaving. [`detached`] is what keeps a
//! disconnect or a deadline from cutting it short.

use std::time::Duration;

use tokio_util::task::TaskTracker;
use tracing::Instrument;

use crate::retry::{Retry, RetryPolicy};
use crate::stock::StockError;
use crate::store::StoreError;

/// What an attempt that the store carried out means.
pub(crate) enum Step<T> {
    /// It settles the request.
    Final(Result<T, StockError>),
    /// Others were faster; another attempt may succeed.
    Again,
}

/// Makes attempts until one settles the request or the policy is used up. The attempt is told
/// whether an earlier one is in doubt: its commit may have happened.
///
/// # Errors
/// Everything but [`StockError::OutcomeUnknown`] means that nothing was changed.
pub(crate) async fn until_settled<T, F>(
    policy: &RetryPolicy,
    mut attempt: impl FnMut(bool) -> F,
) -> Result<T, StockError>
where
    F: Future<Output = Result<Step<T>, StoreError>>,
{
    let mut retry = policy.start();
    let mut in_doubt = false;
    loop {
        let mut lost = None;
        match attempt(in_doubt).await {
            Ok(Step::Final(answer)) => return answer,
            Ok(Step::Again) | Err(StoreError::Conflict(_) | StoreError::LockWait(_)) => {}
            Err(StoreError::OutcomeUnknown(_)) => in_doubt = true,
            Err(error @ StoreError::ConnectionLost(_)) => lost = Some(error),
            Err(_) if in_doubt => {}
            Err(error) => return Err(error.into()),
        }
        if !retry.again().await {
            return Err(match lost {
                _ if in_doubt => StockError::OutcomeUnknown,
                Some(error) => error.into(),
                None => contended(&retry),
            });
        }
    }
}

fn contended(retry: &Retry<'_>) -> StockError {
    StockError::Contended {
        attempts: retry.attempts(),
        waited: retry.waited(),
    }
}

/// Runs `operation` in a task of its own, and waits for it until the deadline.
///
/// # Errors
/// The operation's own, and [`StockError::OutcomeUnknown`] when the deadline passes first: the
/// task goes on.
///
/// # Cancel safety
/// Dropping the future does not stop the operation; the tracker waits for it at shutdown.
pub(crate) async fn detached<T: Send + 'static>(
    tasks: &TaskTracker,
    deadline: Duration,
    operation: impl Future<Output = Result<T, StockError>> + Send + 'static,
) -> Result<T, StockError> {
    let task = tasks.spawn(operation.in_current_span());
    match tokio::time::timeout(deadline, task).await {
        Ok(Ok(result)) => result,
        Ok(Err(join_error)) => Err(StockError::Internal {
            what: join_error.to_string(),
        }),
        Err(_deadline) => Err(StockError::OutcomeUnknown),
    }
}
