//! `group-commit`: deductions of one SKU that wait at the same time share one transaction.
//!
//! *Guarantees*: never oversells: a batch is written only if the level still has the version that it was decided on; each request gets its own answer.
//! *Costs*: alone, the one round trip of single-sql; in a batch, two reads and one write shared by up to 256 requests, and one commit.
//! *Fails when*: many replicas sell the same SKU: their batches conflict, and the row is then locked for a round trip; it never oversells.
//! *Use when*: one SKU must be sold faster than the database commits single transactions.

use super::{Card, Homes, Tier};
use crate::deduct::DeductionRun;
use crate::ports::{AttemptOutcome, StoreError};

pub(super) const CARD: Card = Card {
    name: "group-commit",
    tier: Tier::Safe,
    homes: Homes::Sql,
    needs: &[],
    source: include_str!("group_commit.rs"),
};

/// The next batch of the level makes the attempt.
pub(super) async fn attempt(run: &DeductionRun<'_>) -> Result<AttemptOutcome, StoreError> {
    run.context.groups.deduct(run.deduction).await
}
