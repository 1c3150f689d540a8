//! What the tests stand on: real servers of their own, and a proxy that breaks connections to them.

pub(crate) mod app;
pub(crate) mod explore;
pub(crate) mod lock_services;
pub(crate) mod memory_store;
pub(crate) mod model_lock;
pub(crate) mod ports;
pub(crate) mod process;
pub(crate) mod proxy;
pub(crate) mod rival;
pub(crate) mod services;
pub(crate) mod signals;
