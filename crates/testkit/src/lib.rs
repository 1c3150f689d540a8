//! The servers that tests share, clusters of them, processes, and random choices. The single private servers and
//! the fault proxy are in `stocklock-servers`.
//!
//! Everything runs on this machine: it listens on loopback, keeps its data in temporary directories,
//! and ends with the process that started it, even if that process is killed.

#![expect(
    clippy::missing_errors_doc,
    clippy::must_use_candidate,
    reason = "for tests: every error ends the test, and an unused value does no harm"
)]

pub mod alone;
pub mod process;
pub mod run;
pub mod secrets;
pub mod servers;

pub use stocklock_servers::{eventually, ports, proxy, signals};

/// Asserts that a value matches a pattern. The message shows the value.
#[macro_export]
macro_rules! assert_matches {
    ($value:expr, $pattern:pat $(if $guard:expr)?) => {
        match &$value {
            $pattern $(if $guard)? => {}
            other => panic!("{other:?}"),
        }
    };
}
