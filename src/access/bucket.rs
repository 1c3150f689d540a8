//! A token bucket: the lines that the owner of a key may send to this replica.
//!
//! Written by hand, because the crate `governor` lets no request through that is larger than the burst. So a
//! batch of 1,000 lines would need a burst of 1,000.

use parking_lot::Mutex;
use tokio::time::Instant;

use stocklock_core::access::RateLimit;

/// One token for each line. A request starts if a token is left, and takes one for each of its lines. So a
/// large request is not refused for its size, but those after it wait until the tokens are back.
#[derive(Debug)]
pub(super) struct TokenBucket {
    pub(super) limit: RateLimit,
    /// The tokens at the time; below zero after a large request.
    state: Mutex<(f64, Instant)>,
}

impl TokenBucket {
    pub(super) fn full(limit: RateLimit) -> Self {
        let state = Mutex::new((limit.burst.into(), Instant::now()));
        Self { limit, state }
    }

    /// Takes a token. An error is the time in seconds until there is one.
    pub(super) fn take(&self, now: Instant) -> Result<(), u32> {
        let mut state = self.state.lock();
        let tokens = self.refill(&mut state, now);
        if tokens >= 1.0 {
            state.0 = tokens - 1.0;
            return Ok(());
        }
        let seconds = (1.0 - tokens) / f64::from(self.limit.rate);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive, and a cast saturates"
        )]
        let seconds = seconds.ceil() as u32;
        Err(seconds.max(1))
    }

    /// Takes these tokens, which may not be there.
    pub(super) fn charge(&self, tokens: usize, now: Instant) {
        let mut state = self.state.lock();
        state.0 = self.refill(&mut state, now) - tokens as f64;
    }

    /// Adds the tokens for the time since the last call. Returns how many there are.
    fn refill(&self, state: &mut (f64, Instant), now: Instant) -> f64 {
        let (left, at) = *state;
        let passed = now.saturating_duration_since(at).as_secs_f64();
        let full = f64::from(self.limit.burst);
        let left = (left + passed * f64::from(self.limit.rate)).min(full);
        *state = (left, at.max(now));
        left
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn tokens_come_back_at_the_rate_up_to_the_burst() {
        let (start, limit) = (Instant::now(), RateLimit { rate: 2, burst: 3 });
        let bucket = TokenBucket::full(limit);
        let take = |ms| bucket.take(start + Duration::from_millis(ms));
        assert_eq!(
            [take(0), take(0), take(0), take(0)],
            [Ok(()), Ok(()), Ok(()), Err(1)]
        );
        assert_eq!([take(499), take(500), take(500)], [Err(1), Ok(()), Err(1)]);
        assert_eq!([take(60_000); 1], [Ok(())]);
        assert_eq!(
            [take(60_000), take(60_000), take(60_000)],
            [Ok(()), Ok(()), Err(1)]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn large_request_makes_the_next_ones_wait() {
        let (start, limit) = (Instant::now(), RateLimit { rate: 2, burst: 3 });
        let bucket = TokenBucket::full(limit);
        assert_eq!(bucket.take(start), Ok(()));
        bucket.charge(9, start);
        assert_eq!(bucket.take(start), Err(4));
        assert_eq!(bucket.take(start + Duration::from_secs(4)), Ok(()));
    }
}
