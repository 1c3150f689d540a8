//! One strategy's run: what was counted, what the ledger says, and the verdict.

use std::fmt;
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::counts::Counts;
use super::evidence::Evidence;
use super::lock_counts::LockCounts;
use super::plan::RacePlan;
use super::replica_client::Audit;
use super::tally::Tally;
use stocklock_core::strategy::{Strategy, Tier};

/// Whether a strategy did what its tier promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It promises exactness, and everything adds up.
    Exact,
    /// It promises exactness, and does not keep it.
    Broken,
    /// It promises exactness; nothing contradicts it, but not every order came to its end.
    NotProven,
    /// It promises nothing, and was caught.
    Caught,
    /// It promises nothing, and got away with it.
    NotCaught,
}

impl Verdict {
    /// Whether the race as a whole must fail for it.
    #[must_use]
    pub fn fails(self) -> bool {
        matches!(self, Self::Broken | Self::NotProven)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Exact => "exact",
            Self::Broken => "BROKEN",
            Self::NotProven => "NOT PROVEN",
            Self::Caught => "caught",
            Self::NotCaught => "not caught this time",
        })
    }
}

/// One strategy's run. Counts are of orders, which are of one unit each.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The strategy.
    #[serde(serialize_with = "as_text")]
    pub strategy: Strategy,
    /// What it promises for stock that lives where the race's does.
    #[serde(serialize_with = "as_text")]
    pub tier: Tier,
    /// What was sold.
    pub sku: String,
    /// Orders that were to be placed.
    pub orders: u64,
    /// Orders acknowledged as sold.
    pub sold: u64,
    /// Those of them whose first acknowledgement was lost, and given again.
    pub replayed: u64,
    /// Orders refused for want of stock.
    pub refused: u64,
    /// Exchanges that repeated an earlier one, by why that one settled nothing.
    pub retried: Counts,
    /// Orders that ended otherwise, or never began.
    pub failed: u64,
    /// Those of them that may have been sold.
    pub unknown: u64,
    /// The first few different failures.
    pub failures: Vec<String>,
    /// Units that came in, as the ledger has it.
    pub received: i64,
    /// Units sold, as the ledger has it.
    pub ledger_sold: i64,
    /// Units left, as the counter has it.
    pub left: i64,
    /// Units sold that never existed.
    pub oversold: i64,
    /// Units sold that the counter did not notice.
    pub drift: i64,
    /// Movements journaled in Redis that SQL did not have when the wait for it ended.
    pub pending: i64,
    /// Units acknowledged that the ledger does not have.
    pub lost: i64,
    /// Units that the ledger has beyond what was acknowledged or is unknown.
    pub duplicated: i64,
    /// Answered exchanges (200, 409) in a second.
    pub requests_per_second: f64,
    /// Half of the answered exchanges took no longer.
    pub p50_ms: Option<f64>,
    /// 99 in 100 of the answered exchanges took no longer.
    pub p99_ms: Option<f64>,
    /// From the first order to the last answer.
    pub wall_seconds: f64,
    /// What became of its locks.
    #[serde(flatten)]
    pub locks: LockCounts,
    /// What contradicts exactness, in words.
    pub findings: Vec<String>,
    /// What contradicts nothing, and is worth knowing, in words.
    pub remarks: Vec<String>,
    /// Whether it did what its tier promises.
    pub verdict: Verdict,
    /// What the ledger shows, where units were lost.
    pub evidence: Option<Evidence>,
}

/// What is known of a strategy's run when it has ended.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) strategy: Strategy,
    pub(super) tally: Tally,
    pub(super) wall: Duration,
    pub(super) audit: Audit,
    pub(super) locks: LockCounts,
}

