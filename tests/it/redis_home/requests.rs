//! What clients see of stock that lives in Redis.

use std::collections::BTreeSet;
use std::time::Duration;

use rstest::rstest;
use serde_json::json;
use tokio::task::JoinSet;

use super::{applied_audit, assert_sold, create, order};
use crate::faults::{KEY, send, until};
use crate::support::app::TestApp;
use crate::support::proxy::{Mode, Proxy};
use crate::support::services::Backend::Sqlite;
use crate::support::services::fresh_redis;

const STRATEGIES: [&str; 2] = ["redis-lua", "redis-watch"];

#[tokio::test]
async fn sale_has_durability_redis_and_reaches_the_ledger() {
    let redis = fresh_redis().await;
    let app = TestApp::with_flags(Sqlite, 2, &["--redis-url", &redis.url]).await;
    create(&app, "a", 10).await;
    for (replica, strategy) in STRATEGIES.into_iter().enumerate() {
        let sold = send(app.deduct(replica, strategy, &json!({"sku": "a"}))).await;
        let remaining = [9, 8][replica];
        assert_eq!(sold.ok()["durability"], "redis", "{sold:?}");
        assert_eq!(sold.body["remaining"], remaining, "{sold:?}");
    }
    assert_sold(&applied_audit(&app, "a").await, 2);
    let page = app.get_json("/stock/a/movements").await;
    assert_eq!(page["movements"][0]["durability"], "redis", "{page}");
    let wrong = send(order(&app, "single-sql", "a")).await;
    assert_eq!(wrong.status_and_code(), (409, "wrong-home"));
    assert_eq!(wrong.body["home"], "redis");
    until("the metric shows that no movement waits", || async {
        let metrics = app.get("/metrics").await.text().await.expect("text");
        metrics.contains("journal_waiting_movements 0")
    })
    .await;
    app.stop().await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_100_requests_with_one_key_one_sells(
    #[values("redis-lua", "redis-watch")] strategy: &str,
) {
    let redis = fresh_redis().await;
    let app = TestApp::with_flags(Sqlite, 2, &["--redis-url", &redis.url]).await;
    create(&app, "a", 200).await;
    let request = |replica, quantity: u32| {
        let body = json!({"sku": "a", "quantity": quantity});
        app.deduct(replica, strategy, &body).header(KEY, "k")
    };
    let requests: JoinSet<_> = (0..100).map(|replica| send(request(replica, 2))).collect();
    let answers = requests.join_all().await;
    let all_sell = answers.iter().all(|answer| answer.status == 200);
    assert!(all_sell, "{answers:?}");
    let first = answers.iter().filter(|answer| !answer.replayed).count();
    let ids: BTreeSet<_> = answers.iter().map(|answer| &answer.id).collect();
    assert_eq!((first, ids.len()), (1, 1));
    assert_eq!(send(request(0, 3)).await.status, 422);
    assert_sold(&applied_audit(&app, "a").await, 2);
    app.stop().await;
}

#[tokio::test]
async fn redis_stock_is_refused_by_a_replica_without_redis() {
    let redis = fresh_redis().await;
    let app = TestApp::with_flags(Sqlite, 1, &["--redis-url", &redis.url]).await;
    create(&app, "a", 10).await;
    let without = TestApp::on(&app.database_url, 1, &[]).await;
    for (strategy, code) in [
        ("no-lock", "home-unavailable"),
        ("single-sql", "wrong-home"),
    ] {
        let refused = send(order(&without, strategy, "a")).await;
        assert_eq!(refused.code, code, "{refused:?}");
    }
    without.stop().await;
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_few_watch_connections_are_refused_with_their_setting() {
    let redis = fresh_redis().await;
    let (proxy, url) = Proxy::before(&redis.url).await;
    let flags = [
        "--redis-url",
        &url,
        "--redis-pool-size=1",
        "--wait-limit-ms=400",
    ];
    let app = TestApp::with_flags(Sqlite, 1, &flags).await;
    create(&app, "a", 10).await;
    let sale = || send(order(&app, "redis-watch", "a"));
    assert_eq!(sale().await.status, 200);
    // One answer comes within the wait limit; two of them take longer than a buyer may wait for the
    // connection.
    proxy.set(Mode::Delay(Duration::from_millis(150))).await;
    let sales: JoinSet<_> = (0..5).map(|_| sale()).collect();
    let answers = sales.join_all().await;
    let refused = answers.iter().find(|answer| answer.code == "overloaded");
    let refused = refused.unwrap_or_else(|| panic!("{answers:?}"));
    assert_eq!(refused.status, 503, "{refused:?}");
    assert!(refused.detail.contains("REDIS_POOL_SIZE"), "{refused:?}");
    app.stop().await;
}
