//! A journal consumer that stops, that has nothing to do, or whose Redis is out of memory.

use std::sync::Arc;

use stocklock::ports::{AttemptOutcome, DeductionStore as _, RedisMethod, StoreError};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::store_refusals::Private;
use super::{assert_exact, run, sell};
use crate::store_contract::fixture::{Fixture, On, SOON, deduction};

const SELLERS: usize = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumer_stops_although_sales_continue() {
    let fixture = Fixture::on(On::Redis).await;
    fixture.put("a", 1_000_000).await;
    sell(&fixture, "a", 1).await;
    let stop = CancellationToken::new();
    let mut sellers = JoinSet::new();
    for _ in 0..SELLERS {
        let (store, stop) = (Arc::clone(&fixture.store), stop.clone());
        sellers.spawn(async move {
            while !stop.is_cancelled() {
                let sale = deduction("a", 1);
                match store.deduct_in_redis(&sale, RedisMethod::Script).await {
                    Ok(AttemptOutcome::Deducted { .. }) | Err(StoreError::JournalFull) => {}
                    other => panic!("{other:?}"),
                }
            }
        });
    }
    let settled = timeout(SOON, fixture.settle()).await;
    stop.cancel();
    sellers.join_all().await;
    settled.expect("the consumer stops");
    let audit = fixture.audit("a").await;
    assert_eq!((audit.pending, audit.consistent()), (0, true), "{audit:?}");
}

#[tokio::test]
async fn consumer_creates_no_keys_for_empty_journals() {
    let fixture = Fixture::on(On::Redis).await;
    fixture.settle().await;
    let keys = async |pattern| run::<Vec<String>>(&fixture, &["KEYS", pattern]).await;
    assert_eq!(keys("*").await, [""; 0]);
    fixture.put("a", 10).await;
    sell(&fixture, "a", 2).await;
    assert_exact(&fixture, "a", 2, 8).await;
    assert_eq!(keys("journal:*}").await.len(), 1);
}

/// Otherwise a journal that fills the memory could never be emptied.
#[tokio::test]
async fn journal_is_applied_while_redis_is_out_of_memory() {
    let redis = Private::start(&[]).await;
    let fixture = &redis.fixture;
    fixture.settle().await;
    sell(fixture, "a", 3).await;
    redis.run("CONFIG SET maxmemory 1").await;
    // The audit runs a new consumer, as after a restart of the service.
    assert_exact(fixture, "a", 4, 6).await;
    redis.run("CONFIG SET maxmemory 0").await;
    sell(fixture, "a", 6).await;
    assert_exact(fixture, "a", 10, 0).await;
}
