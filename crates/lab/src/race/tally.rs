//! The answers to one run's buyers: their counts, the operation ids in them, and their latencies.

use std::time::Duration;

use serde::Serialize;
use uuid::Uuid;

use super::counts::Counts;

/// The number of different failures that are kept as text.
const MAX_FAILURES: usize = 5;

/// The counts of a run's answers.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Answers {
    /// Orders answered 200.
    pub sold: i64,
    /// Those of them that an earlier exchange had sold, but whose answer was lost.
    pub replayed: i64,
    /// Orders answered 503 whose retry showed that they had been sold.
    pub sold_after_refusal: i64,
    /// Orders answered 409 `insufficient-stock`.
    pub refused: i64,
    /// Repeated exchanges, by the reason for the repetition.
    pub retried: Counts,
    /// Orders that ended otherwise or were never sent.
    pub failed: i64,
    /// Failed orders that the ledger may contain.
    pub unknown: i64,
    /// The first few different failures.
    pub failures: Vec<String>,
}

/// The answers to all buyers of a run.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) answers: Answers,
    /// The operations of the orders answered 200, one per order, and the position of the target that
    /// answered.
    pub(super) sold: Vec<(Uuid, usize)>,
    /// In microseconds.
    latencies: Vec<u32>,
}

impl Tally {
    /// Counts an order answered 200.
    pub(super) fn add_sale(
        &mut self,
        id: Uuid,
        target: usize,
        replayed: bool,
        after_refusal: bool,
    ) {
        self.sold.push((id, target));
        self.answers.sold += 1;
        self.answers.replayed += i64::from(replayed);
        self.answers.sold_after_refusal += i64::from(after_refusal);
    }

    /// Adds the latency of an exchange answered 200 or 409 `insufficient-stock`.
    pub(super) fn add_latency(&mut self, elapsed: Duration) {
        let micros = u32::try_from(elapsed.as_micros()).unwrap_or(u32::MAX);
        self.latencies.push(micros);
    }

    /// Counts a failed order, and keeps the first few different reasons.
    pub(super) fn add_failure(&mut self, reason: String, unknown: bool) {
        let answers = &mut self.answers;
        answers.failed += 1;
        answers.unknown += i64::from(unknown);
        if answers.failures.len() < MAX_FAILURES && !answers.failures.contains(&reason) {
            answers.failures.push(reason);
        }
    }

    /// Counts the rest of `orders` as failed, because they were never sent.
    pub(super) fn fail_rest(&mut self, orders: i64, reason: &str) {
        let sent = self.answers.sold + self.answers.refused + self.answers.failed;
        if orders > sent {
            self.add_failure(
                format!("{} orders not sent: {reason}", orders - sent),
                false,
            );
            self.answers.failed += orders - sent - 1;
        }
    }

    /// Exchanges answered 200 or 409 `insufficient-stock`, per second of `wall` time.
    pub(super) fn per_second(&self, wall: Duration) -> f64 {
        self.latencies.len() as f64 / wall.as_secs_f64()
    }

    /// Median and 99th percentile of the latencies, in milliseconds.
    pub(super) fn percentiles_ms(&mut self) -> [Option<f64>; 2] {
        percentiles_ms(&mut self.latencies)
    }

    /// The latencies after the first `count`, in microseconds.
    pub(super) fn latencies_from(&self, count: usize) -> &[u32] {
        &self.latencies[count..]
    }
}

/// Median and 99th percentile in milliseconds of latencies in microseconds, which it sorts.
pub(super) fn percentiles_ms(latencies: &mut [u32]) -> [Option<f64>; 2] {
    latencies.sort_unstable();
    let micros = [50, 99].map(|percent| percentile(latencies, percent));
    micros.map(|micros| Some(f64::from(micros?) / 1_000.0))
}

/// Nearest rank: the smallest value that at least `percent` of the values do not exceed.
fn percentile(sorted: &[u32], percent: usize) -> Option<u32> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentile_is_the_nearest_rank() {
        let hundred: Vec<u32> = (1..=100).collect();
        for (values, percent, expected) in [
            (&hundred[..], 50, Some(50)),
            (&hundred, 99, Some(99)),
            (&hundred, 100, Some(100)),
            (&[7], 50, Some(7)),
            (&[1, 2], 99, Some(2)),
            (&[], 50, None),
        ] {
            assert_eq!(percentile(values, percent), expected);
        }
    }
}
