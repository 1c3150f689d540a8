//! `group-commit`: deductions that wait at the same time share one transaction, those of one SKU and those of several.
//!
//! *Guarantees*: never oversells: one statement takes the units of a batch, if all are available; each request gets its own answer. A refusal of a request without a key may be up to 500 ms old.
//! *Costs*: the one round trip and the one commit of single-sql, shared by up to 256 requests; two reads more for a batch of which a request is refused or repeated; nothing for a request without a key of a level that has just been found sold out. While more than four SKUs are sold, their batches share transactions, and a batch whose row is locked, short or repeated there costs another message.
//! *Fails when*: the stock runs out while many replicas sell it: their batches conflict, and the row is then locked for a round trip; it never oversells.
//! *Use when*: SKUs must be sold faster than the database commits single transactions.

use super::{DeductionContext, DeductionRun};
use crate::ports::{AttemptOutcome, StoreError};
use crate::stock::{Operation, StockError};

/// One of the next batches makes the attempt.
pub(super) async fn attempt(run: &DeductionRun<'_>) -> Result<AttemptOutcome, StoreError> {
    run.context.scheduler.attempt(run.deduction.clone()).await
}

/// The refusal if the level is known to be sold out. A request with a key may be the retry of a sale,
/// which only the ledger knows.
pub(super) fn known_refusal(
    context: &DeductionContext,
    deduction: &Operation,
) -> Option<StockError> {
    if deduction.idempotency.is_some() {
        return None;
    }
    let available = context.scheduler.sold_out().available(deduction)?;
    Some(deduction.insufficient(available))
}
