//! Stocklock: an inventory service that never oversells, and shows why.
//!
//! `POST /stock/deduct` takes stock; a closed set of [`strategy`]s decides how that deduction is
//! protected. Read in this order: the domain, the strategies, the stores, then the edges.

pub mod stock;

pub mod strategy;

pub mod store;

pub mod metrics;
pub mod retry;

pub mod lab;
