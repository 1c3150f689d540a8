//! The result of one strategy's run.

use std::collections::HashMap;
use std::time::Duration;

use serde::Serialize;

use super::counts::LockCounts;
use super::evidence::Evidence;
use super::mismatch::Mismatch;
use super::plan::RacePlan;
use super::replica_client::{Audit, Book};
use super::tally::{Answers, Tally};
use super::text::as_text;
use super::verdict::{Verdict, findings};
use super::words::Words;
use stocklock_core::strategy::{Strategy, Tier};

/// One strategy's run.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The strategy.
    #[serde(serialize_with = "as_text")]
    pub strategy: Strategy,
    /// Its tier.
    #[serde(serialize_with = "as_text")]
    pub tier: Tier,
    /// The SKU that was sold; of several, the first with evidence, or the first.
    pub sku: String,
    /// Each SKU by itself, if there are several.
    pub skus: Vec<SkuRow>,
    /// Orders of all buyers.
    pub orders: i64,
    /// Units of all SKUs in stock before the run.
    pub stock: i64,
    /// Units of each order, in all of its lines.
    pub quantity: i64,
    /// Units of the orders that were answered 200.
    pub sold_units: i64,
    /// The answers to the buyers.
    #[serde(flatten)]
    pub answers: Answers,
    /// The level and the sums of the ledger after the run.
    #[serde(flatten)]
    pub audit: Audit,
    /// The difference between the answers and the ledger.
    #[serde(flatten)]
    pub mismatch: Mismatch,
    /// Exchanges answered 200 or 409 `insufficient-stock`, per second.
    pub requests_per_second: f64,
    /// Median latency of these exchanges.
    pub p50_ms: Option<f64>,
    /// 99th percentile of their latency.
    pub p99_ms: Option<f64>,
    /// From the first order to the last answer.
    pub wall_seconds: f64,
    /// Lost locks and refused writes.
    #[serde(flatten)]
    pub locks: LockCounts,
    /// Everything that contradicts exactness.
    pub findings: Vec<String>,
    /// Other observations.
    pub remarks: Vec<String>,
    /// Whether the strategy kept its promise.
    pub verdict: Verdict,
    /// The verdict in words.
    #[serde(flatten)]
    pub words: Words,
    /// What the ledger shows, if units were lost.
    pub evidence: Option<Evidence>,
}

/// One of several SKUs of a run.
#[derive(Debug, Clone, Serialize)]
pub struct SkuRow {
    /// The SKU.
    pub sku: String,
    /// Its level and the sums of its ledger after the run.
    #[serde(flatten)]
    pub audit: Audit,
}

/// The measurements of a run.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) strategy: Strategy,
    pub(super) tally: Tally,
    pub(super) wall: Duration,
    /// One for each SKU.
    pub(super) books: Vec<Book>,
    pub(super) locks: LockCounts,
    /// Targets that did not answer after the run.
    pub(super) silent: Vec<String>,
}

impl Row {
    /// Compares answers, audit and ledger, and judges the strategy.
    pub(super) fn new(plan: &RacePlan, mut run: Run) -> Self {
        let tier = run.strategy.tier();
        let [p50_ms, p99_ms] = run.tally.percentiles_ms();
        let requests_per_second = run.tally.per_second(run.wall);
        let remarks = run.remarks();
        let Tally { answers, sold, .. } = run.tally;
        let answered: Vec<_> = sold.iter().map(|(id, _)| *id).collect();
        let compared = run.books.iter().map(|book| {
            let sales = book.ledger.iter().filter(|row| row.is_sale());
            let sales = sales.map(|row| row.id).collect();
            (
                book,
                Mismatch::new(answered.clone(), sales, answers.unknown),
            )
        });
        let compared: Vec<_> = compared.collect();
        let findings = findings(plan, &answers, &compared);
        let (mut audit, mut mismatch) = (Audit::default(), Mismatch::default());
        for (book, one) in &compared {
            audit.add(&book.audit);
            mismatch.add(one);
        }
        let verdict = Verdict::new(tier, answers.failed, &audit, &findings);
        let answered_by: HashMap<_, _> = sold.into_iter().collect();
        let replica = |operation| {
            let position = answered_by.get(&operation)?;
            Some(format!("replica-{}", position + 1))
        };
        let lost = run.books.iter().find(|book| book.audit.lost_units());
        // A sale of held units leaves what is available, so two of them may write the same.
        let shown = lost.filter(|_| !plan.holds);
        let evidence = shown.map(|book| Evidence::find(&book.ledger, replica));
        let sku = lost.unwrap_or(&run.books[0]).sku.clone();
        let of_sku = |book: Book| SkuRow {
            sku: book.sku,
            audit: book.audit,
        };
        let skus = match run.books.len() {
            1 => Vec::new(),
            _ => run.books.into_iter().map(of_sku).collect(),
        };
        Self {
            strategy: run.strategy,
            tier,
            sku,
            skus,
            orders: plan.total_orders(),
            stock: plan.units_in_stock(),
            quantity: plan.units_of_order(),
            sold_units: answers.sold * plan.units_of_order(),
            requests_per_second,
            p50_ms,
            p99_ms,
            wall_seconds: run.wall.as_secs_f64(),
            verdict,
            words: Words::new(plan, run.strategy, verdict, &answers, &audit, &findings),
            evidence,
            answers,
            audit,
            mismatch,
            locks: run.locks,
            findings,
            remarks,
        }
    }
}

