//! What one run of the tests shares: its environment variables, its seed, and messages to the user.

use std::fmt::Display;
use std::io::Write;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use fastrand::Rng;

/// The value of an environment variable. Empty counts as unset.
#[expect(
    clippy::disallowed_methods,
    reason = "the environment chooses the servers, the seed and the size of a test run"
)]
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Writes a line to standard error. Unlike `eprintln!`, the test harness does not capture it.
pub(crate) fn announce(message: impl Display) {
    // There is no better place to report that standard error is closed.
    let _ = writeln!(std::io::stderr(), "{message}");
}

/// The generator of this process's random choices. `TEST_SEED` sets its seed; a random seed is used
/// if it is unset. The first call prints the seed.
///
/// # Panics
/// If `TEST_SEED` is not a number.
pub fn rng() -> MutexGuard<'static, Rng> {
    static RNG: LazyLock<Mutex<Rng>> = LazyLock::new(|| {
        let seed = variable("TEST_SEED").map_or_else(
            || fastrand::u64(..),
            |seed| seed.parse().expect("TEST_SEED is a number"),
        );
        announce(format_args!("random choices: TEST_SEED={seed}"));
        Mutex::new(Rng::with_seed(seed))
    });
    RNG.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A name that no other test uses, in this run or another. It does not depend on the seed: a repeated
/// run may meet what the first one left on a server.
pub fn unique_name() -> String {
    format!("t_{:016x}", fastrand::u64(..))
}
