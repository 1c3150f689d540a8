//! The ledger is bound to one Redis: no replica sells its stock in another one.

use std::sync::Arc;
use std::time::Duration;

use reqwest::{Method, Url};
use rstest::rstest;
use serde_json::json;
use stocklock::ports::StoreError;
use stocklock::store::{RedisOptions, Stores};
use stocklock_testkit::assert_matches;
use tokio::time::Instant;

use super::copied::beat;
use super::{applied_audit, assert_exact, assert_sold, command, create, flush, order, run, sell};
use crate::faults::{send, until};
use crate::store_contract::fixture::{Fixture, On, Raw, SOON, options, redis_options};
use crate::support::app::{Answer, TestApp};
use crate::support::process::Process;
use crate::support::proxy::Proxy;
use crate::support::services::{Backend, PrivateServer, fresh_database, fresh_redis};

const SKU: &str = "a";
/// Flags of a Redis that keeps its data.
pub(super) const PERSISTENT: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

pub(super) async fn replica(database: &str, redis: &str, flags: &[&str]) -> TestApp {
    let flags = [&["--redis-url", redis], flags].concat();
    TestApp::on(database, 1, &flags).await
}

/// Orders one unit.
pub(super) async fn buy(app: &TestApp) -> Answer {
    send(order(app, "redis-lua", SKU)).await
}

pub(super) async fn sold(app: &TestApp) {
    buy(app).await.ok();
}

/// Waits until an order is answered with this.
pub(super) async fn is_answered(app: &TestApp, status: u16, detail: &str) -> Answer {
    let mut last = None;
    until(&format!("{status} {detail}"), async || {
        let answer = last.insert(buy(app).await);
        answer.status == status && answer.detail.contains(detail)
    })
    .await;
    last.expect("an order was answered")
}

/// Runs a statement on the fixture's database, without the store.
pub(super) async fn write(fixture: &Fixture, statement: &'static str) {
    let mut raw = Raw::connect(fixture.backend, &fixture.url).await;
    raw.run(statement).await.expect("the statement succeeds");
}

