//! The strategies that are still to come: listed, with the reason, and refused.

use super::{Card, Service, Tier};

pub(super) const GROUP_COMMIT: Card = Card {
    name: "group-commit",
    tier: Tier::Safe,
    home: "sql",
    needs: &[],
    planned: true,
    source: "
//! *Guarantees*: never oversells: the row is locked once for many deductions, each decided in arrival order.
//! *Costs*: one transaction for many deductions; each waits for the one before it to commit.
//! *Fails when*: never by overselling; one commit in doubt is in doubt for the whole group.
//! *Use when*: one SKU is so hot that a commit for each sale is the limit.
",
};

pub(super) const REDLOCK: Card = Card {
    name: "redlock",
    tier: Tier::Guarded,
    home: "either",
    needs: &[Service::Redlock],
    planned: true,
    source: "
//! *Guarantees*: as redis-lock, and the lock outlives the loss of a minority of its masters.
//! *Costs*: two round trips to each of N Redis masters around a read and a transaction.
//! *Fails when*: a majority is away, or one restarts without its data within a lease: the write's guard still holds.
//! *Use when*: the lock must stay available while one Redis is down.
",
};

pub(super) const SQL_LOCK: Card = Card {
    name: "sql-lock",
    tier: Tier::Guarded,
    home: "either",
    needs: &[],
    planned: true,
    source: "
//! *Guarantees*: never oversells: a leased row is the lock, and the conditional write refuses what a lost lease let through.
//! *Costs*: two more transactions on the database around a read and a transaction.
//! *Fails when*: the holder pauses past its lease: its write is refused and tried again.
//! *Use when*: a lock is needed and the database is all there is.
",
};
