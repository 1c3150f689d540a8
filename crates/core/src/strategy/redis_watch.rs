//! `redis-watch`: a counter in Redis admits deductions by `WATCH`, `MULTI`, `EXEC`; `group-commit` makes them.
//!
//! *Guarantees*: never oversells: the counter only refuses, and SQL decides about what it admits. A refusal of a request without a key may be up to 500 ms old.
//! *Costs*: three round trips to Redis on an exclusive connection (one takes it from the pool) before those of group-commit; under contention most attempts are discarded.
//! *Fails when*: many requests change one counter: it may give up as contended (503) while others succeed. While Redis is down, 503.
//! *Use when*: you want to compare it with redis-lua, which does the same in one round trip.

use super::{Card, DeductionRun, Dependency, Tier, group_commit};
use crate::ports::{AttemptOutcome, StoreError};

pub(super) const CARD: Card = Card {
    name: "redis-watch",
    tier: Tier::Safe,
    needs: &[Dependency::Redis],
    source: include_str!("redis_watch.rs"),
};

/// The counter has admitted the deduction, or it has a key.
pub(super) async fn attempt(run: &DeductionRun<'_>) -> Result<AttemptOutcome, StoreError> {
    group_commit::attempt(run).await
}
