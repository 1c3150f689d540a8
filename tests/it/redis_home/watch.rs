//! Why `WATCH` needs a connection that no other request uses.

use std::sync::Arc;

use stocklock::ports::{AttemptOutcome, RedisMethod};
use stocklock::store::WatchOn;
use stocklock_testkit::assert_matches;
use tokio::task::JoinSet;

use super::deduct_until_decided;
use crate::store_contract::fixture::Fixture;
use crate::support::services::Backend::Sqlite;

const BUYERS: i64 = 8;
const SALES_EACH: i64 = 25;

/// Sells with eight buyers at once; returns how many units the level did not notice.
async fn drift(watch_on: WatchOn) -> i64 {
    let fixture = Fixture::in_redis(Sqlite, |mut options| {
        options.watch_on = watch_on;
        options
    })
    .await;
    fixture.put("a", 1000).await;
    let mut buyers = JoinSet::new();
    for _ in 0..BUYERS {
        let store = Arc::clone(&fixture.store);
        buyers.spawn(async move {
            for _ in 0..SALES_EACH {
                let sale = deduct_until_decided(Arc::clone(&store), "a".into(), RedisMethod::Watch);
                let sold = sale.await;
                assert_matches!(sold, AttemptOutcome::Deducted { .. });
            }
        });
    }
    buyers.join_all().await;
    let audit = fixture.audit("a").await;
    assert_eq!(audit.sold, BUYERS * SALES_EACH);
    audit.drift()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_on_exclusive_connections_loses_no_update() {
    assert_eq!(drift(WatchOn::Exclusive).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_on_a_shared_connection_loses_updates() {
    let lost = drift(WatchOn::Shared).await;
    assert!(lost > 0, "nothing was lost");
}
