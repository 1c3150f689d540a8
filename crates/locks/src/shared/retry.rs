//! Repeated requests, and the pauses between them.

use std::time::Duration;

use crate::shared::clock::Clock;
use crate::shared::error::BackendError;

const FIRST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_millis(250);
const LONGEST_OF_RELEASES: Duration = Duration::from_secs(10);

/// Exponential backoff, by default up to 250 ms, with full jitter, so that processes that failed together
/// do not retry together.
#[derive(Debug)]
pub(crate) struct Backoff {
    failures: u32,
    longest: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            failures: 0,
            longest: LONGEST,
        }
    }
}

impl Backoff {
    /// For releases of a lock with this lease. The longest pause is a quarter of it, from 250 ms to ten seconds:
    /// a refusal may last long, and a lock must be free soon after it.
    pub(crate) fn of_releases(lease: Duration) -> Self {
        Self {
            failures: 0,
            longest: (lease / 4).clamp(LONGEST, LONGEST_OF_RELEASES),
        }
    }

    pub(crate) fn next(&mut self) -> Duration {
        let ceiling = FIRST.saturating_mul(2_u32.saturating_pow(self.failures));
        let ceiling = ceiling.min(self.longest);
        self.failures += 1;
        ceiling
            .mul_f64(fastrand::f64())
            .max(Duration::from_millis(1))
    }

    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
}

/// Repeats a request until it is executed, for twice the response limit. Returns the last
/// error after that, and a permanent one at once.
pub(crate) async fn until_executed<T, F>(
    limit: Duration,
    clock: &dyn Clock,
    mut request: impl FnMut() -> F + Send,
) -> Result<T, BackendError>
where
    T: Send,
    F: Future<Output = Result<T, BackendError>> + Send,
{
    let until = clock.now() + limit * 2;
    let mut backoff = Backoff::default();
    loop {
        let answer = tokio::select! {
            answer = request() => answer,
            () = clock.sleep_until(until) => {
                let cause = "no answer within twice the response limit";
                Err(BackendError::transient(cause))
            }
        };
        let error = match answer {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        let again = clock.now() + backoff.next();
        if error.is_permanent() || again >= until {
            return Err(error);
        }
        clock.sleep_until(again).await;
    }
}

/// Returns a random duration between 75 % and 100 % of `duration`.
#[cfg(any(feature = "redis", feature = "sql"))]
pub(crate) fn jittered(duration: Duration) -> Duration {
    duration.mul_f64(0.75 + fastrand::f64() / 4.0)
}
