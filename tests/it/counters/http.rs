//! The counters behind the API: what they decide, and when they are corrected. The tests set the counter
//! to a value that SQL does not have, so that the answer shows who decided.

use std::time::Duration;

use redis::FromRedisValue;
use reqwest::RequestBuilder;
use reqwest::header::IF_MATCH;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{SKU, full_size, key_in};
use crate::faults::{Answer, KEY, new_key, send, until};
use crate::support::app::TestApp;
use crate::support::redis::{command, counters};
use crate::support::services::Backend::Sqlite;
use crate::support::services::{TestRedis, fresh_redis};

/// More units than a test sells.
const PLENTY: i64 = 1_000;
const SOLD_OUT: (u16, &str) = (409, "insufficient-stock");

struct Shop {
    app: TestApp,
    redis: TestRedis,
    key: String,
}

impl Shop {
    async fn open(on_hand: i64) -> Self {
        let redis = fresh_redis().await;
        // A busy machine may need longer than a quarter of the default.
        let limits = ["--wait-limit-ms=8000", "--request-deadline-ms=20000"];
        let flags = [&limits[..], &["--redis-url", &redis.url]].concat();
        let app = TestApp::with_flags(Sqlite, 2, &flags).await;
        app.set_level(SKU, on_hand).await;
        let key = key_in(&app.database_url).await;
        Self { app, redis, key }
    }

    fn order(&self, strategy: &str) -> RequestBuilder {
        self.deduct(strategy, 1)
    }

    fn deduct(&self, strategy: &str, quantity: i64) -> RequestBuilder {
        let body = json!({"sku": SKU, "quantity": quantity});
        self.app.deduct(0, strategy, &body)
    }

    async fn ask<T: FromRedisValue>(&self, name: &str, arguments: &[&str]) -> T {
        command(&self.redis.url, &[&[name, &self.key], arguments].concat()).await
    }

    async fn set_counter(&self, units: i64) {
        let units = units.to_string();
        self.ask::<()>("SET", &[&units, "PX", "500"]).await;
    }

    async fn counter(&self) -> Option<i64> {
        self.ask("GET", &[]).await
    }

    /// Sets the counter, and sends a request that it answers in this way. On a busy machine, the counter may
    /// expire before, and the request is sent again.
    async fn answer_from(
        &self,
        units: i64,
        way: &str,
        request: impl Fn() -> RequestBuilder,
    ) -> Answer {
        let mut answer = None;
        until(way, async || {
            let before = [self.counted(way).await, self.counted("loaded").await];
            self.set_counter(units).await;
            answer = Some(send(request()).await);
            let after = [self.counted(way).await, self.counted("loaded").await];
            after == [before[0] + 1, before[1]]
        })
        .await;
        answer.expect("it was sent")
    }

    /// How often replica 0 got this answer of a counter.
    async fn counted(&self, answer: &str) -> u64 {
        let series = format!("counter_asks_total{{answer=\"{answer}\"}}");
        self.app.counted(0, &series).await
    }
}

#[rstest]
#[tokio::test]
async fn refusal_without_key_does_not_reach_sql(
    #[values("redis-get-set", "redis-watch", "redis-lua")] strategy: &str,
) {
    let shop = Shop::open(PLENTY).await;
    let refused = shop.answer_from(0, "refused", || shop.order(strategy));
    let refused = refused.await;
    assert_eq!(refused.status_and_code(), SOLD_OUT);
    assert_eq!(refused.body["available"], 0);
    let sells = async || send(shop.order(strategy)).await.status == 200;
    until("the counter expires", sells).await;
}

#[rstest]
#[tokio::test]
async fn retry_of_the_last_sale_gets_its_answer_again(
    #[values("redis-get-set", "redis-watch", "redis-lua")] strategy: &str,
) {
    let shop = Shop::open(1).await;
    let sale = || shop.order(strategy).header(KEY, "last");
    let first = send(sale()).await;
    let again = shop.answer_from(0, "refused", sale).await;
    assert_eq!((again.ok(), again.replayed), (first.ok(), true));
    let other = shop.order(strategy).header(KEY, new_key());
    assert_eq!(send(other).await.status_and_code(), SOLD_OUT);
    let reused = shop.deduct(strategy, 2).header(KEY, "last");
    send(reused).await.assert_is(422, "idempotency-key-reused");
    assert_eq!(shop.app.audit(SKU).await["sold"], 1);
}

#[rstest]
#[tokio::test]
async fn order_with_key_that_sql_can_make_ends_the_counter(
    #[values("redis-watch", "redis-lua")] strategy: &str,
) {
    let shop = Shop::open(PLENTY).await;
    let sale = || shop.order(strategy).header(KEY, new_key());
    shop.answer_from(0, "refused", sale).await.ok();
    assert_eq!(shop.counter().await, None);
}

