//! What a race found: the table, the evidence, and a closing sentence; or all of it as JSON.

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Value, json};

use super::distance::Distance;
use super::lineup::Skipped;
use super::plan::RacePlan;
use super::row::{Row, Verdict};
use super::target::Target;
use stocklock_core::stock::Home;

/// A column of the table; a new one is a line of [`COLUMNS`].
struct Column {
    head: &'static str,
    align: CellAlignment,
    cell: fn(&Row) -> String,
}

const fn text(head: &'static str, cell: fn(&Row) -> String) -> Column {
    Column {
        head,
        align: CellAlignment::Left,
        cell,
    }
}

const fn figure(head: &'static str, cell: fn(&Row) -> String) -> Column {
    Column {
        head,
        align: CellAlignment::Right,
        cell,
    }
}

const COLUMNS: [Column; 15] = [
    text("strategy", |row| row.strategy.to_string()),
    text("tier", |row| row.tier.to_string()),
    figure("sold", |row| row.sold.to_string()),
    figure("refused", |row| row.refused.to_string()),
    figure("retried", |row| row.retried.total().to_string()),
    figure("failed", |row| row.failed.to_string()),
    figure("left", |row| row.left.to_string()),
    figure("oversold", |row| row.oversold.to_string()),
    figure("drift", |row| row.drift.to_string()),
    figure("lost\nlocks", |row| {
        row.locks.lost_locks.total().to_string()
    }),
    figure("refused\nwrites", |row| {
        row.locks.refused_writes.total().to_string()
    }),
    figure("req/s", |row| format!("{:.0}", row.requests_per_second)),
    figure("p50 ms", |row| milliseconds(row.p50_ms)),
    figure("p99 ms", |row| milliseconds(row.p99_ms)),
    text("verdict", |row| row.verdict.to_string()),
];

fn milliseconds(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1}"))
}

/// What a race found.
#[derive(Debug, Clone)]
pub struct Report {
    /// What was to be run.
    pub plan: RacePlan,
    /// Where it was run.
    pub targets: Vec<Target>,
    /// A row for each strategy, in the order in which they ran.
    pub rows: Vec<Row>,
    /// The strategies that did not run.
    pub skipped: Vec<Skipped>,
    /// How far the targets' services were, if the caller put them at a distance.
    pub distance: Option<Distance>,
}

impl Report {
    /// The same report, with the network latency that was added.
    #[must_use]
    pub fn with_distance(self, distance: Distance) -> Self {
        Self {
            distance: Some(distance),
            ..self
        }
    }

    /// Whether a strategy broke its promise, or left it unproven: exit code 1.
    #[must_use]
    pub fn broken(&self) -> bool {
        self.rows.iter().any(|row| row.verdict.fails())
    }

    /// Everything, for machines.
    #[must_use]
    pub fn json(&self) -> Value {
        let mut json = json!({
            "plan": self.plan,
            "targets": self.targets,
            "rows": self.rows,
            "skipped": self.skipped,
            "broken": self.broken(),
            "conclusion": self.conclusion(),
        });
        for (key, value) in Distance::json(self.distance.as_ref()) {
            json[key] = value;
        }
        json
    }

    /// Everything, for people: the table, what was found and by what evidence, and a closing
    /// sentence. Lines end with a line feed, the last one too.
    #[must_use]
    pub fn table(&self) -> String {
        let mut lines = vec![self.figures().trim_fmt(), String::new()];
        let found = self.rows.iter().flat_map(lines_of);
        lines.extend(found);
        lines.extend(self.home_line());
        lines.extend(
            self.distance
                .as_ref()
                .map(|distance| format!("rtt: {distance}")),
        );
        lines.extend(self.safeguards_off());
        lines.extend(self.skipped_lines());
        lines.push(self.conclusion());
        lines.join("\n") + "\n"
    }

    fn figures(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED);
        table.set_header(COLUMNS.map(|column| column.head));
        for row in &self.rows {
            table.add_row(COLUMNS.map(|column| (column.cell)(row)));
        }
        for (column, Column { align, .. }) in table.column_iter_mut().zip(COLUMNS) {
            column.set_cell_alignment(align);
        }
        table
    }

    /// What the stock's home means for every row.
    fn home_line(&self) -> Option<String> {
        let line = match self.plan.home {
            Home::Sql => return None,
            Home::Redis => {
                "home redis: the stock lives in Redis, the ledger follows in SQL; whatever the \
                 strategy, units that Redis loses can be sold again (volatile)"
            }
        };
        Some(line.to_owned())
    }

    /// What did not keep the lock strategies from harm.
    fn safeguards_off(&self) -> Vec<String> {
        let off = [
            (
                self.plan.safeguards.guard,
                "guard off: strategies with a lock wrote unconditionally, so no write was refused",
            ),
            (
                self.plan.safeguards.check,
                "check off: strategies with a lock wrote although they could know that it was lost",
            ),
        ];
        let off = off.into_iter().filter(|(is_on, _)| !is_on);
        off.map(|(_, line)| line.to_owned()).collect()
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
        let line =
            |(reason, names): (&str, Vec<&str>)| format!("skipped {}: {reason}", names.join(", "));
        by_reason.into_iter().map(line).collect()
    }

    /// The closing sentences: who kept the promise, who did not, who was caught.
    fn conclusion(&self) -> String {
        let stock = self.plan.stock;
        let orders = self.plan.total_orders();
        let sentences = [
            (Verdict::Broken, "PROMISE BROKEN by", String::new()),
            (
                Verdict::NotProven,
                "NOT PROVEN, since orders failed, for",
                String::new(),
            ),
            (
                Verdict::Exact,
                "Exact to the unit:",
                format!(" ({orders} orders for {stock} in stock)"),
            ),
            (
                Verdict::Caught,
                "Caught losing stock, as is to be expected of them:",
                String::new(),
            ),
            (
                Verdict::NotCaught,
                "Not caught this time, which proves nothing:",
                " (try more buyers, or more replicas)".to_owned(),
            ),
        ];
        let said = sentences.into_iter().filter_map(|(verdict, what, more)| {
            let names = self.names(verdict);
            (!names.is_empty()).then(|| format!("{what} {}{more}.", names.join(", ")))
        });
        said.collect::<Vec<_>>().join(" ")
    }

    fn names(&self, verdict: Verdict) -> Vec<&'static str> {
        let rows = self.rows.iter().filter(|row| row.verdict == verdict);
        rows.map(|row| row.strategy.name()).collect()
    }
}

/// What is to be said of one strategy beside its figures.
fn lines_of(row: &Row) -> Vec<String> {
    let mut lines = Vec::new();
    // What an unsafe strategy oversells is its row's own figures; what it loses or duplicates
    // among acknowledged orders, or leaves to the ledger, is nobody's intention.
    let unintended = row.lost + row.duplicated + row.pending > 0;
    if !row.findings.is_empty() && (row.verdict.fails() || unintended) {
        lines.push(format!("{}: {}", row.strategy, row.findings.join("; ")));
    }
    if row.failed > 0 {
        let failures = row.failures.join("; ");
        lines.push(format!(
            "{}: {} orders failed, {} of them with an unknown outcome: {failures}",
            row.strategy, row.failed, row.unknown
        ));
    }
    let remarks = row.remarks.iter();
    lines.extend(remarks.map(|remark| format!("{}: {remark}", row.strategy)));
    if let Some(evidence) = &row.evidence {
        lines.push(format!("{}: {evidence}", row.strategy));
    }
    lines
}
