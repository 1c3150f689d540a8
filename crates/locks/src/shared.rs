//! What the other modules share: errors, clocks, connections and wake-ups.

pub mod clock;
pub(crate) mod error;
#[cfg(any(feature = "redis", feature = "zookeeper"))]
pub(crate) mod link;
pub(crate) mod lock;
pub(crate) mod managers;
pub mod metrics;
pub(crate) mod nonce;
pub(crate) mod numbers;
pub(crate) mod retry;
#[cfg(any(feature = "redis", feature = "sql", feature = "zookeeper"))]
pub(crate) mod setters;
pub(crate) mod source;
pub(crate) mod token;
pub(crate) mod topics;
