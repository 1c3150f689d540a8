//! What the core counts.

use std::fmt;
use std::time::Duration;

/// Counts deductions and other operations, refused writes and answers of counters.
pub trait DeductionMetrics: Send + Sync + fmt::Debug {
    /// Counts one deduction. `outcome` is `deducted`, `replayed`, or an error's code.
    fn deduction(&self, strategy: &'static str, outcome: &'static str, elapsed: Duration);

    /// Counts an operation that is no deduction of one line. `outcome` is `made`, `replayed`, or an error's code.
    fn operation(&self, kind: &'static str, outcome: &'static str);

    /// Counts a hold that has expired: `by` is `sale`, for one that a sale without enough units has ended, or
    /// `background`.
    fn hold_expired(&self, by: &'static str);

    /// Counts a batch of the scheduler, which has this many lines.
    fn batch(&self, lines: usize);

    /// Counts a conditional write that changed no row. `reason` is `version` or `fence`.
    fn write_refused(&self, strategy: &'static str, reason: &'static str);

    /// Counts what a counter in Redis answered: `admitted`, `refused`, `loaded`, `busy`,
    /// `contended` or `unavailable`.
    fn counter_asked(&self, answer: &'static str);
}

/// Counts nothing.
#[derive(Debug)]
pub struct NoMetrics;

impl DeductionMetrics for NoMetrics {
    fn deduction(&self, _: &'static str, _: &'static str, _: Duration) {}

    fn operation(&self, _: &'static str, _: &'static str) {}

    fn hold_expired(&self, _: &'static str) {}

    fn batch(&self, _: usize) {}

    fn write_refused(&self, _: &'static str, _: &'static str) {}

    fn counter_asked(&self, _: &'static str) {}
}
