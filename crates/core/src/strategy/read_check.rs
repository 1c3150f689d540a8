//! Read, check, write: what every strategy does that decides in this process.

use super::DeductionRun;
use crate::ports::{AttemptOutcome, Condition, StoreError};

/// Reads the level, checks that there are enough units, and writes the level that follows from it
/// under `condition`. Writes nothing if `is_lost` says after the read that the lock is lost.
pub(super) async fn read_check_write(
    run: &DeductionRun<'_>,
    condition: Condition<'_>,
    is_lost: impl FnOnce() -> bool,
) -> Result<AttemptOutcome, StoreError> {
    let deduction = run.deduction;
    let store = &run.context.store;
    let (sku, warehouse) = deduction.level();
    let Some(level) = store.level(sku, warehouse).await? else {
        return Ok(AttemptOutcome::UnknownSku);
    };
    let available = level.available();
    if available < deduction.units() {
        return Ok(AttemptOutcome::Insufficient { available });
    }
    if is_lost() {
        return Ok(AttemptOutcome::LockLost);
    }
    let written = store
        .write_back(deduction, (&level).into(), condition)
        .await?;
    let metrics = &run.context.metrics;
    match written {
        AttemptOutcome::Conflict => metrics.write_refused(run.strategy.name(), "version"),
        AttemptOutcome::LockLost => metrics.write_refused(run.strategy.name(), "fence"),
        _ => {}
    }
    Ok(written)
}
