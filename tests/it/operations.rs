//! Looking up what an operation did, by its id, its key and its reference.

use std::time::{SystemTime, UNIX_EPOCH};

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use uuid::{Builder, Uuid};

use crate::store_contract::fixture::Raw;
use crate::support::app::{Answer, TestApp, send};
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

/// Of June 2024. No request made it.
const OLD_ID: &str = "01900000-0000-7000-8000-000000000000";

async fn get(app: &TestApp, path: &str) -> Answer {
    send(app.request(1, Method::GET, path)).await
}

/// The status of operations that are not in the ledger.
async fn status(app: &TestApp, path: &str) -> Value {
    let answer = get(app, path).await;
    assert_eq!(answer.ok()["movements"], json!([]), "{path}");
    answer.body["status"].clone()
}

/// Sells one unit of `a`.
async fn sell(app: &TestApp, key: &str, reference: &str) -> Value {
    let order = json!({"sku": "a", "reference": reference});
    let order = app.deduct(0, "single-sql", &order);
    send(order.header("Idempotency-Key", key)).await.ok()["id"].clone()
}

#[rstest]
#[tokio::test]
async fn operation_is_found_by_id_key_and_reference(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let app = TestApp::with_stock(backend, 2, "a", 10).await;
    let mut sold = Vec::new();
    for (key, reference) in [("k1", "R-1"), ("k2", "R-1"), ("k3", "r-1"), ("k4", "R-1 ")] {
        sold.push(sell(&app, key, reference).await);
    }
    let id = sold[1].as_str().expect("an id");
    for path in [format!("/operations/{id}"), "/operations?key=k2".to_owned()] {
        let found = get(&app, &path).await;
        assert_eq!(found.ok()["status"], "committed", "{path}");
        let [movement] = &found.body["movements"].as_array().expect("a list")[..] else {
            panic!("{found:?}");
        };
        let expected = json!([id, "a", "deducted", -1, 8, "k2", "R-1", "anonymous"]);
        let fields = [
            "id",
            "sku",
            "kind",
            "delta",
            "available_after",
            "idempotency_key",
            "reference",
            "caller",
        ];
        assert_eq!(json!(fields.map(|field| &movement[field])), expected);
    }
    let mut found = Vec::new();
    let mut path = "/operations?reference=R-1&limit=1".to_owned();
    loop {
        let page = get(&app, &path).await;
        found.push(page.ok()["movements"][0]["id"].clone());
        let Some(cursor) = page.body["next_cursor"].as_str() else {
            break;
        };
        path = format!("/operations?reference=R-1&limit=1&cursor={cursor}");
    }
    assert_eq!(found, [sold[1].clone(), sold[0].clone()]);
}

#[rstest]
#[tokio::test]
async fn operation_is_not_recorded_when_it_is_too_late(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let app = TestApp::with_stock(backend, 2, "a", 10).await;
    let sold = sell(&app, "k1", "R-1").await;
    // Made at the same time as the sale, but never a request.
    let mut recent = sold.as_str().expect("an id").to_owned();
    recent.replace_range(24.., "000000000000");
    for (path, expected) in [
        (format!("/operations/{recent}"), "pending"),
        (format!("/operations/{OLD_ID}"), "not-recorded"),
        (
            "/operations/00000000-0000-4000-8000-000000000000".to_owned(),
            "not-recorded",
        ),
        // The key belongs to another operation.
        (
            "/operations?key=k1&reference=R-2".to_owned(),
            "not-recorded",
        ),
        ("/operations?key=k9&reference=R-1".to_owned(), "pending"),
        ("/operations?key=k9".to_owned(), "pending"),
        ("/operations?key=k9&since=0".to_owned(), "not-recorded"),
        (
            "/operations?reference=R-9&since=1700000000000".to_owned(),
            "not-recorded",
        ),
        (
            "/operations?reference=R-9&since=9000000000000".to_owned(),
            "pending",
        ),
    ] {
        assert_eq!(status(&app, &path).await, expected, "{path}");
    }
    let found = get(&app, "/operations?key=k1&reference=R-1").await;
    assert_eq!(found.ok()["status"], "committed", "{found:?}");
}

/// Limits of a request of the next tests.
const LIMITS: [&str; 2] = ["--request-deadline-ms=5000", "--wait-limit-ms=4000"];

/// How long a request of that service may have an effect, in milliseconds: until its deadline, on clocks
/// that differ, with a statement that takes as long as the server allows, in a transaction that then idles
/// as long as the server allows.
fn effective(backend: Backend) -> i64 {
    let idle = match backend {
        Sqlite => 0,
        Mysql | Postgres => 10_000,
    };
    5_000 + 10_000 + 4_500 + idle
}

/// Shorter than each of these limits, and longer than a look-up takes.
const SLACK: i64 = 3_000;

/// Milliseconds since 1970.
#[expect(clippy::disallowed_methods, reason = "operation ids contain the time")]
fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.expect("it is later than 1970").as_millis();
    i64::try_from(now).expect("it is not that late")
}

#[rstest]
#[tokio::test]
async fn not_recorded_is_final_after_all_limits(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let app = TestApp::with_flags(backend, 1, &LIMITS).await;
    for (sent_before, expected) in [
        (10_000, "pending"),
        (effective(backend) - SLACK, "pending"),
        (effective(backend) + 1, "not-recorded"),
    ] {
        let sent = now() - sent_before;
        let path = format!("/operations?key=k9&since={sent}");
        assert_eq!(status(&app, &path).await, expected, "{sent_before} ms");
    }
}

/// The id of an operation that was sent this long ago.
fn sent_before(millis: i64) -> Uuid {
    let sent = u64::try_from(now() - millis).expect("after 1970");
    Builder::from_unix_timestamp_millis(sent, &[7; 10]).into_uuid()
}

/// The transaction that records the operation is still open, so its COMMIT may come. No server ends the
/// transactions of SQLite, however old they are.
#[rstest]
#[case(Sqlite, 60_000)]
#[case(Mysql, effective(Mysql) - SLACK)]
#[case(Postgres, effective(Postgres) - SLACK)]
#[tokio::test]
async fn operation_of_an_open_transaction_is_pending(#[case] backend: Backend, #[case] age: i64) {
    let app = TestApp::with_flags(backend, 1, &LIMITS).await;
    let operation = sent_before(age);
    let mut open = Raw::connect(backend, &app.database_url).await;
    open.begin().await;
    open.record(operation).await;
    let path = format!("/operations/{operation}");
    assert_eq!(status(&app, &path).await, "pending");
    open.run("COMMIT").await.expect("it can be committed");
    assert_eq!(get(&app, &path).await.ok()["status"], "committed");
}
