//! The result of one strategy's run.

use std::fmt;
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::counts::Counts;
use super::evidence::{self, Evidence};
use super::lock_counts::LockCounts;
use super::plan::RacePlan;
use super::replica_client::{Audit, Movement};
use super::tally::Tally;
use super::verdict::{Mismatch, Verdict, findings, signed};
use stocklock_core::strategy::{Strategy, Tier};

/// One strategy's run. Every order is for one unit.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The strategy.
    #[serde(serialize_with = "as_text")]
    pub strategy: Strategy,
    /// Its tier for stock with the race's home.
    #[serde(serialize_with = "as_text")]
    pub tier: Tier,
    /// The SKU that was sold.
    pub sku: String,
    /// Orders of all buyers.
    pub orders: u64,
    /// Orders answered 200.
    pub sold: u64,
    /// Those of them that an earlier exchange had sold, but whose answer was lost.
    pub replayed: u64,
    /// Orders answered 409 `insufficient-stock`.
    pub refused: u64,
    /// Repeated exchanges, by the reason for the repetition.
    pub retried: Counts,
    /// Orders that ended otherwise or were never sent.
    pub failed: u64,
    /// Failed orders that the ledger may contain.
    pub unknown: u64,
    /// The first few different failures.
    pub failures: Vec<String>,
    /// Units received, according to the ledger.
    pub received: i64,
    /// Units sold, according to the ledger.
    pub ledger_sold: i64,
    /// The counter after the run.
    pub left: i64,
    /// Units sold that never existed.
    pub oversold: i64,
    /// Counter minus the sum of the ledger.
    pub drift: i64,
    /// Movements in the Redis journal that did not reach SQL in time.
    pub pending: i64,
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
    /// What the ledger shows, if units were lost.
    pub evidence: Option<Evidence>,
}

/// The measurements of a run.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) strategy: Strategy,
    pub(super) sku: String,
    pub(super) tally: Tally,
    pub(super) wall: Duration,
    pub(super) audit: Audit,
    /// Newest first.
    pub(super) ledger: Vec<Movement>,
    pub(super) locks: LockCounts,
    /// Targets that did not answer after the run.
    pub(super) silent: Vec<String>,
}

impl Row {
    /// Compares answers, audit and ledger, and judges the strategy.
    pub(super) fn new(plan: &RacePlan, run: Run) -> Self {
        let Run {
            strategy,
            sku,
            mut tally,
            wall,
            audit,
            ledger,
            locks,
            silent,
        } = run;
        let tier = strategy.tier_on(plan.home);
        let (orders, sold) = (tally.orders(), tally.sold());
        let mismatch = Mismatch::new(&mut tally, &audit, &ledger);
        let findings = findings(plan, &tally, signed(sold), &audit, &mismatch, &ledger);
        let [p50_ms, p99_ms] = tally.percentiles_ms([50, 99]);
        let lost_units = audit.oversold != 0 || audit.drift != 0;
        Self {
            strategy,
            tier,
            sku,
            orders,
            sold,
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
            mismatch,
            requests_per_second: tally.per_second(wall),
            p50_ms,
            p99_ms,
            wall_seconds: wall.as_secs_f64(),
            verdict: Verdict::new(tier, &tally, &audit, &findings),
            findings,
            remarks: remarks(strategy.tier(), &tally, &locks, &silent),
            locks,
            retried: tally.retried,
            failures: tally.failures,
            evidence: lost_units.then(|| evidence::find(&ledger)),
        }
    }
}

/// Observations that contradict nothing.
fn remarks(tier: Tier, tally: &Tally, locks: &LockCounts, silent: &[String]) -> Vec<String> {
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
    if !silent.is_empty() {
        let silent = silent.join(", ");
        remarks.push(format!(
            "no answer from {silent}: its lost locks and refused writes are missing"
        ));
    }
    remarks
}