impl Row {
    /// Holds the tally against the audit.
    pub(super) fn new(plan: &RacePlan, sku: String, run: Run) -> Self {
        let Run {
            strategy,
            mut tally,
            wall,
            audit,
            locks,
        } = run;
        let tier = strategy.tier_on(plan.home);
        let findings = findings(plan, &tally, &audit);
        let [p50_ms, p99_ms] = tally.percentiles_ms([50, 99]);
        let excess = audit.sold - signed(tally.acknowledged);
        Self {
            strategy,
            tier,
            sku,
            orders: tally.orders(),
            sold: tally.acknowledged,
            replayed: tally.replayed,
            refused: tally.refused,
            failed: tally.failed,
            unknown: tally.unknown,
            received: audit.received,
            ledger_sold: audit.sold,
            left: audit.on_hand,
            oversold: audit.oversold,
            drift: audit.drift,
            pending: audit.pending,
            lost: (-excess).max(0),
            duplicated: (excess - signed(tally.unknown)).max(0),
            requests_per_second: tally.per_second(wall),
            p50_ms,
            p99_ms,
            wall_seconds: wall.as_secs_f64(),
            verdict: verdict(tier, &tally, &audit, &findings),
            findings,
            remarks: remarks(strategy.tier(), &tally, &locks),
            locks,
            retried: tally.retried,
            failures: tally.failures,
            evidence: None,
        }
    }

    /// Whether counter and ledger disagree, or units were sold that never existed.
    pub(super) fn lost_units(&self) -> bool {
        self.oversold != 0 || self.drift != 0
    }
}

/// Everything that contradicts exactness, in words.
fn findings(plan: &RacePlan, tally: &Tally, audit: &Audit) -> Vec<String> {
    let expected = plan.expected_sales();
    let acknowledged = signed(tally.acknowledged);
    let excess = audit.sold - acknowledged;
    let beyond_told = excess - signed(tally.unknown);
    // Orders that failed leave stock refused_early; that alone is no contradiction.
    let refused_early = tally.failed == 0 && acknowledged < expected;
    let checks = [
        (
            audit.oversold != 0,
            audit.oversold,
            "units sold that never existed",
        ),
        (
            audit.drift != 0,
            audit.drift,
            "units that the counter has and the ledger has not",
        ),
        (
            excess < 0,
            -excess,
            "units acknowledged, but not in the ledger",
        ),
        (
            beyond_told > 0,
            beyond_told,
            "units in the ledger of which no buyer was told",
        ),
        (
            acknowledged > plan.stock,
            acknowledged - plan.stock,
            "orders acknowledged beyond the stock",
        ),
        (
            refused_early,
            expected - acknowledged,
            "orders refused although there was stock",
        ),
        (
            audit.pending != 0,
            audit.pending,
            "movements journaled, but not in SQL in time",
        ),
    ];
    let wrong = checks.into_iter().filter(|(wrong, ..)| *wrong);
    wrong
        .map(|(_, count, what)| format!("{count} {what}"))
        .collect()
}

/// What contradicts nothing, and is worth knowing, in words.
fn remarks(tier: Tier, tally: &Tally, locks: &LockCounts) -> Vec<String> {
    let mut remarks = Vec::new();
    if !locks.none() {
        remarks.push(match tier {
            Tier::Guarded => format!("the lock did not exclude by itself: {locks}"),
            Tier::Safe | Tier::Volatile | Tier::Unsafe => locks.to_string(),
        });
    }
    if tally.retried.total() > 0 {
        remarks.push(format!("exchanges retried: {}", tally.retried));
    }
    remarks
}

