//! `redis-lua`: one script on Redis takes the units only where there are enough.
//!
//! *Guarantees*: volatile: never oversells while Redis keeps its data; what Redis loses (failover, `appendfsync everysec`) can be sold again.
//! *Costs*: one round trip to Redis, shared by those who want the same SKU at that moment; the SQL ledger follows behind, and deductions stop (503) when it falls too far behind.
//! *Fails when*: Redis loses what it acknowledged: those units go on sale again, and a retry with an Idempotency-Key that was lost with them may sell once more.
//! *Use when*: a flash sale needs more than the database gives, and a small loss on failover can be borne.

use crate::stock::Deduction;
use crate::store::{Attempt, InRedis, StockStore, StoreError};

use super::{Card, Service, Tier};

pub(super) const CARD: Card = Card {
    name: "redis-lua",
    tier: Tier::Volatile,
    home: "redis",
    needs: &[Service::Redis],
    planned: false,
    source: include_str!("redis_lua.rs"),
};

/// Lets the script decide.
pub(super) async fn attempt(
    store: &dyn StockStore,
    deduction: &Deduction,
) -> Result<Attempt, StoreError> {
    store.deduct_in_redis(deduction, InRedis::Script).await
}
