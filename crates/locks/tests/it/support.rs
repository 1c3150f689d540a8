//! Servers, processes and a proxy for the tests of the locks.

pub(crate) mod alone;
pub(crate) mod holder;
pub(crate) mod server;

pub(crate) use stocklock_testkit::{ports, proxy};
