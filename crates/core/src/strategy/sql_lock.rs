//! `sql-lock`: a leased row in a table of locks around read, check, write.
//!
//! *Guarantees*: never oversells: the lock makes conflicts rare, and the conditional write refuses the write of a holder that lost its lock.
//! *Costs*: two more commits in the database around a read and a transaction; deductions of one SKU take turns, across all replicas; on MariaDB and SQLite, waiting replicas poll.
//! *Fails when*: the holder pauses past its lease: its write is refused and retried; while the database is down, 503; it never oversells.
//! *Use when*: the work under the lock is more than one transaction can hold, and the database shall stay the only server.

pub(super) use super::locked::attempt;
