//! Private servers, a TCP fault proxy, processes, ports and signals for tests and benchmarks.
//!
//! Everything runs on this machine: it listens on loopback, keeps its data in temporary directories,
//! and ends with the process that started it, even if that process is killed.

#![expect(
    clippy::missing_errors_doc,
    clippy::must_use_candidate,
    reason = "for tests: every error ends the test, and an unused value does no harm"
)]

pub mod alone;
pub mod ports;
pub mod process;
pub mod proxy;
pub mod run;
pub mod servers;
pub mod signals;

use std::time::Duration;

use tokio::time::{Instant, sleep};

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

/// Polls `check` until it returns true.
///
/// # Panics
/// If it does not return true in time; the message contains `what`.
pub async fn eventually(what: &str, within: Duration, mut check: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + within;
    while !check().await {
        assert!(Instant::now() < deadline, "not within {within:?}: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}
