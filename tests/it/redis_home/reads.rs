//! What clients read: it never writes to Redis, and does not need it for stock in SQL.

use reqwest::Method;
use serde_json::{Value, json};
use stocklock::ports::RedisMethod;

use super::bound::{PERSISTENT, replica, sold};
use super::{applied_audit, assert_exact, command, create, deduct, fixture, lose_level, run, sell};
use crate::faults::{send, until};
use crate::store_contract::fixture::{assert_deducted, name};
use crate::support::app::{Answer, TestApp};
use crate::support::services::{Backend, PrivateServer, fresh_database, fresh_redis};

const SKU: &str = "a";

async fn get(app: &TestApp, path: &str) -> Answer {
    send(app.request(0, Method::GET, path)).await
}

/// Goal: a crawler does not copy the catalogue into Redis.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reading_loads_no_level() {
    let (database, redis) = (fresh_database(Backend::Sqlite).await, fresh_redis().await);
    let app = replica(&database.url, &redis.url, &[]).await;
    for sku in [SKU, "b", "c"] {
        create(&app, sku, 10).await;
    }
    sold(&app).await;
    applied_audit(&app, SKU).await;
    command::<()>(&redis.url, &["FLUSHDB"]).await;
    for path in [
        "/stock",
        "/stock/a",
        "/stock/b?warehouse=main",
        "/stock/c/audit",
        "/stock/a/movements",
        "/audit",
    ] {
        let read = app.request(0, Method::GET, path).send().await;
        let read = read.expect("the replica answers");
        assert_eq!(read.status(), 200, "{path}");
        read.text().await.expect("a body");
    }
    let found = get(&app, "/stock/a").await;
    let level = &found.ok()["warehouses"][0];
    assert_eq!(level["on_hand"], 9, "{level}");
    assert!(level.get("stale").is_none(), "{level}");
    let audit = applied_audit(&app, SKU).await;
    assert_eq!(audit["consistent"], true, "{audit}");
    for pattern in ["stock:*", "tally:*"] {
        let keys: Vec<String> = command(&redis.url, &["KEYS", pattern]).await;
        assert!(keys.is_empty(), "{keys:?}");
    }
    sold(&app).await;
    assert_eq!(applied_audit(&app, SKU).await["on_hand"], 8);
    app.stop().await;
}

/// SQL does not have the last sales, and Redis has them only in the journal.
#[tokio::test]
async fn audit_of_a_lost_level_includes_the_journal() {
    let fixture = fixture(Backend::Sqlite).await;
    fixture.put(SKU, 10).await;
    sell(&fixture, SKU, 2).await;
    fixture.settle().await;
    sell(&fixture, SKU, 3).await;
    lose_level(&fixture, SKU).await;
    let audits = fixture.store.audit(&name(SKU)).await.unwrap();
    let found = (audits[0].sold, audits[0].on_hand, audits[0].pending);
    assert_eq!(found, (5, 5, 3), "{audits:?}");
    assert_eq!(audits[0].drift(), 0, "{audits:?}");
    let keys: Vec<String> = run(&fixture, &["KEYS", "stock:*"]).await;
    assert!(keys.is_empty(), "{keys:?}");
    assert_deducted(&deduct(&fixture, SKU, RedisMethod::Watch).await);
    assert_exact(&fixture, SKU, 6, 4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_of_levels_does_not_need_redis() {
    let database = fresh_database(Backend::Sqlite).await;
    let redis = PrivateServer::redis(&PERSISTENT).await;
    let app = replica(&database.url, redis.url(), &[]).await;
    create(&app, SKU, 10).await;
    app.set_level("b", 5).await;
    sold(&app).await;
    applied_audit(&app, SKU).await;
    let levels = async || {
        let page = get(&app, "/stock").await;
        let levels = page.ok()["levels"].as_array().expect("levels").clone();
        let shown = |level: Value| json!([level["sku"], level["on_hand"], level["stale"]]);
        levels.into_iter().map(shown).collect::<Vec<_>>()
    };
    let all = [json!(["a", 9, null]), json!(["b", 5, null])];
    assert_eq!(levels().await, all);
    redis.kill9();
    assert_eq!(levels().await, [json!(["a", 9, true]), all[1].clone()]);
    let refused = get(&app, "/stock/a").await;
    assert_eq!(refused.status_and_code(), (503, "unavailable"));
    redis.restart().await;
    until("Redis is read again", async || levels().await == all).await;
    app.stop().await;
}
