//! Pauses between attempts.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_millis(250);

/// Exponential backoff up to 250 ms with full jitter, so that processes that failed together do not
/// retry together.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    pub(crate) fn next(&mut self) -> Duration {
        let ceiling = (FIRST * 2_u32.pow(self.failures.min(10))).min(LONGEST);
        self.failures += 1;
        ceiling
            .mul_f64(fastrand::f64())
            .max(Duration::from_millis(1))
    }

    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
}

/// Returns a random duration between 75 % and 100 % of `duration`.
#[cfg(any(feature = "redis", feature = "sql"))]
pub(crate) fn jittered(duration: Duration) -> Duration {
    duration.mul_f64(0.75 + fastrand::f64() / 4.0)
}
