//! The audit of stock in Redis during sales: it ends, and it shows what Redis has lost.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::loading::{roll_back, sell_and_remember};
use super::{applied_audit, assert_sold, audit, create, order, sell};
use crate::faults::send;
use crate::store_contract::fixture::{Fixture, name, redis_options};
use crate::support::app::TestApp;
use crate::support::proxy::{Mode, Proxy};
use crate::support::services::{Backend, fresh_database, fresh_redis};

const SKU: &str = "hot";
const STOCK: i64 = 1_000_000;
const SELLERS: usize = 4;
const AUDITS: usize = 10;

/// Goal: an audit ends although its SKU is sold continuously, and its figures agree.
///
/// Method: a proxy delays the queries of the replica that audits. Another replica, without a delay,
/// applies movements between any two of these queries.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn audit_during_continuous_sales_ends_and_agrees() {
    let (database, redis) = (fresh_database(Backend::Postgres).await, fresh_redis().await);
    let (proxy, far) = Proxy::before(&database.url).await;
    let flags = ["--redis-url", &*redis.url];
    let seller = Arc::new(TestApp::on(&database.url, 1, &flags).await);
    let auditor = TestApp::on_migrated(&far, 1, &flags).await;
    create(&*seller, SKU, STOCK).await;
    proxy.set(Mode::Delay(Duration::from_millis(10))).await;
    let stop = CancellationToken::new();
    let sellers: JoinSet<_> = (0..SELLERS)
        .map(|_| keep_selling(Arc::clone(&seller), stop.clone()))
        .collect();
    let mut last = 0;
    for _ in 0..AUDITS {
        let audit = audit(&auditor, SKU).await;
        let figure = |name: &str| audit[name].as_i64().expect("a number");
        assert_eq!(figure("drift"), 0, "{audit}");
        assert_eq!(figure("sold"), STOCK - figure("on_hand"), "{audit}");
        assert!(figure("sold") > last, "nothing was sold: {audit}");
        last = figure("sold");
    }
    stop.cancel();
    let sold = sellers.join_all().await.into_iter().sum();
    proxy.set(Mode::Pass).await;
    assert_sold(&applied_audit(&auditor, SKU).await, sold);
    auditor.stop().await;
    let seller = Arc::into_inner(seller).expect("the sellers have ended");
    seller.stop().await;
}

/// Returns how many units it has sold.
async fn keep_selling(app: Arc<TestApp>, stop: CancellationToken) -> i64 {
    let mut sold = 0;
    while !stop.is_cancelled() {
        let answer = send(order(&*app, "redis-lua", SKU)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        sold += 1;
    }
    sold
}

/// Sales that Redis has lost show as drift even if Redis sells more during the audit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn audit_during_sales_shows_what_redis_forgot() {
    let (database, redis) = (fresh_database(Backend::Postgres).await, fresh_redis().await);
    let near = Fixture::at(Backend::Postgres, database.url.clone()).await;
    let near = near.with(redis_options(&redis.url)).with_redis(redis);
    near.put("a", 10).await;
    let (proxy, far) = Proxy::before(&database.url).await;
    let options = redis_options(near.redis_url().expect("stock lives in Redis"));
    let far = Fixture::at(Backend::Postgres, far).await.with(options);
    let earlier = sell_and_remember(&near, "a", 4).await;
    sell(&near, "a", 3).await;
    near.settle().await;
    roll_back(&near, &earlier).await;
    // During the audit, Redis sells again, so that its journal is ahead of the ledger.
    let held = proxy.hold_request(b"NOT coalesce(journal_millis");
    let sku = name("a");
    let (audits, ()) = tokio::join!(far.store.audit(&sku), async {
        held.held().await;
        sell(&near, "a", 1).await;
        held.let_go();
    });
    let audit = &audits.expect("no error")[0];
    let found = (audit.sold, audit.on_hand, audit.drift());
    assert_eq!(found, (7, 6, 3), "{audit:?}");
}
