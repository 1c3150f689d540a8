//! The retry loop for one write.
//!
//! Every attempt of an operation carries the same operation id, and the ledger's unique index
//! accepts that id once. So a write whose outcome is unknown is executed again: if an earlier
//! attempt happened, or is still in flight, the index says so. A look-up could not decide, because
//! the first transaction may still be open.
//!
//! An attempt whose outcome is unknown may also be made late, because its message is still on the way.
//! Until it has expired, no refusal is definite: only what the ledger has, or the success of a new
//! attempt, answers the caller.
//!
//! This code neither spawns nor sleeps by a clock of its own: all pauses go through the policy's
//! sleep, so that tests can explore every interleaving. [`super::WritePool`] protects it from
//! disconnects and deadlines.

use std::time::Duration;

use tokio::time::Instant;

use crate::deduct::RetryPolicy;
use crate::ports::{Expiry, LateAttempt, OperationStore, StoreError};
use crate::stock::{DriverError, Operation, StockError};

/// How much longer to wait for an expiry, because the clocks may drift apart after they are compared.
const CLOCK_MARGIN: Duration = Duration::from_millis(50);

/// What an attempt that the store answered means for the request.
pub(crate) enum Outcome<T> {
    /// The request is answered with this.
    Done(Result<T, StockError>),
    /// Another writer was faster; another attempt may succeed.
    Retry,
}

/// Makes attempts until one answers the request or the policy's bounds are reached. The argument of
/// `attempt` says when the earlier attempts expire whose outcome is unknown.
///
/// # Errors
/// Every error but [`StockError::OutcomeUnknown`] means that nothing was changed. That one is
/// returned only after the attempts have expired.
pub(crate) async fn run_to_outcome<T, F>(
    policy: &RetryPolicy,
    mut attempt: impl FnMut(Option<Expiry>) -> F,
) -> Result<T, StockError>
where
    F: Future<Output = Result<Outcome<T>, StoreError>>,
{
    let mut retry = policy.start();
    // The error of the first attempt whose outcome is unknown, and when the last of them expires.
    let mut unknown: Option<(DriverError, Expiry)> = None;
    loop {
        let mut lost = None;
        match attempt(unknown.as_ref().map(|(_, expiry)| *expiry)).await {
            Ok(Outcome::Done(answer)) => return answer,
            Ok(Outcome::Retry) | Err(StoreError::Aborted(_) | StoreError::LockWait(_)) => {}
            Err(StoreError::OutcomeUnknown(source, expiry)) => {
                if unknown.is_none() {
                    retry.extend_for_unknown_outcome();
                }
                let both = |(first, earlier): (_, Expiry)| (first, earlier.max(expiry));
                unknown = Some(unknown.map_or((source, expiry), both));
            }
            Err(error @ StoreError::ConnectionLost(_)) => lost = Some(error),
            Err(_) if unknown.is_some() => {}
            Err(error) => return Err(error.into()),
        }
        if !retry.again().await {
            return Err(match (unknown, lost) {
                (Some((source, expiry)), _) => {
                    wait_for(policy, expiry).await;
                    StockError::OutcomeUnknown { source }
                }
                (None, Some(error)) => error.into(),
                (None, None) => StockError::Contended {
                    attempts: retry.attempts(),
                },
            });
        }
    }
}

/// Returns when an attempt has expired.
async fn wait_for(policy: &RetryPolicy, expiry: Expiry) {
    let left = expiry.here.saturating_duration_since(Instant::now());
    if !left.is_zero() {
        policy.sleep.sleep(left + CLOCK_MARGIN).await;
    }
}

/// What became of earlier attempts, when the last of them has expired. Only then is a refusal definite.
pub(crate) async fn late_attempt(
    store: &dyn OperationStore,
    policy: &RetryPolicy,
    operation: &Operation,
    expiry: Expiry,
) -> Result<LateAttempt, StoreError> {
    wait_for(policy, expiry).await;
    store.late_attempt(operation, expiry).await
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// An attempt whose outcome is unknown, and that expires this much after `start`.
    fn unknown(start: Instant, after: Duration) -> Result<Outcome<()>, StoreError> {
        let expiry = Expiry {
            at: i64::try_from(after.as_millis()).unwrap(),
            here: start + after,
        };
        Err(StoreError::outcome_unknown("cut").expiring(expiry))
    }

    #[tokio::test(start_paused = true)]
    async fn unknown_outcome_is_answered_after_the_last_expiry() {
        let policy = RetryPolicy::new(2, SECOND, SECOND);
        let start = Instant::now();
        let mut expiries = [3, 2, 1]
            .map(|seconds| unknown(start, seconds * SECOND))
            .into_iter();
        let mut seen = Vec::new();
        let answer = run_to_outcome(&policy, |earlier| {
            seen.push(earlier.map(|expiry| expiry.at));
            let attempt = expiries.next().expect("three attempts");
            async move { attempt }
        })
        .await;
        assert!(matches!(answer, Err(StockError::OutcomeUnknown { .. })));
        assert_eq!(seen, [None, Some(3_000), Some(3_000)]);
        let waited = start.elapsed();
        assert!(waited >= 3 * SECOND && waited < 4 * SECOND, "{waited:?}");
    }
}
