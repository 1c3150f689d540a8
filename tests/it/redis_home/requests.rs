//! What callers see of stock that lives in Redis.

use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Duration, Instant, sleep};

use crate::faults::{send, until};
use crate::store_contract::fixture::SOON;
use crate::support::app::TestApp;
use crate::support::proxy::{Mode, Proxy};
use crate::support::services::Backend::Sqlite;
use crate::support::services::fresh_redis;

const STRATEGIES: [&str; 2] = ["redis-lua", "redis-watch"];

pub(super) async fn create(app: &TestApp, sku: &str, on_hand: i64) {
    let put = app.request(0, Method::PUT, &format!("/stock/{sku}"));
    let put = put
        .json(&json!({"on_hand": on_hand, "home": "redis"}))
        .send()
        .await;
    assert_eq!(put.expect("an answer").status(), 201);
}

/// The audit once nothing is pending any more.
pub(super) async fn settled(app: &TestApp, sku: &str) -> Value {
    let deadline = Instant::now() + SOON;
    loop {
        let audit = app.audit(sku).await;
        if audit["pending"] == 0 {
            return audit;
        }
        assert!(Instant::now() < deadline, "{audit}");
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_sale_says_that_it_is_as_durable_as_redis_and_reaches_the_ledger() {
    let redis = fresh_redis().await;
    let app = TestApp::with_flags(Sqlite, 2, &["--redis-url", &redis.url]).await;
    create(&app, "a", 10).await;
    for (replica, strategy) in STRATEGIES.into_iter().enumerate() {
        let sold = app
            .deduct(replica, strategy, &json!({"sku": "a"}))
            .send()
            .await;
        let sold: Value = sold.expect("an answer").json().await.expect("JSON");
        assert_eq!(sold["durability"], "redis", "{sold}");
        assert_eq!(
            sold["remaining"],
            9 - i64::try_from(replica).unwrap(),
            "{sold}"
        );
    }
    let audit = settled(&app, "a").await;
    assert_eq!(
        (&audit["sold"], &audit["consistent"]),
        (&json!(2), &json!(true))
    );
    let movements = app.get_json("/stock/a/movements").await;
    assert_eq!(
        movements["movements"][0]["durability"], "redis",
        "{movements}"
    );
    let wrong = app
        .deduct(0, "single-sql", &json!({"sku": "a"}))
        .send()
        .await;
    let wrong = wrong.expect("an answer");
    assert_eq!(wrong.status(), 409);
    let wrong: Value = wrong.json().await.expect("JSON");
    assert_eq!(
        (&wrong["code"], &wrong["home"]),
        (&json!("wrong-home"), &json!("redis"))
    );
    until("the metrics follow", SOON, || async {
        let metrics = app.get("/metrics").await.text().await.expect("text");
        metrics.contains("journal_waiting_movements 0")
    })
    .await;
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_100_requests_with_one_key_one_sells() {
    let redis = fresh_redis().await;
    let app = TestApp::with_flags(Sqlite, 2, &["--redis-url", &redis.url]).await;
    for strategy in STRATEGIES {
        create(&app, strategy, 200).await;
        let request = |replica, quantity: u32| {
            let body = json!({"sku": strategy, "quantity": quantity});
            app.deduct(replica, strategy, &body)
                .header("Idempotency-Key", strategy)
        };
        let mut requests = JoinSet::new();
        for replica in 0..100 {
            let request = request(replica, 2);
            requests.spawn(async move { request.send().await.expect("an answer") });
        }
        let mut first = 0;
        let mut ids = Vec::new();
        for response in requests.join_all().await {
            assert_eq!(response.status(), 200, "{strategy}");
            first += usize::from(!response.headers().contains_key("idempotent-replayed"));
            let body: Value = response.json().await.expect("JSON");
            ids.push(body["id"].to_string());
        }
        ids.dedup();
        assert_eq!((first, ids.len()), (1, 1), "{strategy}");
        let other = request(0, 3).send().await.expect("an answer");
        assert_eq!(other.status(), 422, "{strategy}");
        let audit = settled(&app, strategy).await;
        assert_eq!(
            (&audit["sold"], &audit["consistent"]),
            (&json!(2), &json!(true))
        );
    }
    app.stop().await;
}

#[tokio::test]
async fn without_a_redis_its_stock_is_refused_with_the_setting_to_make() {
    let redis = fresh_redis().await;
    let app = TestApp::with_flags(Sqlite, 1, &["--redis-url", &redis.url]).await;
    create(&app, "a", 10).await;
    let without = TestApp::on(&app.database_url, 1, &[]).await;
    for (strategy, code) in [
        ("no-lock", "home-unavailable"),
        ("single-sql", "wrong-home"),
    ] {
        let refused = without
            .deduct(0, strategy, &json!({"sku": "a"}))
            .send()
            .await;
        let refused: Value = refused.expect("an answer").json().await.expect("JSON");
        assert_eq!(refused["code"], code, "{refused}");
    }
    without.stop().await;
    app.stop().await;
}

/// The caller is told which setting to raise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_few_connections_for_watch_name_their_setting() {
    let redis = fresh_redis().await;
    let (proxy, url) = Proxy::before(&redis.url).await;
    let flags = [
        "--redis-url",
        &url,
        "--redis-pool-size",
        "1",
        "--wait-limit-ms",
        "400",
    ];
    let app = TestApp::with_flags(Sqlite, 1, &flags).await;
    create(&app, "a", 10).await;
    let sale = || send(app.deduct(0, "redis-watch", &json!({"sku": "a"})));
    assert_eq!(sale().await.expect("it answers").status, 200);
    // An answer comes in time, and two of them take longer than anybody waits for the connection.
    proxy.set(Mode::Delay(Duration::from_millis(150))).await;
    let sales: JoinSet<_> = (0..5).map(|_| sale()).collect();
    let answers = sales.join_all().await.into_iter();
    let answers: Vec<_> = answers.map(|answer| answer.expect("it answers")).collect();
    let refused = answers.iter().find(|answer| answer.code == "overloaded");
    let refused = refused.unwrap_or_else(|| panic!("{answers:?}"));
    assert_eq!(refused.status, 503, "{refused:?}");
    assert!(refused.detail.contains("REDIS_POOL_SIZE"), "{refused:?}");
    app.stop().await;
}
