//! The counters in Redis that stand in front of the levels: each call, over HTTP, and under faults.
//!
//! `TEST_COUNTER_ROUNDS` is the number of faults of each kind, for each strategy. If it is set, the tests
//! also check how long things take.

use std::sync::Arc;

use stocklock::store::Store;
use stocklock_testkit::run::variable;

use crate::faults::SOON;
use crate::store_contract::fixture::open_waiting;

mod faulty;
mod http;
mod servers;
mod store;

/// The strategies that never oversell.
const SAFE: [&str; 2] = ["redis-watch", "redis-lua"];

/// The SKU of most tests.
const SKU: &str = "a";

/// The number of rounds at full size.
fn full_size() -> Option<usize> {
    let rounds = variable("TEST_COUNTER_ROUNDS")?;
    Some(rounds.parse().expect("TEST_COUNTER_ROUNDS is a number"))
}

fn open(database: &str) -> Arc<dyn Store> {
    open_waiting(database, 1, SOON)
}

async fn key_in(database: &str) -> String {
    let ledger = open(database).ledger_id().await;
    let ledger = ledger.expect("the database answers");
    format!("stock:{{{ledger}/{SKU}}}/main")
}
