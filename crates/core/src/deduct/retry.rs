//! Bounded retries with full jitter, on an injected sleep.
//!
//! Retries end at a number of attempts or at a time limit, whichever comes first. The sleep is a
//! trait, so that tests can explore every interleaving of the strategies without a clock.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

/// Sleeps between attempts.
#[async_trait]
pub trait Sleep: Send + Sync + fmt::Debug {
    /// Returns after about `duration`. Cancel safe.
    async fn sleep(&self, duration: Duration);
}

/// Sleeps on the tokio clock.
#[derive(Debug)]
pub struct TokioSleep;

#[async_trait]
impl Sleep for TokioSleep {
    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}

/// How often, how long and how fast to retry.
#[derive(Debug, Clone)]
pub struct RetryPolicy {
    /// The maximum number of attempts, the first included.
    pub max_attempts: u32,
    /// No attempt starts later than this after the first one.
    pub wait_limit: Duration,
    /// The same after an unknown outcome, but one more attempt is always allowed. It is longer, because an
    /// unknown outcome costs the caller more than a late answer.
    pub unknown_outcome_limit: Duration,
    /// The first pause is drawn from zero to this; the bound doubles with each attempt.
    pub base_pause: Duration,
    /// The longest pause.
    pub max_pause: Duration,
    /// What sleeps.
    pub sleep: Arc<dyn Sleep>,
}

impl RetryPolicy {
    /// A policy for contended rows: pauses start near the duration of a commit.
    #[must_use]
    pub fn new(max_attempts: u32, wait_limit: Duration, unknown_outcome_limit: Duration) -> Self {
        Self {
            max_attempts,
            wait_limit,
            unknown_outcome_limit,
            base_pause: Duration::from_millis(2),
            max_pause: Duration::from_millis(100),
            sleep: Arc::new(TokioSleep),
        }
    }

    /// Starts counting attempts and time.
    #[must_use]
    pub fn start(&self) -> Retry<'_> {
        Retry {
            policy: self,
            started: Instant::now(),
            attempts: 1,
            max_attempts: self.max_attempts,
            limit: self.wait_limit,
        }
    }
}

/// The attempts of one operation.
#[derive(Debug)]
pub struct Retry<'a> {
    policy: &'a RetryPolicy,
    started: Instant,
    attempts: u32,
    max_attempts: u32,
    limit: Duration,
}

impl Retry<'_> {
    /// Attempts started so far.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Time since the first attempt started.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.started.elapsed()
    }

    /// Extends the bounds after an unknown outcome: as many attempts again, the longer time limit,
    /// and in any case time for one more attempt.
    pub fn extend_for_unknown_outcome(&mut self) {
        self.max_attempts = self.attempts.saturating_add(self.policy.max_attempts);
        self.limit = (self.waited() + self.policy.max_pause).max(self.policy.unknown_outcome_limit);
    }

    /// Pauses, then returns whether another attempt may start.
    pub async fn again(&mut self) -> bool {
        if self.attempts >= self.max_attempts {
            return false;
        }
        let left = self.limit.saturating_sub(self.waited());
        let pause = self.next_pause();
        if left.is_zero() || pause >= left {
            return false;
        }
        self.policy.sleep.sleep(pause).await;
        self.attempts += 1;
        true
    }

    /// Full jitter: uniform between zero and a bound that doubles with each attempt.
    fn next_pause(&self) -> Duration {
        let doublings = (self.attempts - 1).min(16);
        let bound = (self.policy.base_pause * (1 << doublings)).min(self.policy.max_pause);
        bound.mul_f64(fastrand::f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn attempts_are_bounded() {
        let policy = RetryPolicy::new(3, Duration::from_mins(1), Duration::from_mins(1));
        let mut retry = policy.start();
        assert!(retry.again().await && retry.again().await);
        assert!(!retry.again().await);
        assert_eq!(retry.attempts(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn time_is_bounded() {
        let policy = RetryPolicy::new(u32::MAX, Duration::from_secs(2), Duration::from_secs(5));
        let mut retry = policy.start();
        while retry.again().await {}
        let waited = retry.waited();
        assert!(waited <= Duration::from_secs(2), "{waited:?}");
        assert!(retry.attempts() > 20, "{}", retry.attempts());
    }

    #[tokio::test(start_paused = true)]
    async fn unknown_outcome_grants_one_more_attempt_at_any_time() {
        let policy = RetryPolicy::new(1, Duration::from_secs(2), Duration::from_secs(5));
        let mut retry = policy.start();
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert!(!retry.again().await);
        retry.extend_for_unknown_outcome();
        assert!(retry.again().await);
        assert!(!retry.again().await);
    }
}
