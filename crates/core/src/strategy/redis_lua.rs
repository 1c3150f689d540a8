//! `redis-lua`: one script on Redis takes the units only if there are enough.
//!
//! *Guarantees*: volatile: never oversells while Redis keeps its data; units whose sale Redis loses (failover, `appendfsync everysec`) can be sold again.
//! *Costs*: one round trip to Redis, shared by concurrent requests for the same SKU; the SQL ledger follows later, and deductions stop (503) if it falls too far behind.
//! *Fails when*: Redis loses writes that it acknowledged: those units go on sale again, and a retry whose Idempotency-Key was lost with them may sell a second time.
//! *Use when*: a flash sale needs more than the database gives, and a small loss on failover is acceptable.

use super::{Card, Dependency, Homes, Tier};
use crate::deduct::DeductionRun;
use crate::ports::{AttemptOutcome, RedisMethod, StoreError};

pub(super) const CARD: Card = Card {
    name: "redis-lua",
    tier: Tier::Volatile,
    homes: Homes::Redis,
    needs: &[Dependency::Redis],
    source: include_str!("redis_lua.rs"),
};

/// The script decides.
pub(super) async fn attempt(run: &DeductionRun<'_>) -> Result<AttemptOutcome, StoreError> {
    let (store, method) = (&run.context.store, RedisMethod::Script);
    store.deduct_in_redis(run.deduction, method).await
}
