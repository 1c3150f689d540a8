//! `redis-lock`: a Redis lock around read, check, write.
//!
//! *Guarantees*: never oversells: the lock keeps others out, and the conditional write refuses what a lost lock let through.
//! *Costs*: two round trips to Redis around a read and a transaction; deductions of one SKU take turns, across all replicas.
//! *Fails when*: never by overselling; the holder pauses past its lease or Redis fails over, and its write is refused and tried again; while Redis is away, 503.
//! *Use when*: the work under the lock is more than one row can express, and Redis is there already.

use super::{Card, Service, Tier};

pub(super) const CARD: Card = Card {
    name: "redis-lock",
    tier: Tier::Guarded,
    home: "either",
    needs: &[Service::Redis],
    planned: false,
    source: include_str!("redis_lock.rs"),
};
