//! The report of a race: the table, the evidence and the conclusion.

use std::fmt;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Value, json};

use super::counts::Counts;
use super::lineup::Skipped;
use super::plan::RacePlan;
use super::row::Row;
use super::text::milliseconds;
use super::verdict::Verdict;

/// Head and cell of a column, and whether only the wide table has it.
type Column = (&'static str, fn(&Row) -> String, bool);

/// The first two and the last one are text, the others numbers.
const COLUMNS: [Column; 15] = [
    ("strategy", |row| row.strategy.to_string(), false),
    ("tier", |row| row.tier.to_string(), false),
    ("sold", |row| row.answers.sold.to_string(), false),
    ("refused", |row| row.answers.refused.to_string(), false),
    ("retried", |row| total(&row.answers.retried), true),
    ("failed", |row| row.answers.failed.to_string(), true),
    ("left", |row| row.audit.on_hand.to_string(), true),
    ("oversold", |row| row.audit.oversold.to_string(), false),
    ("drift", |row| row.audit.drift.to_string(), false),
    ("lost\nlocks", |row| total(&row.locks.lost_locks), true),
    (
        "refused\nwrites",
        |row| total(&row.locks.refused_writes),
        true,
    ),
    (
        "req/s",
        |row| format!("{:.0}", row.requests_per_second),
        false,
    ),
    ("p50 ms", |row| latency(row.p50_ms), true),
    ("p99 ms", |row| latency(row.p99_ms), false),
    ("verdict", |row| row.verdict.to_string(), false),
];

/// How the table is shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TableStyle {
    /// All columns. Without it, the table fits into 100 characters.
    pub wide: bool,
    /// The verdicts have colours.
    pub coloured: bool,
}

fn total(counts: &Counts) -> String {
    counts.total().to_string()
}

fn latency(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1}"))
}

/// The result of a race.
#[derive(Debug, Clone)]
pub struct Report {
    /// The network latency that the caller added.
    pub distance: Option<Distance>,
    pub(super) plan: RacePlan,
    /// A row for each strategy, in the order of the runs.
    pub rows: Vec<Row>,
    pub(super) skipped: Vec<Skipped>,
    /// The error that ended the race before all strategies had run.
    pub stopped: Option<String>,
}

/// The round trip that every exchange with a delayed server takes in addition.
#[derive(Debug, Clone)]
pub struct Distance {
    /// The round trip that was asked for.
    pub(crate) rtt: Duration,
    /// The measured round trip of one byte, before the race.
    pub(crate) measured: Duration,
    /// The names of the delayed servers.
    pub(crate) delayed: Vec<&'static str>,
    /// The SQL database is SQLite, which cannot be delayed.
    pub(crate) embedded: bool,
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let delayed = match &self.delayed[..] {
            [most @ .., last] if !most.is_empty() => format!("{} and {last}", most.join(", ")),
            names => names.concat(),
        };
        let (rtt, measured) = (milliseconds(self.rtt), milliseconds(self.measured));
        write!(f, "{delayed} a round trip of {rtt} ms away ")?;
        write!(f, "(measured: {measured:.2} ms)")?;
        if self.embedded {
            f.write_str("; SQLite is part of the process and is not delayed")?;
        }
        Ok(())
    }
}

impl Report {
    /// Whether a strategy broke its promise, or the race did not prove that it kept it.
    #[must_use]
    pub fn broken(&self) -> bool {
        self.stopped.is_some() || self.rows.iter().any(|row| row.verdict.fails())
    }

    /// What the runs of the single strategies do not show, as JSON.
    #[must_use]
    pub fn result(&self) -> Value {
        let distance = self.distance.as_ref();
        json!({
            "broken": self.broken(),
            "conclusion": self.conclusion(),
            "measured_rtt_ms": distance.map(|distance| milliseconds(distance.measured)),
            "delayed": distance.map(|distance| &distance.delayed),
        })
    }

    /// The table, the findings and the conclusion. Every line ends with a line feed.
    #[must_use]
    pub fn table(&self, style: TableStyle) -> String {
        let mut lines = vec![self.figures(style), String::new()];
        lines.extend(self.rows.iter().flat_map(lines_of));
        lines.extend(self.settings());
        lines.extend(self.skipped_lines());
        if let Some(error) = &self.stopped {
            lines.push(format!("race stopped: {error}"));
        }
        lines.push(self.conclusion());
        lines.join("\n") + "\n"
    }

