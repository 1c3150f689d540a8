//! What a consumer does where there is nothing, or always something, to consume; and where Redis
//! takes no more.

use std::sync::Arc;

use stocklock::store::{Attempt, InRedis, StoreError};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::loading::sell;
use super::refusals::Private;
use crate::store_contract::fixture::{Fixture, On, SOON, deduction};

const SELLERS: usize = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_is_to_stop_stops_though_sales_go_on() {
    let fixture = Fixture::on(On::REDIS).await;
    fixture.put("a", 1_000_000).await;
    sell(&fixture, "a", 1).await;
    let over = CancellationToken::new();
    let mut sellers = JoinSet::new();
    for _ in 0..SELLERS {
        let (store, over) = (Arc::clone(&fixture.store), over.clone());
        sellers.spawn(async move {
            while !over.is_cancelled() {
                let sale = deduction("a", 1);
                match store.deduct_in_redis(&sale, InRedis::Script).await {
                    Ok(Attempt::Journaled { .. }) | Err(StoreError::JournalFull) => {}
                    other => panic!("{other:?}"),
                }
            }
        });
    }
    let settled = timeout(SOON, fixture.settle()).await;
    over.cancel();
    sellers.join_all().await;
    settled.expect("it stops");
    // And yet, of what was there when it was told, nothing is left.
    let audit = fixture.audit("a").await;
    assert_eq!((audit.pending, audit.consistent()), (0, true), "{audit:?}");
}

/// The keys of a Redis that somebody else may use too.
async fn keys(fixture: &Fixture, pattern: &str) -> Vec<String> {
    fixture.redis(redis::cmd("KEYS").arg(pattern)).await
}

#[tokio::test]
async fn a_consumer_leaves_no_keys_where_nothing_is_journaled() {
    let fixture = Fixture::on(On::REDIS).await;
    fixture.settle().await;
    assert_eq!(keys(&fixture, "*").await, [""; 0]);
    fixture.put("a", 10).await;
    sell(&fixture, "a", 2).await;
    let audit = fixture.audit("a").await;
    assert_eq!((audit.sold, audit.pending), (2, 0), "{audit:?}");
    assert_eq!(keys(&fixture, "journal:*}").await.len(), 1);
}

/// Else the journal that fills its memory could never be emptied.
#[tokio::test]
async fn what_is_journaled_reaches_the_ledger_while_redis_is_out_of_memory() {
    let redis = Private::start(&[]).await;
    let fixture = &redis.fixture;
    fixture.settle().await;
    sell(fixture, "a", 3).await;
    redis.tell(&["CONFIG", "SET", "maxmemory", "1"]).await;
    // A consumer of its own, as after a restart.
    let audit = fixture.audit("a").await;
    assert_eq!((audit.sold, audit.pending), (4, 0), "{audit:?}");
    redis.tell(&["CONFIG", "SET", "maxmemory", "0"]).await;
    sell(fixture, "a", 6).await;
    assert!(fixture.audit("a").await.consistent());
}
