//! `redis-lock`: a Redis lock around read, check, write.
//!
//! *Guarantees*: never oversells: the lock makes conflicts rare, and the conditional write refuses the write of a holder that lost its lock.
//! *Costs*: two round trips to Redis around a read and a transaction; deductions of one SKU take turns, across all replicas.
//! *Fails when*: the holder pauses past its lease or Redis fails over: its write is refused and retried; while Redis is down, 503; it never oversells.
//! *Use when*: the work under the lock is more than one row can express, and Redis is there already.

pub(super) use super::locked::attempt;
