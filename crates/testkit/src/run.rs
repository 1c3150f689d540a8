//! What one run of the tests shares: its environment variables, its seed, and messages to the user.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{LazyLock, Mutex, PoisonError};

use fastrand::Rng;
pub(crate) use stocklock_servers::environment::announce;
pub use stocklock_servers::environment::{unique_name, variable};

/// A number that a variable of `make verify` sets, or the default of `make test`.
///
/// # Panics
/// If the variable is something else.
#[must_use]
pub fn number<N: std::str::FromStr>(name: &str, default: N) -> N {
    let Some(text) = variable(name) else {
        return default;
    };
    let number = text.parse();
    number.unwrap_or_else(|_| panic!("{name} is not a number: {text}"))
}

/// A generator of random choices. Its seed depends on `TEST_SEED`, which is random if it is unset, on
/// the name of the test, and on the number of earlier calls of the test. The first call prints
/// `TEST_SEED`; the harness shows that if the test fails.
///
/// # Panics
/// If `TEST_SEED` is not a number.
pub fn rng() -> Rng {
    static SEED: LazyLock<u64> = LazyLock::new(|| number("TEST_SEED", fastrand::u64(..)));
    static TESTS: Mutex<BTreeMap<String, Rng>> = Mutex::new(BTreeMap::new());
    // cargo-nextest sets the variable. `cargo test` names the thread of the test.
    let test = variable("NEXTEST_TEST_NAME")
        .or_else(|| std::thread::current().name().map(str::to_owned))
        .unwrap_or_default();
    let mut tests = TESTS.lock().unwrap_or_else(PoisonError::into_inner);
    let stream = tests.entry(test).or_insert_with_key(|test| {
        println!("random choices: TEST_SEED={}", *SEED);
        let mut hasher = DefaultHasher::new();
        (*SEED, test).hash(&mut hasher);
        Rng::with_seed(hasher.finish())
    });
    stream.fork()
}
