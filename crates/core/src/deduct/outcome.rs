//! The retry loop for one write.
//!
//! Every attempt of an operation carries the same operation id, and the ledger's unique index
//! accepts that id once. So a write whose outcome is unknown is executed again: if an earlier
//! attempt happened, or is still in flight, the index says so. A look-up could not decide, because
//! the first transaction may still be open.
//!
//! This code neither spawns nor sleeps by a clock of its own: all pauses go through the policy's
//! sleep, so that tests can explore every interleaving. [`super::WritePool`] protects it from
//! disconnects and deadlines.

use crate::deduct::RetryPolicy;
use crate::ports::{DriverError, StoreError};
use crate::stock::StockError;

/// What an attempt that the store answered means for the request.
pub(crate) enum Outcome<T> {
    /// The request is answered with this.
    Done(Result<T, StockError>),
    /// Another writer was faster; another attempt may succeed.
    Retry,
}

/// Makes attempts until one answers the request or the policy's bounds are reached. The argument of
/// `attempt` says whether the outcome of an earlier attempt is unknown.
///
/// # Errors
/// Every error but [`StockError::OutcomeUnknown`] means that nothing was changed.
pub(crate) async fn run_to_outcome<T, F>(
    policy: &RetryPolicy,
    mut attempt: impl FnMut(bool) -> F,
) -> Result<T, StockError>
where
    F: Future<Output = Result<Outcome<T>, StoreError>>,
{
    let mut retry = policy.start();
    // The error of the first attempt whose outcome is unknown.
    let mut unknown: Option<DriverError> = None;
    loop {
        let mut lost = None;
        match attempt(unknown.is_some()).await {
            Ok(Outcome::Done(answer)) => return answer,
            Ok(Outcome::Retry) | Err(StoreError::Aborted(_) | StoreError::LockWait(_)) => {}
            Err(StoreError::OutcomeUnknown(source)) if unknown.is_none() => {
                retry.extend_for_unknown_outcome();
                unknown = Some(source);
            }
            Err(error @ StoreError::ConnectionLost(..)) => lost = Some(error),
            Err(_) if unknown.is_some() => {}
            Err(error) => return Err(error.into()),
        }
        if !retry.again().await {
            return Err(match (unknown, lost) {
                (Some(source), _) => StockError::OutcomeUnknown { source },
                (None, Some(error)) => error.into(),
                (None, None) => StockError::Contended {
                    attempts: retry.attempts(),
                },
            });
        }
    }
}
