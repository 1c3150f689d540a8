//! What the buyers of one run counted, and how long their exchanges took.

use std::time::Duration;

use super::connection::{Answer, ExchangeError};
use super::counts::Counts;
use super::order::Settled;

/// So many different failures are kept as text.
const MAX_FAILURES: usize = 5;

/// The counts of one connection's buyers, or of all of them.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Orders that ended with 200: one each, however often they were asked.
    pub(super) acknowledged: u64,
    /// Those of them that an earlier exchange had sold: replays.
    pub(super) replayed: u64,
    /// Orders that ended with 409 `insufficient-stock`.
    pub(super) refused: u64,
    /// Exchanges that repeated an earlier one, by why that one settled nothing.
    pub(super) retried: Counts,
    /// Orders that ended otherwise, or never began.
    pub(super) failed: u64,
    /// Failed orders that may have been sold all the same.
    pub(super) unknown: u64,
    /// The first few different failures.
    pub(super) failures: Vec<String>,
    /// One for each exchange that gave 200 or 409 `insufficient-stock`, in microseconds.
    latencies: Vec<u32>,
}

impl Tally {
    /// Room for the latencies of so many orders.
    pub(super) fn with_capacity(orders: usize) -> Self {
        Self {
            latencies: Vec::with_capacity(orders),
            ..Self::default()
        }
    }

    /// Counts the exchange that settled an order, if it answered it.
    pub(super) fn answered(&mut self, outcome: &Result<Answer, ExchangeError>, settled: &Settled) {
        if let (Ok(answer), Settled::Sold { .. } | Settled::Refused) = (outcome, settled) {
            let micros = u32::try_from(answer.elapsed.as_micros()).unwrap_or(u32::MAX);
            self.latencies.push(micros);
        }
    }

    /// Counts an order.
    pub(super) fn settle(&mut self, settled: Settled) {
        match settled {
            Settled::Sold { replayed } => {
                self.acknowledged += 1;
                self.replayed += u64::from(replayed);
            }
            Settled::Refused => self.refused += 1,
            Settled::Failed { why, unknown } => {
                self.failed += 1;
                self.unknown += u64::from(unknown);
                self.keep(why);
            }
        }
    }

    /// Counts orders for which the time did not suffice; they were never sent.
    pub(super) fn never_placed(&mut self, orders: u64, deadline: Duration) {
        if orders > 0 {
            self.failed += orders;
            let seconds = deadline.as_secs_f64();
            self.keep(format!("{orders} orders not placed within {seconds} s"));
        }
    }

    /// Adds what another connection's buyers counted.
    pub(super) fn merge(&mut self, other: Self) {
        self.acknowledged += other.acknowledged;
        self.replayed += other.replayed;
        self.refused += other.refused;
        self.retried.merge(&other.retried);
        self.failed += other.failed;
        self.unknown += other.unknown;
        self.latencies.extend(other.latencies);
        for why in other.failures {
            self.keep(why);
        }
    }

    /// Orders that came to an end.
    pub(super) fn orders(&self) -> u64 {
        self.acknowledged + self.refused + self.failed
    }

    /// Exchanges that gave 200 or 409 `insufficient-stock`, in a second of `wall` time.
    pub(super) fn per_second(&self, wall: Duration) -> f64 {
        let seconds = wall.as_secs_f64();
        if seconds > 0.0 {
            self.latencies.len() as f64 / seconds
        } else {
            0.0
        }
    }

    /// The latencies, in milliseconds, that the given percentages of exchanges did not exceed;
    /// `None` where there were none.
    pub(super) fn percentiles_ms<const N: usize>(
        &mut self,
        percents: [usize; N],
    ) -> [Option<f64>; N] {
        self.latencies.sort_unstable();
        percents.map(|percent| {
            let micros = percentile(&self.latencies, percent)?;
            Some(f64::from(micros) / 1_000.0)
        })
    }

    fn keep(&mut self, why: String) {
        if self.failures.len() < MAX_FAILURES && !self.failures.contains(&why) {
            self.failures.push(why);
        }
    }
}

/// The smallest value that at least `percent` of the values do not exceed (nearest rank).
fn percentile(sorted: &[u32], percent: usize) -> Option<u32> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let hundred: Vec<u32> = (1..=100).collect();
        assert_eq!(percentile(&hundred, 50), Some(50));
        assert_eq!(percentile(&hundred, 99), Some(99));
        assert_eq!(percentile(&hundred, 100), Some(100));
        assert_eq!(percentile(&[7], 50), Some(7));
        assert_eq!(percentile(&[1, 2], 99), Some(2));
        assert_eq!(percentile(&[], 50), None);
    }

    #[test]
    fn every_order_is_counted_once_and_failures_are_kept_once() {
        let mut all = Tally::default();
        for unknown in [false, true] {
            let mut one = Tally::default();
            one.settle(Settled::Sold { replayed: unknown });
            one.settle(Settled::Refused);
            let why = "500 internal".to_owned();
            one.settle(Settled::Failed { why, unknown });
            all.merge(one);
        }
        all.never_placed(3, Duration::from_secs(1));
        assert_eq!((all.acknowledged, all.replayed, all.refused), (2, 1, 2));
        assert_eq!((all.failed, all.unknown, all.orders()), (5, 1, 9));
        assert_eq!(
            all.failures,
            ["500 internal", "3 orders not placed within 1 s"]
        );
    }
}
