//! The clock of a server, as this process has last read it.
//!
//! It tells when an attempt expires. If it is wrong, attempts expire too early or too late, but none is
//! taken for dead that is not: only readings of the server's own clock are compared for that.

use std::time::Duration;

use tokio::time::Instant;

use stocklock_core::ports::Expiry;

/// After this time the clock is read again: it may have been set, and clocks drift apart.
const TRUSTED: Duration = Duration::from_secs(10);

/// The part of the time until the deadline after which an attempt expires, so that it has expired on
/// the server's clock when the caller is answered.
const BEFORE_DEADLINE: f64 = 0.95;

/// What a server's clock showed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ServerClock {
    /// Milliseconds since 1970, rounded down.
    showed: i64,
    /// When the answer had arrived. The reading was earlier, so the server's clock shows no less than
    /// the difference to this time suggests.
    at: Instant,
}

impl ServerClock {
    /// A clock that has just been read. A server may have rounded up: an attempt that is sent at its
    /// deadline would have half a millisecond to be made after it.
    pub(crate) fn shows(millis: i64) -> Self {
        Self {
            showed: millis - 1,
            at: Instant::now(),
        }
    }

    pub(crate) fn is_recent(&self) -> bool {
        self.at.elapsed() < TRUSTED
    }

    /// When a request expires that is sent now: when the wait limit has passed, and before `deadline`.
    pub(crate) fn expiry(&self, deadline: Instant, wait_limit: Duration) -> Expiry {
        let now = Instant::now();
        let left = deadline.saturating_duration_since(now);
        let here = now + wait_limit.min(left.mul_f64(BEFORE_DEADLINE));
        Expiry {
            at: self.at(here),
            here,
        }
    }

    /// What it shows at `time`, in milliseconds since 1970.
    pub(crate) fn at(&self, time: Instant) -> i64 {
        let since_reading = time.saturating_duration_since(self.at).as_millis();
        let since_reading = i64::try_from(since_reading).unwrap_or(i64::MAX);
        self.showed.saturating_add(since_reading)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn request_sent_after_the_deadline_has_expired() {
        let rounded_up = 1_000;
        let clock = ServerClock::shows(rounded_up);
        let expiry = clock.expiry(Instant::now(), Duration::from_secs(1));
        assert!(expiry.at < rounded_up, "{expiry:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn request_expires_at_the_wait_limit_or_before_the_deadline() {
        let (second, at) = (Duration::from_secs(1), Instant::now());
        let clock = ServerClock { showed: 500, at };
        tokio::time::advance(3 * second).await;
        for (left, wait_limit, expires) in [(10, 2, 5_500), (10, 20, 13_000), (0, 2, 3_500)] {
            let expiry = clock.expiry(Instant::now() + left * second, wait_limit * second);
            assert_eq!(expiry.at, expires);
            let here = expiry.here - at;
            assert_eq!(here.as_millis(), u128::try_from(expires - 500).unwrap());
        }
    }
}
