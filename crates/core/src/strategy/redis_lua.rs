//! `redis-lua`: a counter in Redis admits deductions by one Lua script; `group-commit` makes them.
//!
//! *Guarantees*: never oversells: the counter only refuses, and SQL decides about what it admits. A refusal of a request without a key may be up to 500 ms old.
//! *Costs*: one round trip to Redis before those of group-commit; a refusal costs the database nothing.
//! *Fails when*: Redis is down: 503. A counter that Redis has lost is loaded again; one that is too low hides units for up to 500 ms.
//! *Use when*: many more requests are refused than sold, and the refusals of many replicas must not reach the database.

// The counter has admitted the deduction, or it has a key.
pub(super) use super::group_commit::attempt;
