//! What the integration tests share: replicas to test, and the servers and the proxy of testkit.

pub(crate) mod app;
pub(crate) mod client;
pub(crate) mod deadlocks;
pub(crate) mod distant;
pub(crate) mod lock_services;
pub(crate) mod process;
pub(crate) mod redis;
pub(crate) mod rival;
pub(crate) mod seeded_ledger;
pub(crate) mod timing;
pub(crate) mod topology;

pub(crate) use stocklock_testkit::{ports, proxy, servers as services};
