//! The counts of one run's buyers, the operation ids that they were given, and the latencies.

use std::time::Duration;

use uuid::Uuid;

use super::counts::Counts;
use super::order::Settled;

/// The number of different failures that are kept as text.
const MAX_FAILURES: usize = 5;

/// The counts of one connection's buyers, or of all buyers.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// The operations of the orders answered 200, one per order.
    pub(super) answered: Vec<Uuid>,
    /// Those that were sold by an earlier exchange of the order.
    pub(super) replayed: u64,
    /// Those that were sold although every earlier exchange was answered with a refusal.
    pub(super) sold_after_refusal: u64,
    /// Orders answered 409 `insufficient-stock`.
    pub(super) refused: u64,
    /// Repeated exchanges, by the reason for the repetition.
    pub(super) retried: Counts,
    /// Orders that ended otherwise or were never sent.
    pub(super) failed: u64,
    /// Failed orders that the ledger may contain.
    pub(super) unknown: u64,
    /// The first few different failures.
    pub(super) failures: Vec<String>,
    /// In microseconds, one for each exchange answered 200 or 409 `insufficient-stock`.
    latencies: Vec<u32>,
}

impl Tally {
    /// Creates a tally with space for this number of orders.
    pub(super) fn with_capacity(orders: usize) -> Self {
        Self {
            answered: Vec::with_capacity(orders),
            latencies: Vec::with_capacity(orders),
            ..Self::default()
        }
    }

    /// Adds the latency of an exchange.
    pub(super) fn add_latency(&mut self, elapsed: Duration) {
        let micros = u32::try_from(elapsed.as_micros()).unwrap_or(u32::MAX);
        self.latencies.push(micros);
    }

    /// Counts an order.
    pub(super) fn settle(&mut self, settled: Settled) {
        match settled {
            Settled::Sold(sold) => {
                self.answered.push(sold.id);
                self.replayed += u64::from(sold.replayed);
                self.sold_after_refusal += u64::from(sold.after_refusal);
            }
            Settled::Refused => self.refused += 1,
            Settled::Failed(failed) => {
                self.failed += 1;
                self.unknown += u64::from(failed.unknown);
                self.keep(failed.reason);
            }
        }
    }

    /// Counts orders that were never sent.
    pub(super) fn never_sent(&mut self, orders: u64, reason: &str) {
        if orders > 0 {
            self.failed += orders;
            self.keep(format!("{orders} orders not sent: {reason}"));
        }
    }

    /// Adds the counts of another connection's buyers.
    pub(super) fn merge(&mut self, other: Self) {
        self.answered.extend(other.answered);
        self.replayed += other.replayed;
        self.sold_after_refusal += other.sold_after_refusal;
        self.refused += other.refused;
        self.retried.merge(&other.retried);
        self.failed += other.failed;
        self.unknown += other.unknown;
        self.latencies.extend(other.latencies);
        for reason in other.failures {
            self.keep(reason);
        }
    }

    /// Orders answered 200.
    pub(super) fn sold(&self) -> u64 {
        self.answered.len() as u64
    }

    /// All orders.
    pub(super) fn orders(&self) -> u64 {
        self.sold() + self.refused + self.failed
    }

    /// Exchanges answered 200 or 409 `insufficient-stock`, per second of `wall` time.
    pub(super) fn per_second(&self, wall: Duration) -> f64 {
        let seconds = wall.as_secs_f64();
        if seconds > 0.0 {
            self.latencies.len() as f64 / seconds
        } else {
            0.0
        }
    }

    /// Percentiles of the latencies, in milliseconds; `None` if there are no latencies.
    pub(super) fn percentiles_ms<const N: usize>(
        &mut self,
        percents: [usize; N],
    ) -> [Option<f64>; N] {
        self.latencies.sort_unstable();
        let micros = percents.map(|percent| percentile(&self.latencies, percent));
        micros.map(|micros| Some(f64::from(micros?) / 1_000.0))
    }

    fn keep(&mut self, reason: String) {
        if self.failures.len() < MAX_FAILURES && !self.failures.contains(&reason) {
            self.failures.push(reason);
        }
    }
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
