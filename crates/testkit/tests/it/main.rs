//! Tests of testkit: what the tests of other crates need, and would not notice. The proxy holds and cuts
//! exactly one message. Databases and servers leave nothing behind.

use std::time::Duration;

use tokio::time::timeout;

mod databases;
mod holds;
mod up;

/// Upper bound for what takes milliseconds.
const SOON: Duration = Duration::from_secs(20);
/// How long a test waits for an answer that must not come.
const SILENCE: Duration = Duration::from_millis(100);

/// Fails if the future is ready too early.
async fn is_silent<T>(future: &mut (impl Future<Output = T> + Unpin)) {
    let ready = timeout(SILENCE, future).await;
    assert!(ready.is_err(), "there must be no answer yet");
}

/// The answer of a future that must be ready soon.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    let answer = timeout(SOON, future).await;
    answer.unwrap_or_else(|_| panic!("no answer within {SOON:?}"))
}