#[rstest]
#[tokio::test]
async fn counter_that_admits_too_many_ends(#[values("redis-watch", "redis-lua")] strategy: &str) {
    let shop = Shop::open(PLENTY).await;
    let too_many = || shop.deduct(strategy, PLENTY + 1);
    let refused = shop.answer_from(2 * PLENTY, "admitted", too_many).await;
    assert_eq!(refused.status_and_code(), SOLD_OUT);
    assert_eq!(shop.counter().await, None);
}

#[tokio::test]
async fn get_set_takes_its_refusal_of_a_new_key_for_final() {
    let shop = Shop::open(PLENTY).await;
    let sale = || shop.order("redis-get-set").header(KEY, new_key());
    let refused = shop.answer_from(0, "refused", sale).await;
    assert_eq!(refused.status_and_code(), SOLD_OUT);
}

#[rstest]
#[tokio::test]
async fn replayed_order_gives_its_units_back(
    #[values("redis-get-set", "redis-watch", "redis-lua")] strategy: &str,
) {
    let shop = Shop::open(PLENTY).await;
    let sale = || shop.order(strategy).header(KEY, "once");
    send(sale()).await.ok();
    until("the counter has not expired", async || {
        let again = shop.answer_from(7, "admitted", sale).await;
        assert!(again.replayed, "{again:?}");
        let units = shop.counter().await;
        assert!(units.is_none_or(|units| units == 7), "{units:?}");
        units.is_some()
    })
    .await;
}

/// A replica with and one without Redis.
#[rstest]
#[tokio::test]
async fn restock_through_another_replica_is_sold(
    #[values("redis-watch", "redis-lua")] strategy: &str,
    #[values(true, false)] has_redis: bool,
) {
    let shop = Shop::open(0).await;
    let without = TestApp::on(&shop.app.database_url, 1, &[]).await;
    let add = json!({"delta": 1, "reason": "restock"});
    for _ in 0..full_size().unwrap_or(2) {
        let order = || shop.order(strategy);
        let refused = shop.answer_from(0, "refused", order).await;
        assert_eq!(refused.status_and_code(), SOLD_OUT);
        let other = if has_redis { &shop.app } else { &without };
        send(other.adjust(1, SKU, &add)).await.ok();
        let restocked = Instant::now();
        until("it is sold", async || send(order()).await.status == 200).await;
        let took = restocked.elapsed();
        let is_late = full_size().is_some() && took > Duration::from_secs(1);
        assert!(!is_late, "{took:?}");
    }
}

#[tokio::test]
async fn change_of_a_level_ends_its_counter() {
    let shop = Shop::open(1).await;
    let add = json!({"delta": 1, "reason": "restock"});
    let set = json!({"on_hand": 5});
    for sets in [false, true] {
        // It does not expire. On a busy machine a replica may give up, so the change is repeated.
        until("a change ends it", async || {
            shop.ask::<()>("SET", &["7"]).await;
            let change = if sets {
                shop.app.put(1, SKU, &set).header(IF_MATCH, "*")
            } else {
                shop.app.adjust(1, SKU, &add)
            };
            send(change).await.ok();
            shop.counter().await.is_none()
        })
        .await;
    }
}

#[rstest]
#[tokio::test]
async fn unknown_sku_has_no_counter(
    #[values("redis-get-set", "redis-watch", "redis-lua")] strategy: &str,
) {
    let shop = Shop::open(1).await;
    let order = || shop.app.deduct(0, strategy, &json!({"sku": "unknown"}));
    for order in [order(), order().header(KEY, new_key())] {
        assert_eq!(send(order).await.status_and_code(), (404, "unknown-sku"));
    }
    let keys = counters(&shop.redis.url).await;
    assert!(!keys.iter().any(|key| key.contains("unknown")), "{keys:?}");
}

#[rstest]
#[tokio::test]
async fn lines_of_a_batch_ask_the_counter(#[values("redis-watch", "redis-lua")] strategy: &str) {
    let shop = Shop::open(2).await;
    let batch = async |lines: Value| -> Value {
        let results = shop.app.deduct_all(strategy, &lines).await;
        results.iter().map(|line| line["code"].clone()).collect()
    };
    let (x, y) = (
        json!({"sku": SKU, "key": "x"}),
        json!({"sku": SKU, "key": "y"}),
    );
    let sold = batch(json!([x, y])).await;
    assert_eq!(sold, json!(["deducted", "deducted"]));
    assert!(shop.counted("admitted").await >= 2);
    let again = batch(json!([x, y, {"sku": SKU}, {"sku": SKU, "key": "z"}])).await;
    let short = "insufficient-stock";
    assert_eq!(again, json!(["replayed", "replayed", short, short]));
}
