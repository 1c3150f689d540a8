//! Bounded retries with full jitter, on an injected sleep.
//!
//! A retry ends at whichever comes first, the attempts or the time. The sleep is a trait, so that
//! the tests can explore every interleaving of the strategies without a clock.

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

/// The runtime's own clock.
#[derive(Debug)]
pub struct TokioSleep;

#[async_trait]
impl Sleep for TokioSleep {
    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}

/// How often, how long and how fast to try again.
#[derive(Debug, Clone)]
pub struct RetryPolicy {
    /// The most attempts, the first included.
    pub max_attempts: u32,
    /// No attempt starts later than this after the first one.
    pub wait_limit: Duration,
    /// Once a commit is in doubt, attempts to find out start until this long after the first one:
    /// an answer that is not known costs the caller more than one that comes late.
    pub doubt_limit: Duration,
    /// The first pause is drawn from zero to this; each later one from zero to twice as much.
    pub base_pause: Duration,
    /// The longest pause.
    pub max_pause: Duration,
    /// What pauses.
    pub sleep: Arc<dyn Sleep>,
}

impl RetryPolicy {
    /// A policy for contended rows: pauses start near a commit's duration.
    #[must_use]
    pub fn new(max_attempts: u32, wait_limit: Duration, doubt_limit: Duration) -> Self {
        Self {
            max_attempts,
            wait_limit,
            doubt_limit,
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

/// One operation's attempts so far.
#[derive(Debug)]
pub struct Retry<'a> {
    policy: &'a RetryPolicy,
    started: Instant,
    attempts: u32,
    max_attempts: u32,
    limit: Duration,
}

impl Retry<'_> {
    /// Attempts begun so far.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Time since the first attempt began.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.started.elapsed()
    }

    /// A commit is in doubt: grants as many attempts again, the doubt limit instead of the wait
    /// limit, and in any case time for one.
    pub fn allow_for_doubt(&mut self) {
        self.max_attempts = self.attempts.saturating_add(self.policy.max_attempts);
        self.limit = (self.waited() + self.policy.max_pause).max(self.policy.doubt_limit);
    }

    /// Pauses, then answers whether another attempt may begin.
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
        assert!(
            retry.waited() <= Duration::from_secs(2),
            "{:?}",
            retry.waited()
        );
        assert!(retry.attempts() > 20, "{}", retry.attempts());
    }

    #[tokio::test(start_paused = true)]
    async fn doubt_grants_another_attempt_however_late_it_comes() {
        let policy = RetryPolicy::new(1, Duration::from_secs(2), Duration::from_secs(5));
        let mut retry = policy.start();
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert!(!retry.again().await);
        retry.allow_for_doubt();
        assert!(retry.again().await);
        assert!(!retry.again().await);
    }
}
