//! `group-commit`: deductions of one SKU that wait at the same time share one transaction.
//!
//! *Guarantees*: never oversells: one statement takes the units of a batch, if all are available; each request gets its own answer.
//! *Costs*: the one round trip and the one commit of single-sql, shared by up to 256 requests; two reads more for a batch of which a request is refused or repeated.
//! *Fails when*: the stock runs out while many replicas sell it: their batches conflict, and the row is then locked for a round trip; it never oversells.
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