impl Run {
    /// Observations that contradict nothing.
    fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        let (locks, retried) = (&self.locks, &self.tally.answers.retried);
        if !locks.none() {
            remarks.push(match self.strategy.tier() {
                Tier::Guarded => format!("the lock did not exclude by itself: {locks}"),
                Tier::Safe | Tier::Unsafe => locks.to_string(),
            });
        }
        if retried.total() > 0 {
            remarks.push(format!("requests retried: {retried}"));
        }
        if !self.silent.is_empty() {
            let silent = self.silent.join(", ");
            remarks.push(format!(
                "no answer from {silent}: its lost locks and refused writes are missing"
            ));
        }
        remarks
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::race::replica_client::Movement;
    use crate::race::report::{Report, TableStyle};

    fn id(digit: char) -> Uuid {
        Uuid::from_u128(digit.to_digit(10).expect("a digit").into())
    }

    /// A run of 4 orders for 3 units: an id for each sold order, `r` for a refused one, `f` for a
    /// failed one, `u` for one with an unknown outcome. Then the ids in the ledger, and the level.
    fn run(strategy: Strategy, answers: &str, ledger: &str, left: i64) -> Run {
        let mut tally = Tally::default();
        for answer in answers.chars() {
            match answer {
                'r' => tally.answers.refused += 1,
                'f' | 'u' => tally.add_failure("500 internal".to_owned(), answer == 'u'),
                sold => tally.add_sale(id(sold), 0, false, false),
            }
        }
        let movement = |digit| Movement {
            id: id(digit),
            kind: "deducted".to_owned(),
            delta: -1,
            available_after: 0,
            level_version: digit.to_digit(10).expect("a digit").into(),
            read_version: None,
            created_at: String::new(),
            replica: None,
        };
        let ledger: Vec<_> = ledger.chars().map(movement).collect();
        let sold = i64::try_from(ledger.len()).expect("a few movements");
        let audit = Audit {
            received: 3,
            sold,
            on_hand: left,
            drift: left - (3 - sold),
            oversold: (sold - 3).max(0),
        };
        Run {
            strategy,
            tally,
            wall: Duration::from_secs(1),
            books: vec![Book {
                sku: "race".to_owned(),
                audit,
                ledger,
            }],
            locks: LockCounts::default(),
            silent: Vec::new(),
        }
    }

    fn judged(run: Run) -> Row {
        Row::new(&RacePlan::new(3, 4, 1), run)
    }

    /// Each line: strategy, answers, ledger, level, verdict, and a part of each finding.
    #[test]
    fn verdict_compares_answers_level_and_ledger() {
        for line in [
            "single-sql 123r 321 0 exact",
            // The sums agree, but the operations do not.
            "single-sql 123r 124 0 broken + ledger (…00000003) + no answer names (…00000004)",
            "single-sql 1234 1234 0 broken + never existed + the level and + more orders answered",
            "optimistic 123r 123 1 broken + the level and",
            "optimistic 123r 12 1 broken + not in the ledger (…00000003)",
            "optimistic 122r 12 1 broken + not in the ledger (…00000002)",
            "optimistic 12rr 123 0 broken + no answer names + although units were left",
            "optimistic 12rr 12 1 broken + although units were left",
            // Failed orders prove nothing and hide no contradiction.
            "for-update 12ur 12 1 not-proven",
            "for-update 12ur 123 0 not-proven",
            "for-update 12ur 1234 -1 broken + never existed + no answer names",
            "for-update 12fr 123 0 broken + no answer names",
            // A counter in Redis may refuse, but the promise is that of SQL.
            "redis-lua 123r 123 0 exact",
            "redis-lua 1234 234 0 broken + not in the ledger (…00000001) + more orders answered",
            "redis-watch 12rr 12 1 broken + although units were left",
            // Unsafe strategies are caught or not, and never fail.
            "local-mutex 123r 123 0 not-caught",
            "no-lock 1234 1234 0 caught + never existed + the level and + more orders answered",
            "redis-get-set 123r 123 1 caught + the level and",
        ] {
            let mut parts = line.split(" + ");
            let words: Vec<_> = parts.next().unwrap().split(' ').collect();
            let [strategy, answers, ledger, left, verdict] = words[..] else {
                panic!("{line}")
            };
            let left = left.parse().unwrap();
            let row = judged(run(strategy.parse().unwrap(), answers, ledger, left));
            assert_eq!(serde_json::json!(row.verdict), verdict, "{line}");
            let findings: Vec<_> = parts.collect();
            assert_eq!(row.findings.len(), findings.len(), "{:?}", row.findings);
            for (found, part) in row.findings.iter().zip(findings) {
                assert!(found.contains(part), "{line}: {found}");
            }
            let fails = ["broken", "not-proven"].contains(&verdict);
            assert_eq!(row.verdict.fails(), fails);
            assert_eq!(row.evidence.is_some(), row.audit.lost_units());
        }
    }

