//! `redlock`: a lock on a majority of independent Redis masters around read, check, write.
//!
//! *Guarantees*: never oversells: the lock makes conflicts rare, and of two holders that read the same version, one write is refused. There is no fencing token, so the condition is the version only.
//! *Costs*: two round trips to all masters at the same time around a read and a transaction; deductions of one SKU take turns; waiting replicas poll.
//! *Fails when*: the holder pauses past its lease or masters lose data: its write is refused and retried; while a majority of the masters is down or was just started, 503; it never oversells.
//! *Use when*: the work under the lock is more than one row can express, the loss of one Redis must not stop it, and there is no ZooKeeper.

pub(super) use super::locked::attempt;
