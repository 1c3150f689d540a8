//! Redis restarts with older data, as after a failover to a replica that was behind: what SQL has is
//! not sold again.

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use super::{applied_audit, assert_sold, command, create, order};
use crate::faults::{new_key, send, until};
use crate::support::app::{Answer, TestApp};
use crate::support::proxy::Proxy;
use crate::support::services::{Backend, PrivateServer, fresh_database};

/// Changes after the snapshot of Redis, and its neighbour does not.
const SKU: &str = "a";
const NEIGHBOUR: &str = "b";

async fn buy(app: &TestApp, sku: &str, key: &str) -> Answer {
    send(order(app, "redis-lua", sku).header("Idempotency-Key", key)).await
}

async fn level(app: &TestApp, sku: &str) -> Value {
    let answer = send(app.request(0, Method::GET, &format!("/stock/{sku}"))).await;
    answer.ok()["warehouses"][0].clone()
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sales_that_sql_has_are_not_sold_again(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let redis = PrivateServer::redis(&[]).await;
    let app = TestApp::with_flags(backend, 2, &["--redis-url", redis.url()]).await;
    for sku in [SKU, NEIGHBOUR] {
        create(&app, sku, 10).await;
        for _ in 0..2 {
            buy(&app, sku, &new_key()).await.ok();
        }
        assert_sold(&applied_audit(&app, sku).await, 2);
    }
    let neighbour = level(&app, NEIGHBOUR).await;
    // Redis starts with this file after it is killed.
    command::<()>(redis.url(), &["SAVE"]).await;
    let key = new_key();
    let lost = buy(&app, SKU, &key).await;
    for _ in 0..2 {
        buy(&app, SKU, &new_key()).await.ok();
    }
    assert_sold(&applied_audit(&app, SKU).await, 5);
    let before = level(&app, SKU).await;
    redis.kill9();
    redis.restart().await;

    let mut sold = Vec::new();
    until("stock in Redis is sold again", async || {
        sold.push(buy(&app, SKU, &new_key()).await);
        sold.last().is_some_and(|answer| answer.status == 200)
    })
    .await;
    let first = sold.pop().expect("an order was sold");
    assert_eq!(first.body["remaining"], 4, "{first:?}");
    let retried = buy(&app, SKU, &key).await;
    assert_eq!((&retried.id, retried.replayed), (&lost.id, true));
    let after = level(&app, SKU).await;
    assert!(
        after["version"].as_i64() > before["version"].as_i64(),
        "{after}"
    );
    let mut kept = level(&app, NEIGHBOUR).await;
    // No client uses a version from before.
    assert!(kept["version"].as_i64() > neighbour["version"].as_i64());
    kept["version"] = neighbour["version"].clone();
    assert_eq!(kept, neighbour);
    for replica in 0..4 {
        let body = json!({ "sku": SKU });
        send(app.deduct(replica, "redis-watch", &body)).await.ok();
    }
    let refused = buy(&app, SKU, &new_key()).await;
    assert_eq!(refused.status_and_code(), (409, "insufficient-stock"));
    assert_sold(&applied_audit(&app, SKU).await, 10);
    app.stop().await;
}

/// A replica has read a level from SQL when Redis restarts with older data. It loads the level after the
/// restart, but SQL has more sales by then.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn level_that_was_read_before_a_failover_is_read_again(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let redis = PrivateServer::redis(&[]).await;
    let database = fresh_database(backend).await;
    let (proxy, far) = Proxy::before(&database.url).await;
    let limits = ["--wait-limit-ms=60000", "--request-deadline-ms=120000"];
    let flags = [&["--redis-url", redis.url()], &limits[..]].concat();
    let seller = TestApp::on(&database.url, 1, &flags).await;
    let loader = TestApp::on_migrated(&far, 1, &flags).await;
    for sku in [SKU, NEIGHBOUR] {
        create(&seller, sku, 10).await;
        buy(&seller, sku, &new_key()).await.ok();
        buy(&loader, sku, &new_key()).await.ok();
        assert_sold(&applied_audit(&seller, sku).await, 2);
    }
    let levels: Vec<String> = command(redis.url(), &["KEYS", "stock:*:a:main"]).await;
    command::<()>(redis.url(), &["DEL", &levels[0]]).await;
    // Redis starts with this file after it is killed.
    command::<()>(redis.url(), &["SAVE"]).await;

    let hold = proxy.hold_answer(b"main");
    let late = tokio::spawn(send(order(&loader, "redis-lua", SKU)));
    hold.held().await;
    for _ in 0..3 {
        buy(&seller, SKU, &new_key()).await.ok();
    }
    assert_sold(&applied_audit(&seller, SKU).await, 5);
    redis.kill9();
    redis.restart().await;
    for app in [&seller, &loader] {
        until("stock in Redis is sold again", async || {
            buy(app, NEIGHBOUR, &new_key()).await.status == 200
        })
        .await;
    }
    assert!(!late.is_finished(), "the answer of SQL is held");
    hold.let_go();

    late.await.expect("no panic").ok();
    until("the SKU is sold out", async || {
        let answer = buy(&seller, SKU, &new_key()).await;
        answer.status_and_code() == (409, "insufficient-stock")
    })
    .await;
    assert_sold(&applied_audit(&seller, SKU).await, 10);
    for app in [seller, loader] {
        app.stop().await;
    }
}
