//! Stock that lives in Redis, beyond the contract of all stores: how it gets there and into the
//! ledger, what the server refuses, and what callers see of it.

mod following;
mod loading;
mod refusals;
mod requests;
mod watching;