    fn figures(&self, style: TableStyle) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED);
        let columns = COLUMNS.into_iter().filter(|(.., wide)| style.wide || !wide);
        let columns: Vec<_> = columns.collect();
        table.set_header(columns.iter().map(|(head, ..)| *head));
        for row in &self.rows {
            table.add_row(columns.iter().map(|(_, cell, _)| cell(row)));
        }
        for (position, column) in table.column_iter_mut().enumerate() {
            if (2..columns.len() - 1).contains(&position) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let table = table.trim_fmt();
        if !style.coloured {
            return table;
        }
        // The verdict is the last cell of its line. The table must not count the colour's characters.
        let mut rows = self.rows.iter();
        let mut row = rows.next();
        let lines = table.lines().map(|line| match row {
            Some(current) if line.contains(&format!(" {} ", current.strategy)) => {
                let verdict = current.verdict.to_string();
                row = rows.next();
                match line.rsplit_once(&verdict) {
                    Some((before, after)) => {
                        format!("{before}{}{after}", current.verdict.coloured())
                    }
                    None => line.to_owned(),
                }
            }
            _ => line.to_owned(),
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    /// The settings that differ from the default race.
    fn settings(&self) -> Vec<String> {
        let distance = self.distance.as_ref();
        let rtt = distance.map(|distance| format!("rtt: {distance}"));
        let lines = [
            rtt.as_deref(),
            (self.plan.holds)
                .then_some("holds: each buyer held the units of an order, and then confirmed it"),
            (!self.plan.guard).then_some(
                "guard off: lock strategies wrote unconditionally, so no write was refused",
            ),
            (!self.plan.check).then_some(
                "check off: lock strategies did not check whether they had lost their lock",
            ),
        ];
        lines.into_iter().flatten().map(str::to_owned).collect()
    }

    /// One line for each reason.
    fn skipped_lines(&self) -> Vec<String> {
        let mut by_reason: Vec<(&str, Vec<&str>)> = Vec::new();
        for Skipped { strategy, reason } in &self.skipped {
            match by_reason.iter_mut().find(|(known, _)| known == reason) {
                Some((_, names)) => names.push(strategy.name()),
                None => by_reason.push((reason, vec![strategy.name()])),
            }
        }
        let line = |(reason, names): (_, Vec<_>)| format!("skipped {}: {reason}", names.join(", "));
        by_reason.into_iter().map(line).collect()
    }

    /// One sentence for each verdict that occurred.
    fn conclusion(&self) -> String {
        let (stock, orders) = (self.plan.stock, self.plan.total_orders());
        let of_each = match self.plan.lines {
            1 => String::new(),
            lines => format!(" of each of {lines} SKUs"),
        };
        let figures = format!(" ({orders} orders for {stock} in stock{of_each})");
        let sentences = [
            (Verdict::Broken, "PROMISE BROKEN by", ""),
            (Verdict::NotProven, "NOT PROVEN, because orders failed:", ""),
            (Verdict::Exact, "Exact to the unit:", &figures),
            (Verdict::Caught, "Caught losing stock, as expected:", ""),
            (
                Verdict::NotCaught,
                "Not caught this time, which proves nothing:",
                " (try more buyers or more replicas)",
            ),
        ];
        let sentences = sentences.into_iter().filter_map(|(verdict, text, more)| {
            let rows = self.rows.iter().filter(|row| row.verdict == verdict);
            let names: Vec<_> = rows.map(|row| row.strategy.name()).collect();
            (!names.is_empty()).then(|| format!("{text} {}{more}.", names.join(", ")))
        });
        sentences.collect::<Vec<_>>().join(" ")
    }
}

/// The lines below the table for one strategy.
fn lines_of(row: &Row) -> Vec<String> {
    let (answers, mismatch) = (&row.answers, &row.mismatch);
    let mut lines = Vec::new();
    // An unsafe strategy is expected to oversell, but not to lose or invent answered orders.
    let unexpected = mismatch.lost + mismatch.phantom + answers.sold_after_refusal > 0;
    if !row.findings.is_empty() && (row.verdict.fails() || unexpected) {
        lines.push(row.findings.join("; "));
    }
    if answers.failed > 0 {
        let (failed, unknown) = (answers.failed, answers.unknown);
        let orders = format!("{failed} orders failed, {unknown} with an unknown outcome");
        lines.push(format!("{orders}: {}", answers.failures.join("; ")));
    }
    lines.extend(row.remarks.iter().cloned());
    lines.extend(row.evidence.iter().map(ToString::to_string));
    let named = lines.iter().map(|line| format!("{}: {line}", row.strategy));
    named.collect()
}
