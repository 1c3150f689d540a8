//! The progress of a race on standard error: live counts on a terminal, otherwise a line per strategy.

use std::sync::Mutex;

use indicatif::{ProgressBar, ProgressStyle};

use crate::race::{Event, Row, Start, Tick};

const TEMPLATE: &str = "{prefix:14} [{bar:24}] {pos}/{len} orders  {msg}  {elapsed}";

/// What is shown of a race while it runs.
#[derive(Debug)]
pub(super) struct Progress {
    quiet: bool,
    /// Writes a line to standard error.
    log: fn(&str),
    run: Mutex<Run>,
}

/// The strategy that runs.
#[derive(Debug)]
struct Run {
    bar: ProgressBar,
    stock: i64,
    quantity: i64,
}

impl Progress {
    /// `quiet`: shows nothing.
    pub(super) fn new(quiet: bool, log: fn(&str)) -> Self {
        let run = Run {
            bar: ProgressBar::hidden(),
            stock: 0,
            quantity: 1,
        };
        Self {
            quiet,
            log,
            run: Mutex::new(run),
        }
    }

    /// Shows an event.
    pub(super) fn show(&self, event: &Event) {
        if self.quiet {
            return;
        }
        let mut run = self.run.lock().expect("showing does not panic");
        match event {
            Event::Lineup(_) => {}
            Event::Start(start) => *run = Run::begin(start),
            Event::Tick(tick) => run.tick(tick),
            Event::Row(row) => run.finish(row, self.log),
        }
    }
}

impl Run {
    fn begin(start: &Start) -> Self {
        let bar = ProgressBar::new(start.orders.unsigned_abs());
        let style = ProgressStyle::with_template(TEMPLATE).expect("a valid template");
        Self {
            bar: bar.with_style(style).with_prefix(start.strategy.name()),
            stock: start.stock,
            quantity: start.quantity,
        }
    }

    fn tick(&mut self, tick: &Tick) {
        let settled = tick.sold / self.quantity + tick.refused + tick.failed;
        self.bar.set_position(settled.unsigned_abs());
        let mut message = format!("{} sold", tick.sold);
        let oversold = tick.sold - self.stock;
        if oversold > 0 {
            message = format!("{message}, {oversold} do not exist");
        }
        self.bar
            .set_message(format!("{message}, {:.0}/s", tick.rate));
    }

    fn finish(&mut self, row: &Row, log: fn(&str)) {
        let result = format!("{} sold: {}", row.answers.sold, row.verdict);
        if self.bar.is_hidden() {
            let (strategy, orders, seconds) = (row.strategy, row.orders, row.wall_seconds);
            log(&format!(
                "{strategy}: {orders} orders in {seconds:.1} s, {result}"
            ));
        }
        self.bar.finish_with_message(result);
    }
}
