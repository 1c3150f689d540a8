//! Stock that lives in Redis, beyond the contract of all stores: how it gets there and into the
//! ledger, what the server refuses, and what callers see of it.

mod audited;
mod consumers;
mod exactly_once;
mod first_requests;
mod following;
mod hot_shard;
mod journal_limit;
mod killed;
mod loading;
mod lost_answers;
mod memory;
mod neighbours;
mod readiness;
mod refusals;
mod refused;
mod refused_entries;
mod requests;
mod silent;
mod stopping;
mod together;
mod watching;
