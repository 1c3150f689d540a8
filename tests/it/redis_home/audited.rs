//! The audit of stock in Redis while it is sold: it comes to an end, and shows what was lost.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::loading::{roll_back, sell, sell_and_remember};
use super::requests::{create, settled};
use crate::faults::send;
use crate::store_contract::fixture::{Fixture, name, redis_options};
use crate::support::app::TestApp;
use crate::support::proxy::{Mode, Proxy};
use crate::support::services::{Backend, fresh_database, fresh_redis};

const SKU: &str = "hot";
const STOCK: i64 = 1_000_000;
const SELLERS: usize = 4;
const AUDITS: usize = 10;

/// Goal: an audit of a SKU that never rests is answered, and its figures agree.
///
/// Method: the replica that audits is far from the database, so that the ledger has gone on
/// between any two of its readings; another one is near and follows the journal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_audit_of_what_is_sold_all_the_time_comes_to_an_end() {
    let (database, redis) = (fresh_database(Backend::Postgres).await, fresh_redis().await);
    let (proxy, far) = Proxy::before(&database.url).await;
    let flags = ["--redis-url", &*redis.url];
    let seller = Arc::new(TestApp::on(&database.url, 1, &flags).await);
    let auditor = TestApp::on_migrated(&far, 1, &flags).await;
    create(&seller, SKU, STOCK).await;
    proxy.set(Mode::Delay(Duration::from_millis(10))).await;
    let over = CancellationToken::new();
    let sellers: JoinSet<_> = (0..SELLERS)
        .map(|_| keep_selling(Arc::clone(&seller), over.clone()))
        .collect();
    let mut last = 0;
    for _ in 0..AUDITS {
        let answer = auditor.get(&format!("/stock/{SKU}/audit")).await;
        let status = answer.status();
        let audit: Value = answer.json().await.expect("JSON");
        assert_eq!(status, 200, "{audit}");
        let audit = &audit["warehouses"][0];
        let figure = |name: &str| audit[name].as_i64().expect("a number");
        assert_eq!(figure("drift"), 0, "{audit}");
        assert_eq!(figure("sold"), STOCK - figure("on_hand"), "{audit}");
        assert!(figure("sold") > last, "nothing was sold meanwhile: {audit}");
        last = figure("sold");
    }
    over.cancel();
    let sold: i64 = sellers.join_all().await.into_iter().sum();
    proxy.set(Mode::Pass).await;
    let audit = settled(&auditor, SKU).await;
    assert_eq!((&audit["sold"], &audit["drift"]), (&json!(sold), &json!(0)));
    auditor.stop().await;
    let seller = Arc::into_inner(seller).expect("nobody sells any more");
    seller.stop().await;
}

/// Answers how many units it has sold.
async fn keep_selling(app: Arc<TestApp>, over: CancellationToken) -> i64 {
    let mut sold = 0;
    while !over.is_cancelled() {
        let order = app.deduct(0, "redis-lua", &json!({"sku": SKU}));
        let answer = send(order).await.expect("it answers");
        assert_eq!(answer.status, 200, "{answer:?}");
        sold += 1;
    }
    sold
}

/// Sales that Redis has forgotten show even in an audit during which it sells on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_redis_forgot_shows_though_it_sells_during_the_audit() {
    let (database, redis) = (fresh_database(Backend::Postgres).await, fresh_redis().await);
    let near = Fixture::at(Backend::Postgres, database.url.clone()).await;
    let near = near.with(redis_options(&redis.url)).with_redis(redis);
    near.put("a", 10).await;
    let (proxy, far) = Proxy::before(&database.url).await;
    let redis_url = near.redis_url().expect("it has one").to_owned();
    let far = Fixture::at(Backend::Postgres, far).await;
    let far = far.with(redis_options(&redis_url));
    let earlier = sell_and_remember(&near, "a", 4).await;
    sell(&near, "a", 3).await;
    near.settle().await;
    roll_back(&near, &earlier).await;
    // In the middle of the audit, Redis sells on: its journal comes to later entries than the
    // ledger has.
    let held = proxy.hold_request(b"received_by_then");
    let audited = name("a");
    let (audits, ()) = tokio::join!(far.store.audit(&audited), async {
        held.held().await;
        sell(&near, "a", 1).await;
        held.let_go();
    });
    let audits = audits.expect("no error");
    assert_eq!(
        (audits[0].sold, audits[0].on_hand, audits[0].drift()),
        (7, 6, 3),
        "{audits:?}"
    );
}
