//! SQL is away: sales go on until the journal is full, and go on again by themselves afterwards.

use rstest::rstest;
use serde_json::{Value, json};

use super::requests::{create, settled};
use crate::faults::{SOON, send, until};
use crate::support::app::TestApp;
use crate::support::proxy::{Mode, Proxy};
use crate::support::services::{Backend, PrivateServer, TestRedis, fresh_database, fresh_redis};

const SKU: &str = "hot";
const STOCK: i64 = 1_000;
/// The most movements that may wait.
const LIMIT: u64 = 30;

/// How many movements wait, as a replica's metrics have it.
async fn lag(app: &TestApp) -> Option<u64> {
    let metrics = app.get("/metrics").await.text().await.expect("text");
    let line = metrics
        .lines()
        .find_map(|line| line.strip_prefix("journal_waiting_movements "));
    line.map(|entries| entries.parse().expect("a number"))
}

/// How many entries stand in the journals. The audit has none pending a moment earlier: an entry is
/// in SQL before it departs.
async fn entries(redis: &TestRedis) -> u64 {
    let client = redis::Client::open(&*redis.url).expect("its URL is one");
    let connection = client.get_multiplexed_async_connection().await;
    let mut connection = connection.expect("it lets the test in");
    let mut keys = redis::cmd("KEYS");
    let journals = keys.arg("journal:*}").query_async(&mut connection).await;
    let journals: Vec<String> = journals.expect("it answers");
    let mut lengths = redis::pipe();
    for journal in journals {
        lengths.cmd("XLEN").arg(journal);
    }
    let lengths: Vec<u64> = lengths
        .query_async(&mut connection)
        .await
        .expect("it answers");
    lengths.into_iter().sum()
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sales_go_on_without_sql_until_the_journal_is_full(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
    #[values("redis-lua", "redis-watch")] strategy: &str,
) {
    let (database, redis) = (fresh_database(backend).await, fresh_redis().await);
    let (proxy, url) = Proxy::before(&database.url).await;
    let limit = LIMIT.to_string();
    let flags = ["--redis-url", &redis.url, "--journal-limit", &limit];
    let app = TestApp::on(&url, 2, &flags).await;
    create(&app, SKU, STOCK).await;
    let order = |replica| app.deduct(replica, strategy, &json!({"sku": SKU}));
    // Each replica has seen the SKU.
    for replica in 0..2 {
        let sold = send(order(replica)).await.expect("it answers");
        assert_eq!(sold.status, 200, "{sold:?}");
    }
    until("the journals are empty", SOON, || async {
        entries(&redis).await == 0
    })
    .await;

    proxy.set(Mode::Refuse).await;
    let mut replicas = (0..2).cycle();
    let mut sell = async || {
        send(order(replicas.next().expect("round")))
            .await
            .expect("it answers")
    };
    for _ in 0..LIMIT {
        let sold = sell().await;
        assert_eq!(sold.status, 200, "{sold:?}");
    }
    for _ in 0..6 {
        let refused = sell().await;
        assert_eq!(
            (refused.status, &*refused.code),
            (503, "overloaded"),
            "{refused:?}"
        );
        assert!(refused.retry_after, "{refused:?}");
    }
    until("the metrics show the lag", SOON, || async {
        lag(&app).await == Some(LIMIT)
    })
    .await;

    proxy.set(Mode::Pass).await;
    until("nothing waits any more", SOON, || async {
        lag(&app).await == Some(0)
    })
    .await;
    for _ in 0..4 {
        let sold = sell().await;
        assert_eq!(sold.status, 200, "{sold:?}");
    }
    let audit: Value = settled(&app, SKU).await;
    assert_eq!(audit["sold"], LIMIT + 6, "{audit}");
    assert_eq!(audit["consistent"], true, "{audit}");
    app.stop().await;
}

/// A figure that was true once must not be taken for one that is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lag_is_not_told_while_redis_is_away() {
    let redis = PrivateServer::redis(&[]).await;
    let app = TestApp::with_flags(Backend::Sqlite, 1, &["--redis-url", redis.url()]).await;
    let told = async |what: Option<u64>| {
        until("the metrics follow", SOON, || async {
            lag(&app).await == what
        })
        .await;
    };
    told(Some(0)).await;
    redis.kill9();
    told(None).await;
    redis.restart().await;
    told(Some(0)).await;
    app.stop().await;
}
