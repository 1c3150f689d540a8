//! The strategies that are still to come: listed, with the reason, and refused.

use super::{Card, Tier};

const TO_COME: Option<&str> = Some("not built yet in this version");

pub(super) const GROUP_COMMIT: Card = Card {
    name: "group-commit",
    tier: Tier::Safe,
    home: "sql",
    needs: &[],
    unavailable: TO_COME,
    source: "
//! *Guarantees*: never oversells: the row is locked once for many deductions, each decided in arrival order.
//! *Costs*: one transaction for many deductions; each waits for the one before it to commit.
//! *Fails when*: never by overselling; one commit in doubt is in doubt for the whole group.
//! *Use when*: one SKU is so hot that a commit for each sale is the limit.
",
};

pub(super) const REDIS_LOCK: Card = Card {
    name: "redis-lock",
    tier: Tier::Guarded,
    home: "either",
    needs: &["redis"],
    unavailable: TO_COME,
    source: "
//! *Guarantees*: never oversells: the lock keeps others out, and the conditional write refuses what a lost lock let through.
//! *Costs*: two round trips to Redis around a read and a transaction.
//! *Fails when*: the holder pauses past its lease or Redis fails over: its write is refused and tried again.
//! *Use when*: the work under the lock is more than one row can express, and Redis is there already.
",
};

pub(super) const REDLOCK: Card = Card {
    name: "redlock",
    tier: Tier::Guarded,
    home: "either",
    needs: &["redlock"],
    unavailable: TO_COME,
    source: "
//! *Guarantees*: as redis-lock, and the lock outlives the loss of a minority of its masters.
//! *Costs*: two round trips to each of N Redis masters around a read and a transaction.
//! *Fails when*: a majority is away, or one restarts without its data within a lease: the write's guard still holds.
//! *Use when*: the lock must stay available while one Redis is down.
",
};

pub(super) const ZOOKEEPER_LOCK: Card = Card {
    name: "zookeeper-lock",
    tier: Tier::Guarded,
    home: "either",
    needs: &["zookeeper"],
    unavailable: TO_COME,
    source: "
//! *Guarantees*: never oversells: waiters queue fairly, and the conditional write refuses what a lost session let through.
//! *Costs*: a create, a list and a delete on the ensemble, each agreed by a majority, around a read and a transaction.
//! *Fails when*: the session expires while the holder pauses: its write is refused and tried again.
//! *Use when*: fairness and a consensus-backed lock matter more than speed.
",
};

pub(super) const SQL_LOCK: Card = Card {
    name: "sql-lock",
    tier: Tier::Guarded,
    home: "either",
    needs: &[],
    unavailable: TO_COME,
    source: "
//! *Guarantees*: never oversells: a leased row is the lock, and the conditional write refuses what a lost lease let through.
//! *Costs*: two more transactions on the database around a read and a transaction.
//! *Fails when*: the holder pauses past its lease: its write is refused and tried again.
//! *Use when*: a lock is needed and the database is all there is.
",
};

pub(super) const REDIS_WATCH: Card = Card {
    name: "redis-watch",
    tier: Tier::Volatile,
    home: "redis",
    needs: &["redis"],
    unavailable: TO_COME,
    source: "
//! *Guarantees*: never oversells while Redis keeps its data; what Redis loses can be sold again.
//! *Costs*: three round trips on a connection of its own; under contention most attempts are thrown away.
//! *Fails when*: Redis loses acknowledged writes (failover, appendfsync everysec).
//! *Use when*: you compare it with redis-lua, which does the same in one round trip.
",
};

pub(super) const REDIS_LUA: Card = Card {
    name: "redis-lua",
    tier: Tier::Volatile,
    home: "redis",
    needs: &["redis"],
    unavailable: TO_COME,
    source: "
//! *Guarantees*: never oversells while Redis keeps its data; what Redis loses can be sold again.
//! *Costs*: one round trip to Redis; the SQL ledger follows behind.
//! *Fails when*: Redis loses acknowledged writes (failover, appendfsync everysec).
//! *Use when*: a flash sale needs more than the database gives, and a small loss on failover can be borne.
",
};
