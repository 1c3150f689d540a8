//! Many requests that miss a level cost a replica one read of the database: `GET /stock/{sku}?cached=true`,
//! whose answer is not older than promised, and deductions that find no counter in Redis.

use reqwest::header::IF_NONE_MATCH;
use reqwest::{Method, RequestBuilder};
use serde_json::json;
use tokio::task::JoinSet;

use crate::faults::until;
use crate::support::app::{TestApp, send};
use crate::support::rival::{Raw, Rival};
use crate::support::services::{Backend, fresh_database, fresh_redis};

const READERS: usize = 400;

/// Long limits, so that nothing expires by itself while a test runs.
const LONG: [&str; 6] = [
    "--cached-level-max-age-ms",
    "600000",
    "--wait-limit-ms",
    "60000",
    "--request-deadline-ms",
    "120000",
];

/// Lets reads of levels wait in the database.
async fn lock_stock(url: &str) -> Rival {
    let lock = "LOCK TABLE stock IN ACCESS EXCLUSIVE MODE";
    Rival::holding(Backend::Postgres, url, lock).await
}

async fn until_read(app: &TestApp, reads: &str) {
    let waiting = "SELECT count(*)::text FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'
            AND query LIKE '%FROM stock WHERE sku = $1 %'";
    let mut watch = Raw::connect(Backend::Postgres, &app.database_url).await;
    let are_waiting = async || watch.text(waiting).await.as_deref() == Some(reads);
    until("the database is read", are_waiting).await;
}

fn cached(app: &TestApp, replica: usize, sku: &str) -> RequestBuilder {
    app.request(replica, Method::GET, &format!("/stock/{sku}?cached=true"))
}

/// The units on hand of the SKU's only warehouse, from the cache.
async fn units(app: &TestApp, replica: usize, sku: &str) -> i64 {
    let answer = send(cached(app, replica, sku)).await;
    let units = &answer.ok()["warehouses"][0]["on_hand"];
    units.as_i64().expect("a number")
}

/// The sum over both replicas of the counters that start with `series`.
async fn counted(app: &TestApp, series: &str) -> u64 {
    let mut sum = 0;
    for replica in 0..app.targets().len() {
        sum += app.counted(replica, series).await;
    }
    sum
}

async fn loads(app: &TestApp) -> u64 {
    counted(app, "stock_cache_loads_total").await
}

async fn misses(app: &TestApp) -> u64 {
    counted(app, "stock_cache_reads_total{result=\"miss\"}").await
}

/// Hundreds of requests at two replicas miss a level. Each replica reads the database once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missed_level_costs_each_replica_one_read() {
    let database = fresh_database(Backend::Postgres).await;
    let app = TestApp::on(&database.url, 2, &LONG).await;
    app.set_level("hot", 10).await;
    for replica in [0, 1] {
        assert_eq!(units(&app, replica, "hot").await, 10);
        // Ends the cached value of the replica.
        let loss = app.adjust(replica, "hot", &json!({"delta": -1, "reason": "loss"}));
        send(loss).await.ok();
        app.set_level("hot", 10).await;
    }
    assert_eq!((misses(&app).await, loads(&app).await), (2, 2));

    let locked = lock_stock(&database.url).await;
    let mut readers = JoinSet::new();
    for number in 0..READERS {
        readers.spawn(send(cached(&app, number, "hot")));
    }
    let reads = 2 + READERS as u64;
    until("all requests wait", async || {
        counted(&app, "stock_cache_reads_total").await == reads
    })
    .await;
    until_read(&app, "2").await;
    locked.let_go().await;
    for answer in readers.join_all().await {
        assert_eq!(answer.ok()["warehouses"][0]["on_hand"], 10, "{answer:?}");
    }
    assert_eq!(loads(&app).await, 2 + 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_counter_costs_a_replica_one_read() {
    const BUYERS: u64 = 40;
    let (database, redis) = (fresh_database(Backend::Postgres).await, fresh_redis().await);
    let flags = [&LONG[..], &["--redis-url", &redis.url]].concat();
    let app = TestApp::on(&database.url, 1, &flags).await;
    app.set_level("hot", 100).await;
    let locked = lock_stock(&database.url).await;
    let mut buyers = JoinSet::new();
    for _ in 0..BUYERS {
        buyers.spawn(send(app.deduct(0, "redis-lua", &json!({"sku": "hot"}))));
    }
    until("all deductions wait", async || {
        counted(&app, "counter_asks_total{answer=\"loaded\"}").await == BUYERS
    })
    .await;
    until_read(&app, "1").await;
    locked.let_go().await;
    for answer in buyers.join_all().await {
        answer.ok();
    }
    assert_eq!(app.audit("hot").await["sold"], BUYERS);
}

/// Adjustments, PUT and returns end the cached value of their replica at once. A sale does not.
#[tokio::test]
async fn change_by_an_operator_ends_the_cached_value() {
    let app = TestApp::with_flags(Backend::Sqlite, 1, &LONG).await;
    call!(app, GET "/stock/a?cached=true" => 404 "unknown-sku");
    app.set_level("a", 10).await;
    assert_eq!(units(&app, 0, "a").await, 10);
    call!(app, POST "/stock/a/adjust", {"delta": 5, "reason": "delivery"} => 200);
    assert_eq!(units(&app, 0, "a").await, 15);
    call!(app, PUT "/stock/a", if_match "*", {"on_hand": 7} => 200);
    assert_eq!(units(&app, 0, "a").await, 7);

    let sale = call!(app, POST "/stock/deduct?strategy=single-sql", {"sku": "a", "quantity": 2}
        => 200, {"remaining": 5})
    .id;
    assert_eq!(units(&app, 0, "a").await, 7);
    let back = json!({"quantity": 1, "reason": "broken", "restock": true});
    call!(app, POST "/operations/{sale}/reverse", (back) => 200);
    assert_eq!(units(&app, 0, "a").await, 6);
}

#[tokio::test]
async fn cached_level_expires() {
    let age = ["--cached-level-max-age-ms", "100"];
    let app = TestApp::with_flags(Backend::Sqlite, 1, &age).await;
    app.set_level("a", 10).await;
    units(&app, 0, "a").await;
    let sale = json!({"sku": "a"});
    send(app.deduct(0, "single-sql", &sale)).await.ok();
    until("the answer shows the sale", async || {
        units(&app, 0, "a").await == 9
    })
    .await;
}

#[tokio::test]
async fn cached_answer_has_filter_and_etag() {
    let app = TestApp::with_flags(Backend::Sqlite, 1, &LONG).await;
    app.set_level("a", 10).await;
    call!(app, PUT "/stock/a", {"on_hand": 5, "warehouse": "north"} => 201);
    for path in ["/stock/a", "/stock/a?warehouse=north"] {
        let separator = if path.contains('?') { '&' } else { '?' };
        let request = || app.request(0, Method::GET, &format!("{path}{separator}cached=true"));
        let (plain, cached) = (app.get(path).await, send(request()).await);
        assert_eq!(cached.ok(), plain.ok());
        assert_eq!(cached.header("etag"), plain.header("etag"));
        let same = request().header(IF_NONE_MATCH, plain.header("etag"));
        assert_eq!(send(same).await.status, 304);
    }
    assert_eq!((misses(&app).await, loads(&app).await), (1, 1));
    call!(app, GET "/stock/a?cached=1" => 422 "invalid-request");
}
