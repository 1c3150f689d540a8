//! From attempts to an answer: bounded retries, and commits in doubt.
//!
//! Every attempt of an operation carries the same operation id, and the ledger's unique index
//! takes it once only. So a commit in doubt is settled by executing again: if the first attempt
//! did happen, or is still happening, the index says so. (A look-up could not: the first
//! transaction may still be open.)
//!
//! Neither spawns nor sleeps by a clock of its own: all pauses go through the policy's sleep, so
//! that the tests can explore every interleaving. What keeps a disconnect or a deadline from
//! cutting it short is [`crate::operations`].

use crate::retry::{Retry, RetryPolicy};
use crate::stock::StockError;
use crate::store::{DriverError, StoreError};

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
    // What left the first attempt in doubt whose commit may have happened.
    let mut doubt: Option<DriverError> = None;
    loop {
        let mut lost = None;
        match attempt(doubt.is_some()).await {
            Ok(Step::Final(answer)) => return answer,
            Ok(Step::Again) | Err(StoreError::Conflict(_) | StoreError::LockWait(_)) => {}
            Err(StoreError::OutcomeUnknown(source)) if doubt.is_none() => {
                retry.allow_for_doubt();
                doubt = Some(source);
            }
            Err(error @ StoreError::ConnectionLost(_)) => lost = Some(error),
            Err(_) if doubt.is_some() => {}
            Err(error) => return Err(error.into()),
        }
        if !retry.again().await {
            return Err(match (doubt, lost) {
                (Some(source), _) => StockError::OutcomeUnknown { source },
                (None, Some(error)) => error.into(),
                (None, None) => contended(&retry),
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
