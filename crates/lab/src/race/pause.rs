//! The pause before a request is repeated.

use std::time::Duration;

/// Bound of the first random pause. It doubles with each attempt, up to [`MAX_PAUSE`].
const BASE_PAUSE: Duration = Duration::from_millis(4);
const MAX_PAUSE: Duration = Duration::from_millis(200);

/// A longer `Retry-After` is cut to this.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(2);

/// The pause after the given attempt. Without `Retry-After` it has full jitter. With it, the pause
/// is between half of it and all of it, so that not all buyers return at once.
pub(super) fn pause(attempt: u32, retry_after: Option<Duration>) -> Duration {
    if let Some(asked) = retry_after {
        let asked = asked.min(MAX_RETRY_AFTER);
        return asked.mul_f64(f64::midpoint(1.0, fastrand::f64()));
    }
    let doublings = (attempt - 1).min(16);
    let bound = (BASE_PAUSE * (1 << doublings)).min(MAX_PAUSE);
    bound.mul_f64(fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_bounded() {
        assert!(pause(1, None) <= BASE_PAUSE && pause(50, None) <= MAX_PAUSE);
        let asked = pause(1, Some(Duration::from_mins(1)));
        assert!(asked >= MAX_RETRY_AFTER / 2 && asked <= MAX_RETRY_AFTER);
    }
}
