//! The connection to Redis is cut after Redis has executed a change: the replica asks again, and
//! the change happens once.
//!
//! The proxy recognizes a change by the text of its movement. The script itself is sent as a hash,
//! which other requests send, too.

use futures_util::future::join_all;
use reqwest::header::IF_MATCH;
use reqwest::{Method, RequestBuilder};
use rstest::rstest;
use serde_json::{Value, json};

use super::{applied_audit, assert_sold, create, order};
use crate::faults::{KEY, copy, send};
use crate::support::app::TestApp;
use crate::support::proxy::Proxy;
use crate::support::services::Backend::Sqlite;
use crate::support::services::{TestRedis, fresh_redis};

struct Scene {
    app: TestApp,
    proxy: Proxy,
    _redis: TestRedis,
}

impl Scene {
    /// One replica with a proxy before its Redis, and a SKU `a` that has 9 of 10 units left.
    async fn open() -> Self {
        let redis = fresh_redis().await;
        let (proxy, url) = Proxy::before(&redis.url).await;
        let app = TestApp::with_flags(Sqlite, 1, &["--redis-url", &url]).await;
        create(&app, "a", 10).await;
        // From now on Redis knows the script and executes it when its hash is sent.
        assert_eq!(send(order(&app, "no-lock", "a")).await.status, 200);
        Self {
            app,
            proxy,
            _redis: redis,
        }
    }

    /// Sends a request with a key, whose first answer from Redis is lost, and repeats it.
    async fn change_twice(&self, request: RequestBuilder, sent: &[u8]) {
        let cut = self.proxy.cut_after(sent, 1);
        let request = request.header(KEY, "k");
        let answer = async || {
            let answer = copy(&request).send().await.expect("an answer");
            assert_eq!(answer.status(), 200);
            let replayed = answer.headers().get("idempotent-replayed").cloned();
            (replayed, answer.json::<Value>().await.expect("JSON"))
        };
        let (replayed, first) = answer().await;
        assert_eq!(cut.fired(), 1, "the answer was not lost");
        assert_eq!(replayed, None, "it is the first answer");
        let (replayed, repeat) = answer().await;
        assert_eq!(replayed.expect("a replay"), "true");
        assert_eq!(first, repeat);
    }

    /// The version of `a`, which each change increments.
    async fn version(&self) -> i64 {
        let level = self.app.get_json("/stock/a").await;
        let version = &level["warehouses"][0]["version"];
        version.as_i64().expect("a number")
    }

    async fn assert_five_received(self) {
        let audit = applied_audit(&self.app, "a").await;
        let found = (&audit["received"], &audit["on_hand"], &audit["consistent"]);
        assert_eq!(found, (&json!(15), &json!(14), &json!(true)), "{audit}");
        let movements = self.app.get_json("/stock/a/movements").await;
        let movements = movements["movements"].as_array().expect("a list");
        assert_eq!(movements.len(), 3, "{movements:?}");
        self.app.stop().await;
    }
}

#[rstest]
#[case::script("redis-lua", b"\tredis-lua\t")]
#[case::transaction("redis-watch", b"EXEC\r\n")]
#[case::write_under_lock("redis-lock", b"\tredis-lock\t")]
#[case::write_without_lock("no-lock", b"\tno-lock\t")]
#[tokio::test]
async fn sale_with_lost_answer_happens_once(#[case] strategy: &str, #[case] sent: &[u8]) {
    let scene = Scene::open().await;
    assert_eq!(send(order(&scene.app, strategy, "a")).await.status, 200);
    let order = json!({"sku": "a", "quantity": 3});
    let request = scene.app.deduct(0, strategy, &order);
    scene.change_twice(request, sent).await;
    assert_sold(&applied_audit(&scene.app, "a").await, 5);
    scene.app.stop().await;
}

#[tokio::test]
async fn adjustment_with_lost_answer_happens_once() {
    let scene = Scene::open().await;
    let adjust = scene.app.request(0, Method::POST, "/stock/a/adjust");
    let adjust = adjust.json(&json!({"delta": 5, "reason": "count"}));
    scene.change_twice(adjust, b"\treceived\t").await;
    scene.assert_five_received().await;
}

#[tokio::test]
async fn level_set_with_lost_answer_is_set_once() {
    let scene = Scene::open().await;
    let before = scene.version().await;
    let cut = scene.proxy.cut_after(b"\treceived\t", 1);
    let put = scene.app.request(0, Method::PUT, "/stock/a");
    let put = put.json(&json!({"on_hand": 14})).header(IF_MATCH, "*");
    assert_eq!(send(put).await.status, 200);
    assert_eq!(cut.fired(), 1, "the answer was not lost");
    assert_eq!(scene.version().await, before + 1);
    scene.assert_five_received().await;
}

/// One message may carry the deductions of many buyers.
#[tokio::test]
async fn batch_with_lost_answer_sells_once_to_each_buyer() {
    let scene = Scene::open().await;
    create(&scene.app, "many", 1000).await;
    let cut = scene.proxy.cut_after(b"buyer-39", 1);
    let buy = |buyer: usize| {
        let order = order(&scene.app, "redis-lua", "many");
        send(order.header(KEY, format!("buyer-{buyer}")))
    };
    for sold in join_all((0..40).map(buy)).await {
        assert_eq!(sold.status, 200, "{sold:?}");
    }
    assert_eq!(cut.fired(), 1, "the answer was not lost");
    let audit = applied_audit(&scene.app, "many").await;
    assert_sold(&audit, 40);
    assert_eq!(audit["on_hand"], 960, "{audit}");
    scene.app.stop().await;
}
