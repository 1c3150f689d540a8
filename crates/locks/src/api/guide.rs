//! A page for each primitive, recipes, and the names of other libraries. The tests compile all code in
//! them.

#[doc = include_str!("../../docs/barrier.md")]
pub mod barrier {}
#[cfg(all(feature = "redis", feature = "sql"))]
#[doc = include_str!("../../docs/cookbook.md")]
pub mod cookbook {}
#[doc = include_str!("../../docs/latch.md")]
pub mod latch {}
#[doc = include_str!("../../docs/leader.md")]
pub mod leader {}
#[doc = include_str!("../../docs/lock.md")]
pub mod lock {}
#[doc = include_str!("../../docs/multi-lock.md")]
pub mod multi_lock {}
#[doc = include_str!("../../docs/names.md")]
pub mod names {}
#[doc = include_str!("../../docs/number.md")]
pub mod number {}
#[doc = include_str!("../../docs/once-per.md")]
pub mod once_per {}
#[doc = include_str!("../../docs/permits.md")]
pub mod permits {}
#[doc = include_str!("../../docs/read-write-lock.md")]
pub mod read_write_lock {}
#[cfg(feature = "redis")]
#[doc = include_str!("../../docs/redlock.md")]
pub mod redlock {}

/// The code in the README is compiled too.
#[cfg(all(doctest, feature = "redis", feature = "tower"))]
#[doc = include_str!("../../README.md")]
mod readme {}
