//! `zookeeper-lock`: a `ZooKeeper` lock around read, check, write.
//!
//! *Guarantees*: never oversells: waiters queue in order, and the conditional write refuses the write of a holder that lost its session.
//! *Costs*: two writes that a majority of the ensemble must have on disk, a list and a read, around a read and a transaction; deductions of one SKU take turns, across all replicas.
//! *Fails when*: the session expires while the holder pauses: its write is refused and retried; without a majority of the ensemble, 503; it never oversells.
//! *Use when*: fairness, and a lock that survives the loss of one server, matter more than speed.

pub(super) use super::locked::attempt;
