//! `redis-watch`: a counter in Redis admits deductions by `WATCH`, `MULTI`, `EXEC`; `group-commit` makes them.
//!
//! *Guarantees*: never oversells: the counter only refuses, and SQL decides about what it admits. A refusal of a request without a key may be up to 500 ms old.
//! *Costs*: three round trips to Redis on an exclusive connection (one takes it from the pool) before those of group-commit; under contention most attempts are discarded.
//! *Fails when*: many requests change one counter: it may give up as contended (503) while others succeed. While Redis is down, 503.
//! *Use when*: you want to compare it with redis-lua, which does the same in one round trip.

// The counter has admitted the deduction, or it has a key.
pub(super) use super::group_commit::attempt;
