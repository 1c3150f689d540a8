//! How far a race has got, on standard error: a bar on a terminal, else one line for each strategy.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

use super::row::Row;
use stocklock_core::strategy::Strategy;

const TEMPLATE: &str = "{prefix:14} [{bar:32}] {pos}/{len} orders  {msg}  {elapsed}";

/// How progress is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// A bar for each strategy.
    Bars,
    /// A line for each strategy, when it has run.
    Lines,
    /// Not at all.
    Silent,
}

impl Progress {
    /// Bars where standard error is a terminal, else lines.
    #[must_use]
    pub fn for_stderr() -> Self {
        if std::io::stderr().is_terminal() {
            Self::Bars
        } else {
            Self::Lines
        }
    }

    pub(super) fn begin(self, strategy: Strategy, orders: usize) -> Track {
        let bar = match self {
            Self::Bars => {
                let bar = ProgressBar::new(u64::try_from(orders).unwrap_or(u64::MAX));
                let style = ProgressStyle::with_template(TEMPLATE);
                bar.set_style(style.expect("the template is well-formed"));
                bar.set_prefix(strategy.name());
                Some(bar)
            }
            Self::Lines | Self::Silent => None,
        };
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
    /// Shows how many orders are settled, and how many of them sold.
    pub(super) fn show(&self, settled: u64, sold: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(settled);
            bar.set_message(format!("{sold} sold"));
        }
    }

    /// Shows how it ended.
    pub(super) fn finish(self, row: &Row) {
        match (self.progress, self.bar) {
            (Progress::Bars, Some(bar)) => {
                bar.set_position(row.orders);
                bar.finish_with_message(format!("{} sold: {}", row.sold, row.verdict));
            }
            (Progress::Lines, _) => eprintln!(
                "{}: {} orders in {:.1} s, {} sold: {}",
                row.strategy, row.orders, row.wall_seconds, row.sold, row.verdict
            ),
            (Progress::Bars | Progress::Silent, _) => {}
        }
    }
}
