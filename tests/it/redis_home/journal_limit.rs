//! Without SQL, sales continue until the journal is full. They resume by themselves afterwards.

use std::fmt::Debug;
use std::ops::RangeInclusive;
use std::str::FromStr;

use rstest::rstest;
use serde_json::json;

use super::{applied_audit, assert_sold, create, journal_lengths};
use crate::faults::{Answer, send, until};
use crate::support::app::TestApp;
use crate::support::proxy::{Mode, Proxy};
use crate::support::services::{Backend, PrivateServer, fresh_database, fresh_redis};

const SKU: &str = "hot";
const STOCK: i64 = 1_000;
/// The most movements that may wait.
const LIMIT: usize = 30;

/// The value of a gauge of the first replica; `None` if it is not shown.
async fn gauge<N: FromStr<Err: Debug>>(app: &TestApp, name: &str) -> Option<N> {
    let metrics = app.get("/metrics").await.text().await.expect("text");
    let mut lines = metrics.lines().filter_map(|line| line.split_once(' '));
    let (_, value) = lines.find(|(found, _)| *found == name)?;
    Some(value.parse().expect("a number"))
}

/// Returns when the metric shows this number of waiting movements, or none is shown.
async fn shows_waiting(app: &TestApp, expected: Option<usize>) {
    until("the metric follows", || async {
        gauge(app, "journal_waiting_movements").await == expected
    })
    .await;
}

/// Returns when the metric shows that the oldest movement waits for a time in this range, in seconds.
async fn oldest_waits(app: &TestApp, range: RangeInclusive<f64>) {
    until("the metric follows", || async {
        let waits: Option<f64> = gauge(app, "journal_oldest_movement_seconds").await;
        waits.is_some_and(|seconds| range.contains(&seconds))
    })
    .await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sales_without_sql_continue_until_the_journal_is_full(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
    #[values("redis-lua", "redis-watch")] strategy: &str,
) {
    let (database, redis) = (fresh_database(backend).await, fresh_redis().await);
    let (proxy, url) = Proxy::before(&database.url).await;
    let limit = LIMIT.to_string();
    let flags = ["--redis-url", &redis.url, "--journal-limit", &limit];
    let app = TestApp::on(&url, 2, &flags).await;
    create(&app, SKU, STOCK).await;
    let deduct = |number| send(app.deduct(number, strategy, &json!({"sku": SKU})));
    let sell = async |count| {
        for number in 0..count {
            let sold = deduct(number).await;
            assert_eq!(sold.status, 200, "{sold:?}");
        }
    };
    // From now on both replicas know the home of the SKU.
    sell(2).await;
    until("the journals are empty", async || {
        journal_lengths(&redis.url).await.is_empty()
    })
    .await;

    proxy.set(Mode::Refuse).await;
    sell(LIMIT).await;
    for number in 0..6 {
        let refused = deduct(number).await;
        let expected = (503, "overloaded");
        assert_eq!(refused.status_and_code(), expected, "{refused:?}");
        assert!(refused.retry_after, "{refused:?}");
    }
    shows_waiting(&app, Some(LIMIT)).await;
    oldest_waits(&app, 1.0..=60.0).await;

    proxy.set(Mode::Pass).await;
    shows_waiting(&app, Some(0)).await;
    oldest_waits(&app, 0.0..=0.0).await;
    sell(4).await;
    assert_sold(&applied_audit(&app, SKU).await, 36);
    app.stop().await;
}

/// The limit in bytes is for all journals together.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sales_without_sql_continue_until_the_journals_are_large(
    #[values("redis-lua", "redis-watch")] strategy: &str,
) {
    const BYTES: u64 = 40_000;
    let (database, redis) = (fresh_database(Backend::Postgres).await, fresh_redis().await);
    let (proxy, url) = Proxy::before(&database.url).await;
    let bytes = BYTES.to_string();
    let flags = ["--redis-url", &redis.url, "--journal-limit-bytes", &bytes];
    let app = TestApp::on(&url, 1, &flags).await;
    let skus = ["a", "b", "c"];
    for sku in skus {
        create(&app, sku, STOCK).await;
    }
    let sell = async || {
        let sell = |sku| send(app.deduct(0, strategy, &json!({"sku": sku})));
        futures_util::future::join_all(skus.map(sell)).await
    };
    for sold in sell().await {
        assert_eq!(sold.status, 200, "{sold:?}");
    }

    proxy.set(Mode::Refuse).await;
    let mut sold = 3;
    until("the journals are full", async || {
        let answers = sell().await;
        sold += answers.iter().filter(|answer| answer.status == 200).count();
        let full = |answer: &Answer| {
            answer.status_and_code() == (503, "overloaded")
                && answer.retry_after
                && answer.detail.contains("JOURNAL_LIMIT_BYTES")
        };
        answers.iter().all(full)
    })
    .await;
    until("the metric follows", async || {
        let shown: Option<u64> = gauge(&app, "journal_bytes").await;
        shown.is_some_and(|bytes| bytes >= BYTES)
    })
    .await;

    proxy.set(Mode::Pass).await;
    until("stock is sold again", async || {
        let answers = sell().await;
        let again = answers.iter().filter(|answer| answer.status == 200).count();
        sold += again;
        again == skus.len()
    })
    .await;
    let mut recorded = 0;
    for sku in skus {
        let audit = applied_audit(&app, sku).await;
        assert_eq!(audit["consistent"], true, "{audit}");
        recorded += audit["sold"].as_u64().expect("a number");
    }
    assert_eq!(recorded, sold as u64);
    app.stop().await;
}

/// A stale number would look like a current one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_movements_are_not_shown_while_redis_is_down() {
    let redis = PrivateServer::redis(&[]).await;
    let app = TestApp::with_flags(Backend::Sqlite, 1, &["--redis-url", redis.url()]).await;
    shows_waiting(&app, Some(0)).await;
    redis.kill9();
    shows_waiting(&app, None).await;
    redis.restart().await;
    shows_waiting(&app, Some(0)).await;
    app.stop().await;
}
