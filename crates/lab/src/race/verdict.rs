//! The judgement of one run: what contradicts exactness, and whether the strategy kept its promise.

use std::fmt;

use serde::Serialize;

use super::evidence::short;
use super::mismatch::Mismatch;
use super::plan::RacePlan;
use super::replica_client::{Audit, Book};
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

/// What contradicts exactness in the books of a SKU, in the order of the counts in [`contradictions`].
const IN_BOOKS: [&str; 5] = [
    "units sold that never existed",
    "units of difference between the level and the ledger",
    LOST,
    PHANTOM,
    "units of difference between the audit and the ledger",
];

/// What contradicts it in the answers, in the order of the counts in [`findings`].
const IN_ANSWERS: [&str; 3] = [
    "orders answered 503 although they were sold",
    "more orders answered 200 than there was stock for",
    "orders refused although units were left",
];

/// Compares answers, audits and ledgers. Returns everything that contradicts exactness; with several SKUs, each of
/// them by itself.
pub(super) fn findings(
    plan: &RacePlan,
    answers: &Answers,
    books: &[(&Book, Mismatch)],
) -> Vec<String> {
    let mut findings = Vec::new();
    for (book, mismatch) in books {
        let found = contradictions(plan, answers, book, mismatch);
        findings.extend(found.map(|finding| match books.len() {
            1 => finding,
            _ => format!("{finding} of {}", book.sku),
        }));
    }
    let expected = plan.orders_in_stock().min(plan.total_orders());
    // A failed order leaves a unit unsold, which is no contradiction.
    let unsold = match answers.failed {
        0 => expected - answers.sold,
        _ => 0,
    };
    let counts = [
        answers.sold_after_refusal,
        answers.sold - plan.orders_in_stock(),
        unsold,
    ];
    let found = counts.into_iter().zip(IN_ANSWERS);
    let found = found.filter(|(count, _)| *count > 0);
    findings.extend(found.map(|(count, what)| format!("{count} {what}")));
    findings
}

fn contradictions(
    plan: &RacePlan,
    answers: &Answers,
    book: &Book,
    mismatch: &Mismatch,
) -> impl Iterator<Item = String> {
    let sales = book.ledger.iter().filter(|row| row.is_sale());
    let in_ledger: i64 = sales.map(|row| -row.delta).sum();
    // An order with an unknown outcome may commit between the two reads.
    let unequal = (book.audit.sold - in_ledger).abs() - answers.unknown * plan.quantity;
    let counts = [
        (book.audit.oversold, &[][..]),
        (book.audit.drift, &[]),
        (mismatch.lost, &mismatch.lost_ids[..]),
        (mismatch.phantom, &mismatch.phantom_ids),
        (unequal.max(0), &[]),
    ];
    let found = counts.into_iter().zip(IN_BOOKS);
    let found = found.filter(|((count, _), _)| *count != 0);
    found.map(|((count, ids), what)| {
        let ids: Vec<_> = ids.iter().copied().map(short).collect();
        match &ids[..] {
            [] => format!("{count} {what}"),
            ids => format!("{count} {what} ({})", ids.join(", ")),
        }
    })
}
