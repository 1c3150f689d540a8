//! The journal consumer far from its database, or with a slow one: what a batch costs does not depend
//! on how many SKUs it has, and a batch that takes too long is made smaller.

use std::time::Duration;

use rstest::rstest;
use stocklock::ports::{DeductionStore as _, RedisMethod};
use stocklock_testkit::eventually;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{assert_exact, consume, fixture, journal_lengths, sell};
use crate::store_contract::fixture::{
    Fixture, Raw, assert_deducted, deduction_with_key, redis_options,
};
use crate::support::proxy::{Mode, Proxy};
use crate::support::services::Backend::{self, Mysql, Postgres};

/// How many SKUs are sold once each.
const SKUS: usize = 500;
/// How many of them are created or sold at once.
const AT_ONCE: usize = 8;
/// The delay of each message to and from the database.
const DELAY: Duration = Duration::from_millis(20);
/// The bound on applying one sale of each SKU.
const APPLIED_WITHIN: Duration = Duration::from_secs(30);

/// Creates the SKUs and sells one unit of each.
async fn sell_each(fixture: &Fixture) -> Vec<String> {
    let skus: Vec<String> = (0..SKUS).map(|number| format!("sku-{number}")).collect();
    for some in skus.chunks(SKUS / AT_ONCE) {
        let mut sellers = JoinSet::new();
        for sku in some {
            fixture.put(sku, 5).await;
            let (store, sku) = (fixture.store.clone(), sku.clone());
            sellers.spawn(async move {
                let sale = deduction_with_key(&sku, 1, &sku);
                assert_deducted(&store.deduct_in_redis(&sale, RedisMethod::Script).await);
            });
        }
        sellers.join_all().await;
    }
    skus
}

/// Goal: the consumer is far from its database, and every movement is of another SKU. It applies them
/// at the same speed as movements of one SKU.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_skus_are_applied_in_time_far_from_the_database(
    #[values(Mysql, Postgres)] backend: Backend,
) {
    let near = fixture(backend).await;
    let redis = near.redis_url().expect("stock lives in Redis").to_owned();
    let (proxy, url) = Proxy::before(&near.url).await;
    let far = Fixture::at(backend, url).await.with(redis_options(&redis));
    let skus = sell_each(&near).await;
    assert_eq!(journal_lengths(&redis).await.iter().sum::<i64>(), 500);
    proxy.set(Mode::Delay(DELAY)).await;

    let stop = CancellationToken::new();
    let consumer = tokio::spawn(consume(far.consumer(), stop.clone()));

    eventually("the journals are empty", APPLIED_WITHIN, async || {
        journal_lengths(&redis).await.is_empty()
    })
    .await;
    stop.cancel();
    let repeated = consumer.await.expect("the consumer stops");
    assert_eq!(repeated, 0, "entries were applied again");
    for sku in skus.iter().step_by(50) {
        assert_exact(&near, sku, 1, 4).await;
    }
}

/// Goal: a batch that the database does not finish in time is tried again with fewer movements.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batch_is_made_smaller_until_a_slow_database_finishes() {
    const SALES: i64 = 300;
    let fixture = fixture(Postgres).await;
    fixture.put("a", SALES).await;
    sell(&fixture, "a", SALES).await;
    let mut raw = Raw::connect(Postgres, &fixture.url).await;
    // The server ends a statement after one and a half seconds: after 150 rows.
    for slow in [
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql
            AS $$ BEGIN PERFORM pg_sleep(0.01); RETURN new; END $$",
        "CREATE TRIGGER slow BEFORE INSERT ON movement FOR EACH ROW EXECUTE FUNCTION slow()",
    ] {
        raw.run(slow).await.expect("the trigger can be created");
    }
    let stop = CancellationToken::new();
    let consumer = tokio::spawn(consume(fixture.consumer(), stop.clone()));
    let redis = fixture.redis_url().expect("stock lives in Redis");
    eventually("the journal is empty", APPLIED_WITHIN, async || {
        journal_lengths(redis).await.is_empty()
    })
    .await;
    stop.cancel();
    consumer.await.expect("the consumer stops");
    assert_exact(&fixture, "a", SALES, 0).await;
}
