//! The environment of the servers: variables, names, and messages to the user.

use std::fmt::Display;
use std::io::Write;

/// The value of an environment variable. Empty counts as unset.
#[expect(
    clippy::disallowed_methods,
    reason = "the environment chooses the servers, and the seed and the size of a test run"
)]
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Writes a line to standard error. Unlike `eprintln!`, the test harness does not capture it.
pub fn announce(message: impl Display) {
    // There is no better place to report that standard error is closed.
    let _ = writeln!(std::io::stderr(), "{message}");
}

/// A name that nothing else uses, in this run or another. It does not depend on a seed: a repeated
/// run may meet what the first one left on a server.
pub fn unique_name() -> String {
    format!("t_{:016x}", fastrand::u64(..))
}
