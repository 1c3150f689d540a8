//! The judgement of one run: what contradicts exactness, and whether the strategy kept its promise.

use std::fmt;

use serde::Serialize;
use uuid::Uuid;

use super::evidence::short;
use super::plan::RacePlan;
use super::reconcile::Reconciliation;
use super::replica_client::{Audit, Movement};
use super::tally::Tally;
use stocklock_core::strategy::Tier;

/// The number of operation ids that are shown as examples.
const EXAMPLES: usize = 5;

/// Whether a strategy kept the promise of its tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It promises to be exact, and answers, counter and ledger agree.
    Exact,
    /// It promises to be exact and was not.
    Broken,
    /// It promises to be exact and nothing contradicts it, but orders failed.
    NotProven,
    /// It promises nothing and lost stock.
    Caught,
    /// It promises nothing and lost no stock this time.
    NotCaught,
}

impl Verdict {
    /// Whether this verdict makes the whole race fail.
    #[must_use]
    pub fn fails(self) -> bool {
        matches!(self, Self::Broken | Self::NotProven)
    }

    /// Judges a run of a strategy of this tier.
    pub(super) fn new(tier: Tier, tally: &Tally, audit: &Audit, findings: &[String]) -> Self {
        match tier {
            Tier::Unsafe if audit.oversold != 0 || audit.drift != 0 => Self::Caught,
            Tier::Unsafe => Self::NotCaught,
            Tier::Safe | Tier::Guarded | Tier::Volatile => {
                if !findings.is_empty() {
                    Self::Broken
                } else if tally.failed > 0 {
                    Self::NotProven
                } else {
                    Self::Exact
                }
            }
        }
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

/// The difference between the answers and the ledger.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Mismatch {
    /// Orders answered 200 whose operation is not in the ledger: lost sales.
    pub lost: u64,
    /// The first few of their operations.
    pub lost_ids: Vec<Uuid>,
    /// Sales in the ledger that no answer names, beyond the orders with an unknown outcome:
    /// phantom sales. An order that was refused but sold is one of them.
    pub phantom: u64,
    /// The first few operations in the ledger that no answer names.
    pub phantom_ids: Vec<Uuid>,
    /// Orders answered 503 whose retry showed that they had been sold.
    pub sold_after_refusal: u64,
}

impl Mismatch {
    /// Compares the operation ids in the answers with those in the ledger.
    pub(super) fn new(tally: &mut Tally, audit: &Audit, ledger: &[Movement]) -> Self {
        let recorded = ledger.iter().filter(|row| row.is_sale()).map(|row| row.id);
        let answered = std::mem::take(&mut tally.answered);
        let Reconciliation { lost, unanswered } = Reconciliation::new(answered, recorded.collect());
        // Sales that are still in the journal are reported as such.
        let pending = usize::try_from(audit.pending).unwrap_or(0);
        let lost = &lost[pending.min(lost.len())..];
        let phantom = (unanswered.len() as u64).saturating_sub(tally.unknown);
        let examples = |ids: &[Uuid]| ids.iter().take(EXAMPLES).copied().collect();
        Self {
            lost: lost.len() as u64,
            lost_ids: examples(lost),
            phantom,
            phantom_ids: if phantom > 0 {
                examples(&unanswered)
            } else {
                Vec::new()
            },
            sold_after_refusal: tally.sold_after_refusal,
        }
    }
}

/// Everything that contradicts exactness. `sold` is the number of orders answered 200.
pub(super) fn findings(
    plan: &RacePlan,
    tally: &Tally,
    sold: i64,
    audit: &Audit,
    mismatch: &Mismatch,
    ledger: &[Movement],
) -> Vec<String> {
    let expected = plan.expected_sales();
    // A failed order leaves a unit unsold, which is no contradiction.
    let unsold = if tally.failed == 0 {
        expected - sold
    } else {
        0
    };
    let rows: i64 = ledger
        .iter()
        .filter(|row| row.is_sale())
        .map(|row| -row.delta)
        .sum();
    // An order with an unknown outcome may commit between the two reads.
    let unequal = (audit.sold - rows).abs() - signed(tally.unknown);
    let checks = [
        (audit.oversold, "units sold that never existed", &[][..]),
        (
            audit.drift,
            "units of difference between the counter and the ledger",
            &[],
        ),
        (
            signed(mismatch.lost),
            "orders answered 200 that are not in the ledger",
            &mismatch.lost_ids,
        ),
        (
            signed(mismatch.phantom),
            "sales in the ledger that no answer names",
            &mismatch.phantom_ids,
        ),
        (
            signed(mismatch.sold_after_refusal),
            "orders answered 503 although they were sold",
            &[],
        ),
        (
            unequal.max(0),
            "units of difference between the audit and the ledger",
            &[],
        ),
        (
            (sold - plan.stock).max(0),
            "more orders answered 200 than units in stock",
            &[],
        ),
        (
            unsold.max(0),
            "orders refused although units were left",
            &[],
        ),
        (
            audit.pending,
            "movements in the journal that did not reach SQL in time",
            &[],
        ),
    ];
    let wrong = checks.into_iter().filter(|(count, ..)| *count != 0);
    let line = |(count, what, ids): (i64, &str, &[Uuid])| match ids {
        [] => format!("{count} {what}"),
        ids => {
            let ids: Vec<_> = ids.iter().copied().map(short).collect();
            format!("{count} {what} ({})", ids.join(", "))
        }
    };
    wrong.map(line).collect()
}

/// Converts a count for a comparison with signed units.
pub(super) fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
