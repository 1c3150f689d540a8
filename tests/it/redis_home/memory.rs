//! The memory of Redis: it is shown, and changes are refused before Redis itself must refuse them.

use std::ops::Range;
use std::sync::Arc;

use futures_util::future::join_all;
use serde_json::json;
use stocklock::ports::{DeductionStore as _, RedisMethod};

use super::bound::{buy, is_answered, replica, sold};
use super::{applied_audit, command, create, gauge, line, order};
use crate::faults::{KEY, send, until};
use crate::store_contract::fixture::{Fixture, deduction_with_key, redis_options};
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
    gauge(app, "redis_memory_used_ratio").await
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

/// What Redis keeps of a sale that SQL has, to answer a retry.
#[tokio::test]
async fn sale_with_a_key_keeps_at_most_200_bytes() {
    const SALES: usize = 4_096;
    let redis = PrivateServer::redis(&[]).await;
    let fixture = Fixture::new(Backend::Sqlite).await;
    let fixture = fixture.with(redis_options(redis.url()));
    fixture.put(SKU, 100_000).await;
    let sell = async |keys: Range<usize>| {
        let sale = |key: usize| {
            let key = format!("{key:036}");
            let sale = deduction_with_key(SKU, 1, &key);
            let store = Arc::clone(&fixture.store);
            async move { store.deduct_in_redis(&sale, RedisMethod::Script).await }
        };
        let sold = join_all(keys.map(sale)).await;
        assert!(sold.iter().all(Result::is_ok));
        fixture.settle().await;
        let info: String = command(redis.url(), &["INFO", "memory"]).await;
        let mut lines = info.lines();
        let used = lines.find_map(|line| line.strip_prefix("used_memory:"));
        used.and_then(|used| used.parse().ok()).expect("a number")
    };
    // Both times, the table of the keys has just been doubled.
    let before: usize = sell(0..SALES + 64).await;
    let after = sell(SALES + 64..2 * SALES + 128).await;
    let kept = (after - before) / (SALES + 64);
    println!("figure: {kept} bytes per sale with a key");
    assert!(kept <= 200, "{kept}");
}
