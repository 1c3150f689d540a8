//! Two consumers share the journals: in a healthy run, neither applies what the other one has applied
//! or is applying.

use std::time::Duration;

use rstest::rstest;
use stocklock::ports::RedisMethod;
use stocklock_testkit::eventually;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{assert_exact, consume, deduct_until_decided, fixture, journal_lengths};
use crate::store_contract::fixture::{Fixture, redis_options};
use crate::support::proxy::{Mode, Proxy};
use crate::support::services::Backend::{self, Mysql, Postgres};

const SKUS: usize = 20;
/// How many units of each SKU are sold, all at once: many movements in each entry.
const SALES: usize = 500;
const APPLIED_WITHIN: Duration = Duration::from_mins(1);

/// Goal: no entry is applied twice although the database is slow enough that one consumer works on
/// entries for seconds.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_consumers_apply_each_entry_once(#[values(Mysql, Postgres)] backend: Backend) {
    let near = fixture(backend).await;
    let redis = near.redis_url().expect("stock lives in Redis").to_owned();
    let (proxy, url) = Proxy::before(&near.url).await;
    let skus: Vec<String> = (0..SKUS).map(|number| format!("sku-{number}")).collect();
    for sku in &skus {
        near.put(sku, 1_000).await;
        let sale = |_| deduct_until_decided(near.store.clone(), sku.clone(), RedisMethod::Script);
        (0..SALES)
            .map(sale)
            .collect::<JoinSet<_>>()
            .join_all()
            .await;
    }
    proxy.set(Mode::Delay(Duration::from_millis(1))).await;
    let stop = CancellationToken::new();
    let mut consumers = JoinSet::new();
    for _ in 0..2 {
        let far = Fixture::at(backend, url.clone()).await;
        let far = far.with(redis_options(&redis));
        consumers.spawn(consume(far.consumer(), stop.clone()));
    }

    eventually("the journals are empty", APPLIED_WITHIN, async || {
        journal_lengths(&redis).await.is_empty()
    })
    .await;
    stop.cancel();
    let repeated = consumers.join_all().await;
    assert_eq!(repeated, [0, 0], "entries were applied again");
    for sku in skus.iter().step_by(5) {
        assert_exact(&near, sku, 500, 500).await;
    }
}