/// The id in the key of the binding.
pub(super) async fn bound_id(url: &str) -> Option<String> {
    let keys: Vec<String> = command(url, &["KEYS", "binding:*"]).await;
    let key = keys.first()?;
    let value: String = command(url, &["GET", key]).await;
    value.split_once(' ').map(|(id, _)| id.to_owned())
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn second_redis_of_a_ledger_sells_nothing(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let database = fresh_database(backend).await;
    let (first, second) = (fresh_redis().await, PrivateServer::redis(&[]).await);
    let seller = replica(&database.url, &first.url, &[]).await;
    create(&seller, SKU, 10).await;
    sold(&seller).await;

    let flags = ["--strategy-redis", "redis-lua", "--on-redis-loss", "reload"];
    for flags in [&flags[..2], &flags[..]] {
        let other = replica(&database.url, second.url(), flags).await;
        let refused = is_answered(&other, 503, "REDIS_URL").await;
        assert_eq!(refused.code, "strategy-unavailable");
        for path in ["/stock/a", "/stock/a/audit"] {
            let refused = send(other.request(0, Method::GET, path)).await;
            assert_eq!(refused.status_and_code(), (503, "home-unavailable"));
        }
        let ready = send(other.request(0, Method::GET, "/readyz")).await;
        assert_eq!(ready.status_and_code(), (503, "not-ready"));
        assert!(ready.detail.contains("REDIS_URL"), "{ready:?}");
        // Longer than an abandoned Redis is waited for.
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(7) {
            assert_eq!(buy(&other).await.status, 503);
            sold(&seller).await;
            let more = seller.adjust(0, SKU, &json!({"delta": 1, "reason": "restock"}));
            send(more).await.ok();
        }
        other.stop().await;
    }
    let audit = applied_audit(&seller, SKU).await;
    assert_eq!(audit["consistent"], true, "{audit}");
    seller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restart_with_the_data_needs_no_operator() {
    let database = fresh_database(Backend::Sqlite).await;
    let redis = PrivateServer::redis(&PERSISTENT).await;
    let app = replica(&database.url, redis.url(), &[]).await;
    create(&app, SKU, 10).await;
    sold(&app).await;
    for _ in 0..2 {
        redis.kill9();
        redis.restart().await;
        let started = Instant::now();
        is_answered(&app, 200, "").await;
        // It has used this Redis before, so it waits for no other replica.
        assert!(started.elapsed() < Duration::from_secs(4));
    }
    app.stop().await;
    // A replica that starts after a restart does not know whether another one uses the old Redis.
    redis.kill9();
    redis.restart().await;
    let app = replica(&database.url, redis.url(), &[]).await;
    is_answered(&app, 200, "").await;
    assert_sold(&applied_audit(&app, SKU).await, 4);
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_without_its_data_is_refused_until_it_is_adopted() {
    let database = fresh_database(Backend::Sqlite).await;
    let redis = PrivateServer::redis(&[]).await;
    let app = replica(&database.url, redis.url(), &[]).await;
    create(&app, SKU, 10).await;
    sold(&app).await;
    assert_sold(&applied_audit(&app, SKU).await, 1);
    redis.kill9();
    redis.restart().await;
    let refused = is_answered(&app, 503, "stocklock adopt").await;
    assert_eq!(refused.code, "strategy-unavailable");
    assert!(bound_id(redis.url()).await.is_none());

    let variables = [("DATABASE_URL", &*database.url), ("REDIS_URL", redis.url())];
    let asked = Process::run(&["adopt"], &variables).await;
    assert!(
        asked.code == Some(1) && asked.stdout.contains("for sale again"),
        "{asked:?}"
    );
    assert_eq!(buy(&app).await.status, 503);
    for done in ["Done", "Nothing to do"] {
        let adopted = Process::run(&["adopt", "--yes"], &variables).await;
        assert!(
            adopted.code == Some(0) && adopted.stdout.contains(done),
            "{adopted:?}"
        );
    }

    is_answered(&app, 200, "").await;
    assert_sold(&applied_audit(&app, SKU).await, 2);
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stock_is_loaded_from_sql_after_a_loss_if_configured() {
    let database = fresh_database(Backend::Sqlite).await;
    let redis = PrivateServer::redis(&[]).await;
    let flags = ["--redis-url", redis.url(), "--on-redis-loss", "reload"];
    let app = TestApp::on(&database.url, 2, &flags).await;
    create(&app, SKU, 10).await;
    sold(&app).await;
    assert_sold(&applied_audit(&app, SKU).await, 1);
    redis.kill9();
    redis.restart().await;
    let restarted = Instant::now();
    is_answered(&app, 200, "").await;
    // Before that, no replica knows that the others do not sell in the previous Redis.
    assert!(restarted.elapsed() > Duration::from_secs(4));
    for replica in 0..2 {
        until("the replica uses the Redis", async || {
            let body = json!({ "sku": SKU });
            send(app.deduct(replica, "redis-watch", &body)).await.status == 200
        })
        .await;
    }
    assert_sold(&applied_audit(&app, SKU).await, 4);
    app.stop().await;
}

/// A DNS name leads one replica, which has sold before, to an empty Redis.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_redis_is_not_used_while_another_replica_sells() {
    let database = fresh_database(Backend::Sqlite).await;
    let (first, second) = (fresh_redis().await, PrivateServer::redis(&[]).await);
    let (address, url) = Proxy::before(&first.url).await;
    let seller = replica(&database.url, &first.url, &[]).await;
    let moved = replica(&database.url, &url, &["--on-redis-loss", "reload"]).await;
    create(&seller, SKU, 100).await;
    sold(&seller).await;
    sold(&moved).await;
    let to = Url::parse(second.url()).expect("a URL");
    let port = to.port().expect("a port");
    address.lead_to(format!("127.0.0.1:{port}")).await;

    let (started, mut sales) = (Instant::now(), 2);
    // Longer than an abandoned Redis is waited for.
    while started.elapsed() < Duration::from_secs(7) {
        // The outcome of an order that finds its connection closed is unknown.
        let refused = buy(&moved).await;
        assert!([503, 504].contains(&refused.status), "{refused:?}");
        if sales < 50 {
            sold(&seller).await;
            sales += 1;
        }
    }
    assert_eq!(bound_id(second.url()).await, None);
    assert_sold(&applied_audit(&seller, SKU).await, sales);
    seller.stop().await;
    is_answered(&moved, 200, "").await;
    assert_sold(&applied_audit(&moved, SKU).await, sales + 1);
    moved.stop().await;
}

/// A replica has read the key, and before it reads the row, another one has changed both.
#[tokio::test]
async fn beats_during_a_check_do_not_delay_it() {
    let near = Fixture::on(On::Redis).await;
    near.put(SKU, 10).await;
    beat(&near.store).await;
    let redis = near.redis_url().expect("stock lives in Redis");
    let (proxy, url) = Proxy::before(redis).await;
    let far = Fixture::at(Backend::Sqlite, near.url.clone()).await;
    let far = far.with(RedisOptions {
        wait_limit: SOON,
        ..redis_options(&url)
    });
    let hold = proxy.hold_answer(b"redis_version");
    let beats = async {
        hold.held().await;
        for _ in 0..3 {
            beat(&near.store).await;
        }
        hold.let_go();
    };
    let (checked, ()) = tokio::join!(far.store.confirm_redis(0), beats);
    checked.expect("it waits for no other replica");
}

#[tokio::test]
async fn running_redis_that_lost_its_id_gets_another_one() {
    let fixture = Fixture::on(On::Redis).await;
    let url = fixture.redis_url().unwrap().to_owned();
    fixture.put(SKU, 10).await;
    sell(&fixture, SKU, 1).await;
    let before = bound_id(&url).await;
    flush(&fixture).await;
    fixture.store.confirm_redis(0).await.unwrap();
    let after = bound_id(&url).await;
    assert!(after.is_some());
    assert_ne!(after, before);
    sell(&fixture, SKU, 1).await;
}

/// Goal: stock of a release without bindings is sold on, however many replicas start at once.
#[tokio::test]
async fn stock_of_an_older_release_is_bound_once() {
    let fixture = Fixture::on(On::Redis).await;
    let url = fixture.redis_url().unwrap().to_owned();
    fixture.put(SKU, 10).await;
    sell(&fixture, SKU, 3).await;
    let key = fixture.key("binding:*").await;
    run::<()>(&fixture, &["DEL", &key]).await;
    write(&fixture, "DELETE FROM redis_binding").await;

    let open = || Stores::open(&fixture.url, &options(2), Some(redis_options(&url)));
    let replicas: Vec<_> = (0..4).map(|_| open().expect("valid URLs")).collect();
    let confirm = |replica: &Stores| {
        let store = Arc::clone(&replica.store);
        async move { store.confirm_redis(0).await }
    };
    let confirmed = futures_util::future::join_all(replicas.iter().map(confirm)).await;
    assert!(confirmed.iter().all(Result::is_ok), "{confirmed:?}");
    let id = bound_id(&url).await;
    assert!(id.is_some());
    // The store of the fixture takes the new id over.
    fixture.store.confirm_redis(0).await.unwrap();
    assert_eq!(bound_id(&url).await, id);
    assert_exact(&fixture, SKU, 3, 7).await;
}

/// The process ended after it had written the row, and Redis was replaced before the next one.
#[tokio::test]
async fn interrupted_binding_is_completed() {
    let fixture = Fixture::on(On::Redis).await;
    fixture.put(SKU, 10).await;
    let key = fixture.key("binding:*").await;
    for update in [
        "UPDATE redis_binding SET beat = 0",
        "UPDATE redis_binding SET beat = 0, beat_before = 0, run_id = 'another'",
    ] {
        run::<()>(&fixture, &["DEL", &key]).await;
        write(&fixture, update).await;
        let redis = redis_options(fixture.redis_url().unwrap());
        let stores = Stores::open(&fixture.url, &options(2), Some(redis)).expect("valid URLs");
        stores.store.confirm_redis(0).await.unwrap();
        assert!(bound_id(fixture.redis_url().unwrap()).await.is_some());
    }
    // It was not the first binding, so another Redis has the stock.
    run::<()>(&fixture, &["DEL", &key]).await;
    let update = "UPDATE redis_binding SET beat = 0, beat_before = 7, run_id = 'another'";
    write(&fixture, update).await;
    let redis = redis_options(fixture.redis_url().unwrap());
    let stores = Stores::open(&fixture.url, &options(2), Some(redis)).expect("valid URLs");
    let refused = stores.store.confirm_redis(0).await;
    assert_matches!(refused, Err(StoreError::NotBound(_)));
}

/// Otherwise another process writes the missing key, and sells from the old levels.
#[tokio::test]
async fn redis_is_not_adopted_before_old_levels_are_deleted() {
    let redis = PrivateServer::redis(&[]).await;
    let fixture = Fixture::new(Backend::Sqlite).await;
    let fixture = fixture.with(redis_options(redis.url()));
    fixture.put(SKU, 10).await;
    sell(&fixture, SKU, 1).await;
    fixture.settle().await;
    let keys: Vec<String> = command(redis.url(), &["KEYS", "binding:*"]).await;
    command::<()>(redis.url(), &["DEL", &keys[0]]).await;
    let levels: Vec<String> = command(redis.url(), &["KEYS", "stock:*"]).await;
    assert_eq!(levels.len(), 1, "{levels:?}");
    command::<()>(redis.url(), &["HSET", &levels[0], "units", "14"]).await;
    write(&fixture, "UPDATE redis_binding SET run_id = 'another'").await;

    let open = || {
        let redis = redis_options(redis.url());
        let stores = Stores::open(&fixture.url, &options(2), Some(redis));
        stores.expect("valid URLs").store
    };
    command::<()>(redis.url(), &["ACL", "SETUSER", "default", "-unlink"]).await;
    let failed = open().adopt_redis().await;
    assert!(failed.is_err(), "{failed:?}");
    command::<()>(redis.url(), &["ACL", "SETUSER", "default", "+unlink"]).await;
    let refused = open().confirm_redis(0).await;
    assert_matches!(refused, Err(StoreError::NotBound(_)));
    assert!(open().adopt_redis().await.unwrap());
    fixture.store.confirm_redis(0).await.unwrap();
    sell(&fixture, SKU, 1).await;
    fixture.settle().await;
    assert_exact(&fixture, SKU, 2, 8).await;
}

/// Locks may use a Redis that has no stock; it stays empty.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_without_stock_is_not_bound() {
    let redis = fresh_redis().await;
    let app = TestApp::with_flags(Backend::Sqlite, 1, &["--redis-url", &redis.url]).await;
    app.set_level(SKU, 2).await;
    for strategy in ["redis-lock", "single-sql"] {
        send(app.deduct(0, strategy, &json!({ "sku": SKU })))
            .await
            .ok();
    }
    let path = "/operations/01890000-0000-7000-8000-000000000000";
    send(app.request(0, Method::GET, path)).await;
    assert_eq!(bound_id(&redis.url).await, None);
    app.stop().await;
}
