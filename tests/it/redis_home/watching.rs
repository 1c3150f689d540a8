//! Why `WATCH` needs a connection of its own.

use std::sync::Arc;

use stocklock::store::{Attempt, InRedis, WatchOn};
use tokio::task::JoinSet;

use crate::store_contract::fixture::{Fixture, deduction};
use crate::support::services::Backend::Sqlite;

/// Sells 200 units by 8 buyers at once, and answers how many of them the counter did not notice.
async fn drift(watch_on: WatchOn) -> i64 {
    let fixture = Fixture::in_redis(Sqlite, |mut options| {
        options.watch_on = watch_on;
        options
    })
    .await;
    fixture.put("a", 1000).await;
    let mut buyers = JoinSet::new();
    for _ in 0..8 {
        let store = Arc::clone(&fixture.store);
        buyers.spawn(async move {
            let mut sold = 0;
            while sold < 25 {
                let attempt = store
                    .deduct_in_redis(&deduction("a", 1), InRedis::Watch)
                    .await;
                match attempt.expect("no error") {
                    Attempt::Journaled { .. } => sold += 1,
                    Attempt::Stale => {}
                    other => panic!("{other:?}"),
                }
            }
        });
    }
    buyers.join_all().await;
    let audit = fixture.audit("a").await;
    assert_eq!(audit.sold, 200);
    audit.drift()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_on_connections_of_ones_own_loses_nothing() {
    assert_eq!(drift(WatchOn::Exclusive).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_on_a_shared_connection_loses_updates() {
    let lost = drift(WatchOn::Shared).await;
    assert!(lost > 0, "nothing was lost");
}
