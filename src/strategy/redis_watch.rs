//! `redis-watch`: `WATCH`, read, check, `MULTI`, write, `EXEC`: nothing is written if another was faster.
//!
//! *Guarantees*: volatile: never oversells while Redis keeps its data; what Redis loses (failover, `appendfsync everysec`) can be sold again.
//! *Costs*: two round trips on a connection of its own; under contention most attempts are thrown away.
//! *Fails when*: Redis loses what it acknowledged, units and Idempotency-Keys; on a hot SKU it may give up as contended (503) while others succeed.
//! *Use when*: you compare it with redis-lua, which does the same in one round trip.

use crate::stock::Deduction;
use crate::store::{Attempt, InRedis, StockStore, StoreError};

use super::{Card, Service, Tier};

pub(super) const CARD: Card = Card {
    name: "redis-watch",
    tier: Tier::Volatile,
    home: "redis",
    needs: &[Service::Redis],
    planned: false,
    source: include_str!("redis_watch.rs"),
};

/// One attempt; [`Attempt::Stale`] asks for another.
pub(super) async fn attempt(
    store: &dyn StockStore,
    deduction: &Deduction,
) -> Result<Attempt, StoreError> {
    store.deduct_in_redis(deduction, InRedis::Watch).await
}
