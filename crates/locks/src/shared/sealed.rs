//! Only this crate implements its traits of back ends, so a later release can add methods to them.

/// Implemented by the back ends of this crate.
pub trait Sealed {}

impl Sealed for crate::backends::local::LocalBackend {}
impl Sealed for crate::backends::memory::MemoryBackend {}
#[cfg(feature = "redis")]
impl Sealed for crate::backends::redis::RedisBackend {}
#[cfg(feature = "redis")]
impl Sealed for crate::backends::redis::redlock::RedLockBackend {}
#[cfg(feature = "sql")]
impl Sealed for crate::backends::sql::SqlBackend {}
#[cfg(feature = "zookeeper")]
impl Sealed for crate::backends::zookeeper::ZooKeeperBackend {}
