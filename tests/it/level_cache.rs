//! `GET /stock/{sku}?cached=true`: an expired level costs one read of the database, also if
//! hundreds of requests miss it. An answer is not older than promised, and a failed Redis is no error.

use std::time::Duration;

use reqwest::header::{IF_MATCH, IF_NONE_MATCH};
use reqwest::{Method, RequestBuilder};
use rstest::rstest;
use serde_json::json;
use stocklock::stock::Sku;
use stocklock::store::{Cached, Miss, SharedLevels, Stores, migrate};
use stocklock_locks::LockManager;
use stocklock_locks::redis::RedisBackend;
use stocklock_testkit::assert_matches;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::faults::until;
use crate::redis_home::command;
use crate::store_contract::fixture::{Raw, name, options, redis_options};
use crate::support::app::{TestApp, send};
use crate::support::proxy::{Mode, Proxy};
use crate::support::services::{Backend, PrivateServer, TestDatabase, fresh_database, fresh_redis};

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

/// The reads of levels that wait for a lock in the database.
const WAITING_READS: &str = "SELECT count(*)::text FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock'
        AND query LIKE '%FROM stock WHERE sku = $1 ORDER BY warehouse'";

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
        let metrics = app.request(replica, Method::GET, "/metrics").send().await;
        let text = metrics.expect("an answer").text().await.expect("a text");
        let value = |line: &str| {
            let (_, value) = line.strip_prefix(series)?.rsplit_once(' ')?;
            value.parse::<u64>().ok()
        };
        sum += text.lines().filter_map(value).sum::<u64>();
    }
    sum
}

async fn loads(app: &TestApp) -> u64 {
    counted(app, "stock_cache_loads_total").await
}

async fn misses(app: &TestApp) -> u64 {
    counted(app, "stock_cache_reads_total{result=\"miss\"}").await
}

/// Ends the life of all cached levels early.
async fn expire(redis: &str) {
    let cached = async || command::<Vec<String>>(redis, &["KEYS", "cached:*"]).await;
    for key in cached().await {
        command::<()>(redis, &["PEXPIRE", &key, "1"]).await;
    }
    until("the levels expire", async || cached().await.is_empty()).await;
}

/// Hundreds of requests at two replicas miss an expired level. The database sees one read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_level_costs_one_read_of_the_database() {
    let (database, redis) = (fresh_database(Backend::Postgres).await, fresh_redis().await);
    let flags = [&LONG[..], &["--redis-url", &redis.url]].concat();
    let app = TestApp::on(&database.url, 2, &flags).await;
    app.set_level("hot", 10).await;
    assert_eq!(units(&app, 0, "hot").await, 10);
    assert_eq!(units(&app, 1, "hot").await, 10);
    assert_eq!((misses(&app).await, loads(&app).await), (1, 1));
    let sale = json!({"sku": "hot"});
    send(app.deduct(0, "single-sql", &sale)).await.ok();
    expire(&redis.url).await;

    // No read of the database ends before all requests have missed.
    let mut locked = Raw::connect(Backend::Postgres, &database.url).await;
    let lock = locked.run("BEGIN; LOCK TABLE stock IN ACCESS EXCLUSIVE MODE");
    lock.await.expect("the table can be locked");
    let mut readers = JoinSet::new();
    for number in 0..READERS {
        readers.spawn(send(cached(&app, number, "hot")));
    }
    let reads = 2 + READERS as u64;
    until("all requests wait", async || {
        counted(&app, "stock_cache_reads_total").await == reads
    })
    .await;
    assert_eq!(misses(&app).await, 1 + 2);
    let mut watch = Raw::connect(Backend::Postgres, &database.url).await;
    until("a read of the database waits", async || {
        watch.text(WAITING_READS).await.as_deref() != Some("0")
    })
    .await;
    assert_eq!(watch.text(WAITING_READS).await.as_deref(), Some("1"));
    locked.run("COMMIT").await.expect("it is committed");
    for answer in readers.join_all().await {
        assert_eq!(answer.ok()["warehouses"][0]["on_hand"], 9, "{answer:?}");
    }
    assert_eq!(loads(&app).await, 1 + 1);
    app.stop().await;
}

