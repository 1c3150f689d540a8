//! Pauses between tries.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_millis(250);

/// Pauses that double up to a quarter of a second, each with full jitter, so that processes that
/// failed together do not come back together.
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

/// Between three quarters of `duration` and all of it.
#[cfg(feature = "redis")]
pub(crate) fn jittered(duration: Duration) -> Duration {
    duration.mul_f64(0.75 + fastrand::f64() / 4.0)
}