    #[test]
    fn each_sku_is_judged_by_itself() {
        let of_two = |ledgers: [&str; 2], left: [i64; 2]| {
            let run =
                |index: usize| run(Strategy::GroupCommit, "123r", ledgers[index], left[index]);
            let (mut both, mut second) = (run(0), run(1));
            second.books[0].sku += "-2";
            both.books.append(&mut second.books);
            let plan = RacePlan {
                lines: 2,
                ..RacePlan::new(3, 4, 1)
            };
            Row::new(&plan, both)
        };
        let exact = of_two(["123", "321"], [0, 0]);
        assert_eq!(exact.verdict, Verdict::Exact, "{:?}", exact.findings);
        let units = (exact.stock, exact.quantity, exact.sold_units);
        assert_eq!((units, exact.skus.len()), ((6, 2, 6), 2));
        assert!(
            exact
                .words
                .sentence
                .starts_with("6 in stock of 2 SKUs, 6 sold, 0 left")
        );
        // The difference of one SKU makes up for that of the other, but both are wrong.
        let row = of_two(["123", "123"], [1, -1]);
        assert_eq!((row.verdict, row.audit.drift), (Verdict::Broken, 0));
        let what = "units of difference between the level and the ledger of race";
        assert_eq!(row.findings, [format!("1 {what}"), format!("-1 {what}-2")]);
        assert!(row.evidence.is_some());
        let row = of_two(["123", "12"], [0, 1]);
        let lost = "1 orders answered 200 that are not in the ledger (…00000003) of race-2";
        assert_eq!(row.findings, [lost]);
    }

    #[test]
    fn table_fits_into_a_hundred_characters() {
        let mut row = judged(run(Strategy::ZookeeperLock, "12fr", "12", 1));
        let many = 100_000;
        (row.answers.sold, row.answers.refused) = (many, many);
        (row.audit.oversold, row.audit.drift) = (many, -many);
        row.requests_per_second = 100_000.0;
        row.p99_ms = Some(99_999.9);
        let report = Report {
            plan: RacePlan::new(3, 4, 1),
            rows: vec![row],
            skipped: Vec::new(),
            stopped: None,
            distance: None,
        };
        for (wide, widest) in [(false, 100), (true, 170)] {
            let coloured = false;
            let table = report.table(TableStyle { wide, coloured });
            let lines = table.lines().filter(|line| line.contains('│'));
            let width = lines.map(|line| line.chars().count()).max();
            assert!(width.is_some_and(|width| width <= widest), "{table}");
            let coloured = TableStyle {
                wide,
                coloured: true,
            };
            assert!(
                report
                    .table(coloured)
                    .contains("\x1b[1;31mNOT PROVEN\x1b[0m")
            );
        }
    }

    #[test]
    fn sale_after_a_refusal_breaks_the_promise() {
        let mut run = run(Strategy::Optimistic, "12r", "123", 0);
        run.tally.add_sale(id('3'), 0, true, true);
        let row = judged(run);
        assert_eq!(row.verdict, Verdict::Broken);
        let late = ["1 orders answered 503 although they were sold"];
        assert_eq!(row.findings, late);
    }

    #[test]
    fn refused_writes_are_a_remark_and_no_finding() {
        let refused = "writes refused: 2 (version)";
        for (strategy, remark) in [
            (Strategy::RedisLock, "the lock did not exclude by itself: "),
            (Strategy::Optimistic, ""),
        ] {
            let mut run = run(strategy, "123r", "123", 0);
            run.locks.refused_writes.add("version", 2);
            let row = judged(run);
            assert_eq!(row.verdict, Verdict::Exact);
            assert_eq!(row.remarks, [format!("{remark}{refused}")]);
        }
    }
}
