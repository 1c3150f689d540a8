//! The lock servers, and the back ends without a server.

pub mod local;
pub mod memory;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "sql")]
pub mod sql;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;
