//! The progress of a race on standard error: a bar on a terminal, otherwise one line per strategy.

use indicatif::{ProgressBar, ProgressStyle};

use super::row::Row;
use stocklock_core::strategy::Strategy;

const TEMPLATE: &str = "{prefix:14} [{bar:32}] {pos}/{len} orders  {msg}  {elapsed}";

/// Whether progress is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// A bar for each strategy if standard error is a terminal, otherwise a line after its run.
    Shown,
    /// Not at all.
    Silent,
}

impl Progress {
    /// The bar of one run. It is hidden unless it is shown on a terminal.
    pub(super) fn begin(self, strategy: Strategy, orders: i64) -> ProgressBar {
        let bar = match self {
            Self::Shown => ProgressBar::new(orders.unsigned_abs()),
            Self::Silent => ProgressBar::hidden(),
        };
        let style = ProgressStyle::with_template(TEMPLATE).expect("a valid template");
        bar.with_style(style).with_prefix(strategy.name())
    }

    /// Shows the result of the run.
    pub(super) fn finish(self, bar: &ProgressBar, row: &Row) {
        let result = format!("{} sold: {}", row.answers.sold, row.verdict);
        if self == Self::Shown && bar.is_hidden() {
            let (strategy, orders, seconds) = (row.strategy, row.orders, row.wall_seconds);
            eprintln!("{strategy}: {orders} orders in {seconds:.1} s, {result}");
        }
        bar.finish_with_message(result);
    }
}