pub(super) fn as_text<T: fmt::Display, S: Serializer>(
    value: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::super::order::{Failed, Settled, Sold};
    use super::*;

    /// A sale that was answered with this operation id.
    fn sold(id: u128) -> Settled {
        Settled::Sold(Sold {
            id: Uuid::from_u128(id),
            replayed: false,
            after_refusal: false,
        })
    }

    fn failed(unknown: bool) -> Settled {
        Settled::Failed(Failed {
            reason: "500 internal".to_owned(),
            unknown,
            unreachable: false,
        })
    }

    /// A run of 4 orders for 3 units, with these operations in the ledger and this counter.
    fn row(strategy: Strategy, settled: [Settled; 4], ledger: &[u128], left: i64) -> Row {
        row_with_locks(strategy, settled, ledger, left, LockCounts::default())
    }

    fn row_with_locks(
        strategy: Strategy,
        settled: [Settled; 4],
        ledger: &[u128],
        left: i64,
        locks: LockCounts,
    ) -> Row {
        let mut tally = Tally::default();
        for one in settled {
            tally.settle(one);
        }
        let movement = |id: &u128| Movement {
            id: Uuid::from_u128(*id),
            kind: "deducted".to_owned(),
            delta: -1,
            available_after: 0,
            read_version: None,
        };
        let ledger: Vec<_> = ledger.iter().map(movement).collect();
        let sold = i64::try_from(ledger.len()).expect("a few movements");
        let audit = Audit {
            received: 3,
            sold,
            on_hand: left,
            drift: left - (3 - sold),
            oversold: (sold - 3).max(0),
            ..Audit::default()
        };
        let run = Run {
            strategy,
            sku: "race".to_owned(),
            tally,
            wall: Duration::from_secs(1),
            audit,
            ledger,
            locks,
            silent: Vec::new(),
        };
        Row::new(&RacePlan::new(3, 4, 1), run)
    }

    #[test]
    fn equal_answers_counter_and_ledger_are_exact() {
        let orders = [sold(1), sold(2), sold(3), Settled::Refused];
        let row = row(Strategy::SingleSql, orders, &[3, 2, 1], 0);
        assert_eq!(row.verdict, Verdict::Exact);
        assert!(row.findings.is_empty() && row.evidence.is_none());
    }

    #[test]
    fn wrong_operations_are_found_although_the_sums_agree() {
        let orders = [sold(1), sold(2), sold(3), Settled::Refused];
        let row = row(Strategy::SingleSql, orders, &[1, 2, 4], 0);
        let expected = [
            "1 orders answered 200 that are not in the ledger (…00000003)",
            "1 sales in the ledger that no answer names (…00000004)",
        ];
        assert_eq!(row.findings, expected);
        assert_eq!(row.verdict, Verdict::Broken);
        let id = Uuid::from_u128;
        let mismatch = Mismatch {
            lost: 1,
            lost_ids: vec![id(3)],
            phantom: 1,
            phantom_ids: vec![id(4)],
            sold_after_refusal: 0,
        };
        assert_eq!(row.mismatch, mismatch);
    }

    #[test]
    fn each_contradiction_breaks_the_promise() {
        let refused = || Settled::Refused;
        let after_refusal = Settled::Sold(Sold {
            id: Uuid::from_u128(3),
            replayed: true,
            after_refusal: true,
        });
        for (orders, ledger, left, finding) in [
            (
                [sold(1), sold(2), sold(3), sold(4)],
                &[1, 2, 3, 4][..],
                0,
                "never existed",
            ),
            (
                [sold(1), sold(2), sold(3), refused()],
                &[1, 2, 3],
                1,
                "the counter",
            ),
            (
                [sold(1), sold(2), sold(3), refused()],
                &[1, 2],
                1,
                "not in the ledger",
            ),
            (
                [sold(1), sold(2), sold(2), refused()],
                &[1, 2],
                1,
                "not in the ledger",
            ),
            (
                [sold(1), sold(2), refused(), refused()],
                &[1, 2, 3],
                0,
                "no answer",
            ),
            (
                [sold(1), sold(2), refused(), refused()],
                &[1, 2],
                1,
                "although units were left",
            ),
            (
                [sold(1), sold(2), after_refusal, refused()],
                &[1, 2, 3],
                0,
                "answered 503",
            ),
        ] {
            let row = row(Strategy::Optimistic, orders, ledger, left);
            assert_eq!(row.verdict, Verdict::Broken, "{finding}");
            assert!(
                row.findings.join("; ").contains(finding),
                "{:?}",
                row.findings
            );
        }
    }

    #[test]
    fn failed_orders_prove_nothing_and_hide_no_contradiction() {
        let unknown = || [sold(1), sold(2), failed(true), Settled::Refused];
        let definite = [sold(1), sold(2), failed(false), Settled::Refused];
        let verdict = |orders, ledger, left| row(Strategy::ForUpdate, orders, ledger, left).verdict;
        assert_eq!(verdict(unknown(), &[1, 2], 1), Verdict::NotProven);
        assert_eq!(verdict(unknown(), &[1, 2, 3], 0), Verdict::NotProven);
        assert_eq!(verdict(unknown(), &[1, 2, 3, 4], 0), Verdict::Broken);
        assert_eq!(verdict(definite, &[1, 2, 3], 0), Verdict::Broken);
    }

    #[test]
    fn unsafe_strategies_are_caught_or_not_and_never_fail() {
        let all = [sold(1), sold(2), sold(3), sold(4)];
        let caught = row(Strategy::NoLock, all, &[1, 2, 3, 4], 0);
        assert_eq!(caught.verdict, Verdict::Caught);
        let exact = [sold(1), sold(2), sold(3), Settled::Refused];
        let lucky = row(Strategy::LocalMutex, exact, &[1, 2, 3], 0);
        assert_eq!(lucky.verdict, Verdict::NotCaught);
        assert!(!caught.verdict.fails() && !lucky.verdict.fails());
    }

    #[test]
    fn refused_writes_are_a_remark_and_no_finding() {
        let orders = || [sold(1), sold(2), sold(3), Settled::Refused];
        let mut locks = LockCounts::default();
        locks.refused_writes.add("version", 2);
        for (strategy, remark) in [
            (
                Strategy::RedisLock,
                "the lock did not exclude by itself: writes refused: 2 (version)",
            ),
            (Strategy::Optimistic, "writes refused: 2 (version)"),
        ] {
            let row = row_with_locks(strategy, orders(), &[1, 2, 3], 0, locks.clone());
            assert_eq!(row.verdict, Verdict::Exact);
            assert_eq!(row.remarks, [remark]);
        }
    }
}
