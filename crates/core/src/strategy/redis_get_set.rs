//! `redis-get-set`: `GET` the counter in Redis, check, `SET` it, then set the level in SQL to what was computed.
//!
//! *Guarantees*: nothing; movement and level still commit together, so the audit shows the lost updates.
//! *Costs*: two round trips to Redis and one transaction; no request waits for the decision of another.
//! *Fails when*: two requests get the same value: both set the counter and the level to the same result, so one sale is missed.
//! *Use when*: you want to see why a check in Redis needs one atomic command; never with real stock.

use super::DeductionRun;
use crate::ports::{AttemptOutcome, Condition, ReadLevel, StoreError};

/// Sets the level to what is left in the counter.
pub(super) async fn attempt(run: &DeductionRun<'_>) -> Result<AttemptOutcome, StoreError> {
    let left = run.left_in_counter();
    let read = ReadLevel {
        available: left + run.deduction.units(),
        version: None,
    };
    let store = &run.context.store;
    store.write_back(run.deduction, read, Condition::None).await
}
