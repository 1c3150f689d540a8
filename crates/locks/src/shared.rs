//! What the other rooms share: errors, clocks, connections, wake-ups, and the tables of the back ends without a
//! server.

pub mod clock;
pub(crate) mod error;
#[cfg(any(feature = "redis", feature = "zookeeper"))]
pub(crate) mod link;
pub(crate) mod lock;
pub(crate) mod managers;
pub mod metrics;
pub(crate) mod nonce;
pub(crate) mod numbers;
pub(crate) mod periods;
pub(crate) mod retry;
pub(crate) mod revoked;
pub(crate) mod setters;
pub(crate) mod shares;
pub(crate) mod source;
pub(crate) mod table;
pub(crate) mod tables;
pub(crate) mod token;
pub(crate) mod topics;
