//! The first half of every read-check-write: read the level, check that there are enough units.

use std::ops::ControlFlow;

use super::Homes;
use crate::deduct::DeductionRun;
use crate::ports::{AttemptOutcome, StoreError};
use crate::stock::StockLevel;

/// Continues with the level that was read, or breaks with the refusal. `homes` are the homes that
/// the strategy works on.
pub(super) async fn read_and_check(
    run: &DeductionRun<'_>,
    homes: Homes,
) -> Result<ControlFlow<AttemptOutcome, StockLevel>, StoreError> {
    let deduction = run.deduction;
    let store = &run.context.store;
    let Some(level) = store.level(&deduction.sku, &deduction.warehouse).await? else {
        return Ok(ControlFlow::Break(AttemptOutcome::UnknownSku));
    };
    let available = level.available();
    Ok(if !homes.include(level.home) {
        ControlFlow::Break(AttemptOutcome::WrongHome(level.home))
    } else if available < deduction.quantity.units() {
        ControlFlow::Break(AttemptOutcome::Insufficient { available })
    } else {
        ControlFlow::Continue(level)
    })
}