/// A change at another replica refuses the value that a replica has read. Its requests get a later one.
#[tokio::test]
async fn level_that_changes_during_a_read_is_read_again() {
    let (database, redis) = (fresh_database(Backend::Postgres).await, fresh_redis().await);
    let flags = [&LONG[..], &["--redis-url", &redis.url]].concat();
    let app = TestApp::on(&database.url, 1, &flags).await;
    app.set_level("a", 10).await;
    assert_eq!(units(&app, 0, "a").await, 10);
    let keys: Vec<String> = command(&redis.url, &["KEYS", "cached:*"]).await;
    command::<()>(&redis.url, &["SET", &keys[0], "changed 1"]).await;

    let mut locked = Raw::connect(Backend::Postgres, &database.url).await;
    let lock = locked.run("BEGIN; LOCK TABLE stock IN ACCESS EXCLUSIVE MODE");
    lock.await.expect("the table can be locked");
    let reader = tokio::spawn(send(cached(&app, 0, "a")));
    let mut watch = Raw::connect(Backend::Postgres, &database.url).await;
    until("a read of the database waits", async || {
        watch.text(WAITING_READS).await.as_deref() == Some("1")
    })
    .await;
    command::<()>(&redis.url, &["SET", &keys[0], "changed 2"]).await;
    locked.run("COMMIT").await.expect("it is committed");
    let answer = reader.await.expect("no panic");
    assert_eq!(answer.ok()["warehouses"][0]["on_hand"], 10);
    assert_eq!(loads(&app).await, 1 + 2);
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_redis_each_replica_reads_once() {
    let app = TestApp::with_flags(Backend::Sqlite, 2, &LONG).await;
    app.set_level("hot", 10).await;
    let mut readers = JoinSet::new();
    for number in 0..READERS {
        readers.spawn(send(cached(&app, number, "hot")));
    }
    for answer in readers.join_all().await {
        answer.ok();
    }
    assert_eq!((misses(&app).await, loads(&app).await), (2, 2));
    assert_eq!(
        counted(&app, "stock_cache_reads_total").await,
        READERS as u64
    );
    app.stop().await;
}

/// Adjustments, PUT and returns end the cached value at once, with Redis at every replica. A sale does
/// not.
#[rstest]
#[tokio::test]
async fn change_by_an_operator_ends_the_cached_value(#[values(false, true)] with_redis: bool) {
    let (database, redis) = (fresh_database(Backend::Sqlite).await, fresh_redis().await);
    let shared = ["--redis-url", &redis.url];
    let flags = [&LONG[..], if with_redis { &shared } else { &[] }].concat();
    let app = TestApp::on(&database.url, 2, &flags).await;
    let reader = usize::from(with_redis);
    let missing = send(cached(&app, reader, "a")).await;
    assert_eq!(missing.status_and_code(), (404, "unknown-sku"));
    app.set_level("a", 10).await;
    assert_eq!(units(&app, reader, "a").await, 10);
    let delivery = json!({"delta": 5, "reason": "delivery"});
    send(app.adjust(0, "a", &delivery)).await.ok();
    assert_eq!(units(&app, reader, "a").await, 15);
    let put = app.put(0, "a", &json!({"on_hand": 7}));
    send(put.header(IF_MATCH, "*")).await.ok();
    assert_eq!(units(&app, reader, "a").await, 7);

    let order = json!({"sku": "a", "quantity": 2});
    let sale = send(app.deduct(0, "single-sql", &order)).await;
    assert_eq!(sale.ok()["remaining"], 5);
    assert_eq!(units(&app, reader, "a").await, 7);
    let reverse = format!("/operations/{}/reverse", sale.id);
    let back = json!({"quantity": 1, "reason": "broken", "restock": true});
    send(app.request(0, Method::POST, &reverse).json(&back))
        .await
        .ok();
    assert_eq!(units(&app, reader, "a").await, 6);
    app.stop().await;
}

#[rstest]
#[tokio::test]
async fn cached_level_expires(#[values(false, true)] with_redis: bool) {
    let (database, redis) = (fresh_database(Backend::Sqlite).await, fresh_redis().await);
    let age = ["--cached-level-max-age-ms", "100"];
    let shared = ["--redis-url", &redis.url];
    let flags = [&age[..], if with_redis { &shared } else { &[] }].concat();
    let app = TestApp::on(&database.url, 1, &flags).await;
    app.set_level("a", 10).await;
    units(&app, 0, "a").await;
    let sale = json!({"sku": "a"});
    send(app.deduct(0, "single-sql", &sale)).await.ok();
    until("the answer shows the sale", async || {
        units(&app, 0, "a").await == 9
    })
    .await;
    app.stop().await;
}

#[tokio::test]
async fn cached_answer_has_filter_and_etag() {
    let app = TestApp::with_flags(Backend::Sqlite, 1, &LONG).await;
    app.set_level("a", 10).await;
    let north = json!({"on_hand": 5, "warehouse": "north"});
    assert_eq!(send(app.put(0, "a", &north)).await.status, 201);
    for path in ["/stock/a", "/stock/a?warehouse=north"] {
        let separator = if path.contains('?') { '&' } else { '?' };
        let request = || app.request(0, Method::GET, &format!("{path}{separator}cached=true"));
        let (plain, cached) = (
            send(app.request(0, Method::GET, path)).await,
            send(request()).await,
        );
        assert_eq!(cached.ok(), plain.ok());
        assert_eq!(cached.header("etag"), plain.header("etag"));
        let same = request().header(IF_NONE_MATCH, plain.header("etag"));
        assert_eq!(send(same).await.status, 304);
    }
    assert_eq!((misses(&app).await, loads(&app).await), (1, 1));
    let invalid = send(app.request(0, Method::GET, "/stock/a?cached=1")).await;
    assert_eq!(invalid.status_and_code(), (422, "invalid-request"));
    app.stop().await;
}

/// A failed Redis costs a read of the database, and never an error.
#[rstest]
#[tokio::test]
async fn cached_read_without_answer_of_redis_succeeds(
    #[values(Mode::Refuse, Mode::Blackhole)] mode: Mode,
) {
    let (database, redis) = (fresh_database(Backend::Sqlite).await, fresh_redis().await);
    let (proxy, url) = Proxy::before(&redis.url).await;
    let flags = ["--redis-url", &url, "--cached-level-max-age-ms", "600000"];
    let app = TestApp::on(&database.url, 1, &flags).await;
    app.set_level("a", 10).await;
    assert_eq!(units(&app, 0, "a").await, 10);
    proxy.set(mode).await;
    let sale = json!({"sku": "a"});
    send(app.deduct(0, "single-sql", &sale)).await.ok();
    assert_eq!(units(&app, 0, "a").await, 9);
    let bypassed = "stock_cache_reads_total{result=\"bypassed\"}";
    assert_eq!(counted(&app, bypassed).await, 1);
    let delivery = json!({"delta": 5, "reason": "delivery"});
    send(app.adjust(0, "a", &delivery)).await.ok();
    assert_eq!(units(&app, 0, "a").await, 14);
    proxy.set(Mode::Pass).await;
    app.stop().await;
}

/// A replica that dies while it loads delays the others for the wait limit.
#[tokio::test]
async fn lock_of_a_dead_loader_delays_a_read_and_fails_none() {
    let (database, redis) = (fresh_database(Backend::Sqlite).await, fresh_redis().await);
    let flags = ["--redis-url", &redis.url, "--wait-limit-ms", "4000"];
    let app = TestApp::on(&database.url, 1, &flags).await;
    app.set_level("a", 10).await;
    let backend = RedisBackend::builder(&redis.url).prefix("stocklock:lock");
    let mut held = Vec::new();
    let dead = LockManager::new(backend.build().expect("a valid URL"));
    // One of a fixed set, whatever the SKU.
    for number in 0..1_024 {
        let lock = dead.lock(&format!("level-cache:{number}"));
        let lock = lock.lease(Duration::from_mins(1));
        held.push(lock.acquire().await.expect("it is free"));
    }
    let answer = send(cached(&app, 0, "a")).await;
    assert_eq!(answer.ok()["warehouses"][0]["on_hand"], 10);
    assert!(answer.after >= Duration::from_secs(4), "{answer:?}");
    dead.shutdown().await;
    drop(held);
    app.stop().await;
}

/// The shared cache of a fresh database, and a SKU.
async fn shared(redis: &PrivateServer, max_age: Duration) -> (TestDatabase, SharedLevels, Sku) {
    let database = fresh_database(Backend::Sqlite).await;
    migrate(&database.url).await.expect("it can be migrated");
    let stores = Stores::open(&database.url, &options(2), Some(redis_options(redis.url())));
    let stores = stores.expect("valid URLs");
    let levels = stores.shared_levels(max_age).expect("there is a Redis");
    (database, levels, name("a"))
}

async fn missed(levels: &SharedLevels, sku: &Sku) -> Miss {
    match levels.get(sku).await.expect("Redis answers") {
        Cached::Miss(miss) => miss,
        Cached::Hit(levels) => panic!("the cache has {levels:?}"),
    }
}

/// The reader asks the database before a change, and fills the cache after it.
#[tokio::test]
async fn slow_reader_fills_nothing_after_a_change() {
    let redis = PrivateServer::redis(&[]).await;
    let (_database, levels, sku) = shared(&redis, Duration::from_mins(10)).await;
    let slow = missed(&levels, &sku).await;
    levels.forget(&sku).await.expect("Redis answers");
    let later = missed(&levels, &sku).await;
    levels.forget(&sku).await.expect("Redis answers");
    for late in [slow, later] {
        let filled = levels.fill(&sku, late, &[]).await;
        assert!(!filled.expect("Redis answers"));
        missed(&levels, &sku).await;
    }
    let miss = missed(&levels, &sku).await;
    let filled = levels.fill(&sku, miss, &[]).await;
    assert!(filled.expect("Redis answers"));
    let found = levels.get(&sku).await.expect("Redis answers");
    assert_matches!(found, Cached::Hit(levels) if levels.is_empty());
}

/// The age counts from the miss, so a reader that takes longer than the maximum age fills nothing.
#[tokio::test]
async fn level_that_was_read_too_long_ago_is_not_cached() {
    let redis = PrivateServer::redis(&[]).await;
    let max_age = Duration::from_millis(50);
    let (_database, levels, sku) = shared(&redis, max_age).await;
    let miss = missed(&levels, &sku).await;
    sleep(max_age * 2).await;
    let filled = levels.fill(&sku, miss, &[]).await;
    assert!(!filled.expect("Redis answers"));
    let keys: Vec<String> = command(redis.url(), &["KEYS", "cached:*"]).await;
    assert!(keys.is_empty(), "{keys:?}");
}
