//! The progress of a race on standard error: a bar on a terminal, otherwise one line per strategy.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

use super::row::Row;
use stocklock_core::strategy::Strategy;

const TEMPLATE: &str = "{prefix:14} [{bar:32}] {pos}/{len} orders  {msg}  {elapsed}";

/// How progress is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// A bar for each strategy.
    Bars,
    /// A line for each strategy after its run.
    Lines,
    /// Not at all.
    Silent,
}

impl Progress {
    /// Bars if standard error is a terminal, otherwise lines.
    #[must_use]
    pub fn for_stderr() -> Self {
        if std::io::stderr().is_terminal() {
            Self::Bars
        } else {
            Self::Lines
        }
    }

    pub(super) fn begin(self, strategy: Strategy, orders: usize) -> Track {
        let bar = (self == Self::Bars).then(|| {
            let style = ProgressStyle::with_template(TEMPLATE).expect("a valid template");
            let bar = ProgressBar::new(orders as u64).with_style(style);
            bar.with_prefix(strategy.name())
        });
        Track {
            progress: self,
            bar,
        }
    }
}

/// The progress of one strategy's run.
#[derive(Debug)]
pub(super) struct Track {
    progress: Progress,
    bar: Option<ProgressBar>,
}

impl Track {
    /// Shows the number of settled orders and of sales.
    pub(super) fn show(&self, settled: u64, sold: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(settled);
            bar.set_message(format!("{sold} sold"));
        }
    }

    /// Shows the result.
    pub(super) fn finish(self, row: &Row) {
        if let Some(bar) = &self.bar {
            bar.set_position(row.orders);
            bar.finish_with_message(format!("{} sold: {}", row.sold, row.verdict));
        }
        if self.progress == Progress::Lines {
            eprintln!(
                "{}: {} orders in {:.1} s, {} sold: {}",
                row.strategy, row.orders, row.wall_seconds, row.sold, row.verdict
            );
        }
    }
}