fn verdict(tier: Tier, tally: &Tally, audit: &Audit, findings: &[String]) -> Verdict {
    match tier {
        Tier::Unsafe if audit.oversold != 0 || audit.drift != 0 => Verdict::Caught,
        Tier::Unsafe => Verdict::NotCaught,
        Tier::Safe | Tier::Guarded | Tier::Volatile => {
            if !findings.is_empty() {
                Verdict::Broken
            } else if tally.failed > 0 {
                Verdict::NotProven
            } else {
                Verdict::Exact
            }
        }
    }
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

pub(super) fn as_text<T: fmt::Display, S: Serializer>(
    value: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

#[cfg(test)]
mod tests {
    use super::super::order::Settled;
    use super::*;

    /// A run of 4 orders for 3 in stock, without a lock lost or a write refused.
    fn row(strategy: Strategy, settled: [Settled; 4], ledger_sold: i64, left: i64) -> Row {
        row_with_locks(
            strategy,
            settled,
            (ledger_sold, left),
            LockCounts::default(),
        )
    }

    fn row_with_locks(
        strategy: Strategy,
        settled: [Settled; 4],
        (ledger_sold, left): (i64, i64),
        locks: LockCounts,
    ) -> Row {
        let mut tally = Tally::default();
        for one in settled {
            tally.settle(one);
        }
        let audit = Audit {
            warehouse: "main".to_owned(),
            received: 3,
            sold: ledger_sold,
            on_hand: left,
            drift: left - (3 - ledger_sold),
            oversold: (ledger_sold - 3).max(0),
            pending: 0,
        };
        let run = Run {
            strategy,
            tally,
            wall: Duration::from_secs(1),
            audit,
            locks,
        };
        Row::new(&RacePlan::new(3, 4, 1), "race".to_owned(), run)
    }

    fn sold() -> Settled {
        Settled::Sold { replayed: false }
    }

    fn failed(unknown: bool) -> Settled {
        let why = "500 internal".to_owned();
        Settled::Failed { why, unknown }
    }

    #[test]
    fn a_promise_is_kept_when_everything_adds_up() {
        let orders = [sold(), sold(), sold(), Settled::Refused];
        let row = row(Strategy::SingleSql, orders, 3, 0);
        assert_eq!(row.verdict, Verdict::Exact);
        assert!(row.findings.is_empty() && !row.lost_units());
    }

    #[test]
    fn a_promise_is_broken_by_each_kind_of_contradiction() {
        for (orders, ledger_sold, left, what) in [
            ([sold(), sold(), sold(), sold()], 4, 0, "never existed"),
            ([sold(), sold(), sold(), Settled::Refused], 3, 1, "counter"),
            (
                [sold(), sold(), sold(), Settled::Refused],
                2,
                1,
                "not in the ledger",
            ),
            (
                [sold(), sold(), Settled::Refused, Settled::Refused],
                3,
                0,
                "no buyer",
            ),
            (
                [sold(), sold(), Settled::Refused, Settled::Refused],
                2,
                1,
                "although",
            ),
        ] {
            let row = row(Strategy::Optimistic, orders, ledger_sold, left);
            assert_eq!(row.verdict, Verdict::Broken, "{what}");
            assert!(row.findings.join("; ").contains(what), "{:?}", row.findings);
        }
    }

    #[test]
    fn failed_orders_leave_a_promise_unproven_but_hide_no_contradiction() {
        let known = [sold(), sold(), failed(false), Settled::Refused];
        let doubtful = || [sold(), sold(), failed(true), Settled::Refused];
        let verdict =
            |orders, ledger_sold, left| row(Strategy::ForUpdate, orders, ledger_sold, left).verdict;
        assert_eq!(verdict(known, 3, 0), Verdict::Broken, "nobody was told");
        assert_eq!(verdict(doubtful(), 3, 0), Verdict::NotProven);
        assert_eq!(verdict(doubtful(), 2, 1), Verdict::NotProven);
        assert_eq!(verdict(doubtful(), 4, 0), Verdict::Broken);
    }

    #[test]
    fn what_promises_nothing_is_caught_or_not_and_never_fails_the_race() {
        let orders = || [sold(), sold(), sold(), sold()];
        let caught = row(Strategy::NoLock, orders(), 4, 0);
        assert_eq!(caught.verdict, Verdict::Caught);
        let exact = [sold(), sold(), sold(), Settled::Refused];
        let lucky = row(Strategy::LocalMutex, exact, 3, 0);
        assert_eq!(lucky.verdict, Verdict::NotCaught);
        assert!(!caught.verdict.fails() && !lucky.verdict.fails());
    }

    #[test]
    fn a_lock_that_let_others_in_is_told_and_does_not_decide_the_verdict() {
        let orders = || [sold(), sold(), sold(), Settled::Refused];
        let mut locks = LockCounts::default();
        locks.refused_writes.add("version", 2);
        let guarded = row_with_locks(Strategy::RedisLock, orders(), (3, 0), locks.clone());
        assert_eq!(guarded.verdict, Verdict::Exact);
        let told = "the lock did not exclude by itself: writes refused: 2 (version)";
        assert_eq!(guarded.remarks, [told]);
        let optimistic = row_with_locks(Strategy::Optimistic, orders(), (3, 0), locks);
        assert_eq!(optimistic.remarks, ["writes refused: 2 (version)"]);
        let quiet = row(Strategy::ZookeeperLock, orders(), 3, 0);
        assert!(quiet.remarks.is_empty() && quiet.locks.none());
    }
}
