//! The judgement of one run: what contradicts exactness, and whether the strategy kept its promise.

use std::fmt;

use serde::Serialize;

use super::evidence::short;
use super::mismatch::Mismatch;
use super::plan::RacePlan;
use super::replica_client::{Audit, Movement};
use super::tally::Answers;
use stocklock_core::strategy::Tier;

/// Whether a strategy kept the promise of its tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It promises to be exact, and answers, level and ledger agree.
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
    /// Judges a run of a strategy of this tier.
    pub(super) fn new(tier: Tier, failed: i64, audit: &Audit, findings: &[String]) -> Self {
        match tier {
            Tier::Unsafe if audit.lost_units() => Self::Caught,
            Tier::Unsafe => Self::NotCaught,
            Tier::Safe | Tier::Guarded => match (findings, failed) {
                ([], 0) => Self::Exact,
                ([], _) => Self::NotProven,
                _ => Self::Broken,
            },
        }
    }

    /// The text in the colour of the verdict, for a terminal.
    pub(super) fn coloured(self) -> String {
        let colour = match self {
            Self::Exact => "32",
            Self::Broken | Self::NotProven => "1;31",
            Self::Caught => "31",
            Self::NotCaught => "33",
        };
        format!("\x1b[{colour}m{self}\x1b[0m")
    }

    /// Whether this verdict makes the whole race fail.
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
            Self::NotCaught => "not caught",
        })
    }
}

const LOST: &str = "orders answered 200 that are not in the ledger";
const PHANTOM: &str = "sales in the ledger that no answer names";

/// What contradicts exactness, in the order of the counts in [`findings`].
const CONTRADICTIONS: [&str; 8] = [
    "units sold that never existed",
    "units of difference between the level and the ledger",
    LOST,
    PHANTOM,
    "orders answered 503 although they were sold",
    "units of difference between the audit and the ledger",
    "more orders answered 200 than there was stock for",
    "orders refused although units were left",
];

/// Compares answers, audit and ledger. Returns everything that contradicts exactness.
pub(super) fn findings(
    plan: &RacePlan,
    answers: &Answers,
    audit: &Audit,
    mismatch: &Mismatch,
    ledger: &[Movement],
) -> Vec<String> {
    let expected = plan.orders_in_stock().min(plan.total_orders());
    // A failed order leaves a unit unsold, which is no contradiction.
    let unsold = match answers.failed {
        0 => expected - answers.sold,
        _ => 0,
    };
    let sales = ledger.iter().filter(|row| row.is_sale());
    let in_ledger: i64 = sales.map(|row| -row.delta).sum();
    // An order with an unknown outcome may commit between the two reads.
    let unequal = (audit.sold - in_ledger).abs() - answers.unknown * plan.quantity;
    let counts = [
        audit.oversold,
        audit.drift,
        mismatch.lost,
        mismatch.phantom,
        answers.sold_after_refusal,
        unequal.max(0),
        (answers.sold - plan.orders_in_stock()).max(0),
        unsold.max(0),
    ];
    let mut texts = Vec::new();
    for (count, what) in counts.into_iter().zip(CONTRADICTIONS) {
        let ids = match what {
            LOST => &mismatch.lost_ids[..],
            PHANTOM => &mismatch.phantom_ids,
            _ => &[],
        };
        let ids: Vec<_> = ids.iter().copied().map(short).collect();
        match &ids[..] {
            _ if count == 0 => {}
            [] => texts.push(format!("{count} {what}")),
            ids => texts.push(format!("{count} {what} ({})", ids.join(", "))),
        }
    }
    texts
}
