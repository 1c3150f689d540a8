//! `redis-watch`: `WATCH`, read, check, `MULTI`, write, `EXEC`: writes nothing if another client was faster.
//!
//! *Guarantees*: volatile: never oversells while Redis keeps its data; units whose sale Redis loses (failover, `appendfsync everysec`) can be sold again.
//! *Costs*: two round trips on an exclusive connection; under contention most attempts are discarded.
//! *Fails when*: Redis loses writes that it acknowledged, units and Idempotency-Keys; on a hot SKU it may give up as contended (503) while other requests succeed.
//! *Use when*: you want to compare it with redis-lua, which does the same in one round trip.

use super::{Card, Dependency, Homes, Tier};
use crate::deduct::DeductionRun;
use crate::ports::{AttemptOutcome, RedisMethod, StoreError};

pub(super) const CARD: Card = Card {
    name: "redis-watch",
    tier: Tier::Volatile,
    homes: Homes::Redis,
    needs: &[Dependency::Redis],
    source: include_str!("redis_watch.rs"),
};

/// One transaction. [`AttemptOutcome::Conflict`] asks for another attempt.
pub(super) async fn attempt(run: &DeductionRun<'_>) -> Result<AttemptOutcome, StoreError> {
    let (store, method) = (&run.context.store, RedisMethod::Watch);
    store.deduct_in_redis(run.deduction, method).await
}
