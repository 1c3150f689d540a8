//! The memory of Redis: it is shown, and changes are refused before Redis itself must refuse them.

use reqwest::Method;
use serde_json::json;

use super::bound::{buy, is_answered, replica, sold};
use super::{applied_audit, command, create, line, order};
use crate::faults::{KEY, send, until};
use crate::support::app::TestApp;
use crate::support::services::{Backend, PrivateServer, fresh_database};

const SKU: &str = "a";

/// Takes this many of the 64 MiB.
async fn fill(redis: &PrivateServer, mebibytes: u32) {
    for number in 0..mebibytes {
        line(redis.url(), &format!("SETRANGE filler-{number} 1000000 x")).await;
    }
}

/// The gauge, if it is there.
async fn used(app: &TestApp) -> Option<f64> {
    let metrics = app.request(0, Method::GET, "/metrics").send().await;
    let metrics = metrics.expect("the replica answers").text().await;
    let metrics = metrics.expect("a text");
    let mut lines = metrics.lines();
    let value = lines.find_map(|line| line.strip_prefix("redis_memory_used_ratio "))?;
    Some(value.parse().expect("a number"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_are_refused_before_the_memory_is_full() {
    let database = fresh_database(Backend::Sqlite).await;
    let redis = PrivateServer::redis(&["--maxmemory", "64mb"]).await;
    let app = replica(&database.url, redis.url(), &[]).await;
    create(&app, SKU, 100).await;
    let keyed = || order(&app, "redis-lua", SKU).header(KEY, "first");
    send(keyed()).await.ok();
    until("little memory is used", async || {
        used(&app).await.is_some_and(|used| used < 0.5)
    })
    .await;

    fill(&redis, 51).await;
    until("much memory is used", async || {
        used(&app)
            .await
            .is_some_and(|used| (0.75..0.9).contains(&used))
    })
    .await;
    sold(&app).await;

    fill(&redis, 59).await;
    let refused = is_answered(&app, 503, "maxmemory").await;
    assert_eq!(refused.code, "overloaded");
    for strategy in ["redis-lua", "redis-watch", "no-lock", "redis-lock"] {
        let refused = send(order(&app, strategy, SKU)).await;
        assert_eq!(refused.status_and_code(), (503, "overloaded"), "{strategy}");
        assert!(refused.retry_after && refused.detail.contains("maxmemory"));
    }
    let adjust = app.adjust(0, SKU, &json!({"delta": 1, "reason": "restock"}));
    let refused = send(adjust).await;
    assert_eq!(refused.status_and_code(), (503, "overloaded"));
    assert!(
        used(&app)
            .await
            .is_some_and(|used| (0.9..1.0).contains(&used))
    );
    // Redis still takes the writes of others, and the first sale is still known.
    line(redis.url(), "SET foreign 1").await;
    let before = applied_audit(&app, SKU).await;
    send(keyed()).await.ok();
    assert_eq!(applied_audit(&app, SKU).await, before);
    assert_eq!(before["consistent"], true, "{before}");

    for number in 0..59 {
        command::<()>(redis.url(), &["DEL", &format!("filler-{number}")]).await;
    }
    is_answered(&app, 200, "").await;
    command::<()>(redis.url(), &["CONFIG", "SET", "maxmemory", "0"]).await;
    until("there is no limit", async || used(&app).await.is_none()).await;
    assert_eq!(buy(&app).await.status, 200);
    app.stop().await;
}
