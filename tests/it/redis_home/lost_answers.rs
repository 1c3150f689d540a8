//! The connection to Redis is cut once it has executed a change: the replica asks again, and the
//! change happens once.
//!
//! A change is found by what its movement says of itself: its script is known by its hash only, and
//! others pass on the same way.

use futures_util::future::join_all;
use reqwest::{Method, RequestBuilder};
use rstest::rstest;
use serde_json::{Value, json};

use super::requests::{create, settled};
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
        // From now on the server knows the script: it executes what is sent with its hash.
        let sold = app.deduct(0, "no-lock", &json!({"sku": "a"})).send().await;
        assert_eq!(sold.expect("an answer").status(), 200);
        Self {
            app,
            proxy,
            _redis: redis,
        }
    }

    /// It moves with each change.
    async fn version(&self) -> i64 {
        let level = self.app.get_json("/stock/a").await;
        level["warehouses"][0]["version"]
            .as_i64()
            .expect("a number")
    }

    fn change(&self, method: Method, path: &str, body: &Value) -> RequestBuilder {
        self.app.request(0, method, path).json(body)
    }
}

#[rstest]
#[case::a_script("redis-lua", b"\"redis-lua\"")]
#[case::a_transaction("redis-watch", b"EXEC\r\n")]
#[case::a_write_under_a_lock("redis-lock", b"\"redis-lock\"")]
#[case::a_write_without("no-lock", b"\"no-lock\"")]
#[tokio::test]
async fn a_sale_whose_answer_was_lost_happens_once(#[case] strategy: &str, #[case] sent: &[u8]) {
    let scene = Scene::open().await;
    let Scene { app, proxy, .. } = &scene;
    let first = app.deduct(0, strategy, &json!({"sku": "a"})).send().await;
    assert_eq!(first.expect("an answer").status(), 200);
    let cut = proxy.cut_after(sent, 1);
    let request = || {
        let request = app.deduct(0, strategy, &json!({"sku": "a", "quantity": 3}));
        request.header("Idempotency-Key", "k")
    };
    let sold = request().send().await.expect("an answer");
    assert_eq!(sold.status(), 200);
    assert_eq!(cut.fired(), 1, "the answer was not lost");
    assert!(
        !sold.headers().contains_key("idempotent-replayed"),
        "it is the first answer"
    );
    let repeat = request().send().await.expect("an answer");
    assert_eq!(repeat.headers()["idempotent-replayed"], "true");
    let (sold, repeat): (Value, Value) = (sold.json().await.unwrap(), repeat.json().await.unwrap());
    assert_eq!(sold, repeat);
    let audit = settled(app, "a").await;
    assert_eq!(
        (&audit["sold"], &audit["consistent"]),
        (&json!(5), &json!(true))
    );
    scene.app.stop().await;
}

#[tokio::test]
async fn an_adjustment_whose_answer_was_lost_happens_once() {
    let scene = Scene::open().await;
    let cut = scene.proxy.cut_after(b"\"received\"", 1);
    let body = json!({"delta": 5, "reason": "count"});
    let adjust = || {
        let request = scene.change(Method::POST, "/stock/a/adjust", &body);
        request.header("Idempotency-Key", "k")
    };
    let adjusted = adjust().send().await.expect("an answer");
    assert_eq!(adjusted.status(), 200);
    assert_eq!(cut.fired(), 1, "the answer was not lost");
    assert!(!adjusted.headers().contains_key("idempotent-replayed"));
    let repeat = adjust().send().await.expect("an answer");
    assert_eq!(repeat.headers()["idempotent-replayed"], "true");
    assert_five_received(scene).await;
}

#[tokio::test]
async fn a_level_whose_setting_was_not_answered_is_set_once() {
    let scene = Scene::open().await;
    let before = scene.version().await;
    let cut = scene.proxy.cut_after(b"\"received\"", 1);
    let put = scene.change(Method::PUT, "/stock/a", &json!({"on_hand": 14}));
    let put = put.send().await.expect("an answer");
    assert_eq!(put.status(), 200);
    assert_eq!(cut.fired(), 1, "the answer was not lost");
    assert_eq!(scene.version().await, before + 1);
    assert_five_received(scene).await;
}

async fn assert_five_received(scene: Scene) {
    let audit = settled(&scene.app, "a").await;
    assert_eq!(
        (&audit["received"], &audit["on_hand"], &audit["consistent"]),
        (&json!(15), &json!(14), &json!(true)),
        "{audit}"
    );
    let movements = scene.app.get_json("/stock/a/movements").await;
    let movements = movements["movements"].as_array().expect("a list");
    assert_eq!(movements.len(), 3, "{movements:?}");
    scene.app.stop().await;
}

/// A message may carry the orders of many.
#[tokio::test]
async fn sales_whose_one_answer_was_lost_happen_once_each() {
    let scene = Scene::open().await;
    create(&scene.app, "many", 1000).await;
    let cut = scene.proxy.cut_after(b"buyer-39", 1);
    let order = |buyer: usize| {
        let order = scene.app.deduct(0, "redis-lua", &json!({"sku": "many"}));
        order.header("Idempotency-Key", format!("buyer-{buyer}"))
    };
    for sold in join_all((0..40).map(|buyer| order(buyer).send())).await {
        assert_eq!(sold.expect("it answers").status(), 200);
    }
    assert_eq!(cut.fired(), 1, "the answer was not lost");
    let audit = settled(&scene.app, "many").await;
    assert_eq!(
        (&audit["sold"], &audit["on_hand"]),
        (&json!(40), &json!(960))
    );
    assert_eq!(audit["consistent"], true, "{audit}");
    scene.app.stop().await;
}
