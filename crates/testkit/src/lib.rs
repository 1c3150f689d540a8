//! Private servers, a TCP fault proxy, processes, ports and signals for tests and benchmarks.
//!
//! Everything runs on this machine: it listens on loopback, keeps its data in temporary directories,
//! and ends with the process that started it.

#![expect(
    clippy::missing_errors_doc,
    clippy::must_use_candidate,
    reason = "for tests: every error ends the test, and an unused value does no harm"
)]

pub mod ports;
pub mod process;
pub mod proxy;
pub mod services;
pub mod signals;
