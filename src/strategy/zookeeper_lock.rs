//! `zookeeper-lock`: a `ZooKeeper` lock around read, check, write.
//!
//! *Guarantees*: never oversells: waiters queue fairly, and the conditional write refuses what a lost session let through.
//! *Costs*: two writes that a majority of the ensemble must have on disk, a list and a read, around a read and a transaction; deductions of one SKU take turns, across all replicas.
//! *Fails when*: never by overselling; the session expires while the holder pauses, and its write is refused and tried again; without a majority of the ensemble, 503.
//! *Use when*: fairness and a lock that outlives the loss of a server matter more than speed.

use super::{Card, Service, Tier};

pub(super) const CARD: Card = Card {
    name: "zookeeper-lock",
    tier: Tier::Guarded,
    home: "either",
    needs: &[Service::Zookeeper],
    planned: false,
    source: include_str!("zookeeper_lock.rs"),
};
