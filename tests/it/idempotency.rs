//! Idempotency keys: a repeated request gets the first answer, on every database and replica, with
//! every strategy, and in every form of the request.

use std::collections::BTreeSet;

use rstest::rstest;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::app::{Answer, TestApp, send};
use crate::support::rival::Raw;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

/// Sent again to the other replica, a request gets the answer to the first.
async fn assert_replays(app: &TestApp, first: &Answer, path: &str, key: &str, body: &Value) {
    let again = call!(app, 1 POST "{path}", key key, (body) => 200 replayed);
    assert_eq!(again.body, first.body);
}

async fn sales(app: &TestApp, sku: &str) -> usize {
    let path = format!("/stock/{sku}/movements?kind=deducted&limit=1000");
    let page = app.get_json(&path).await;
    page["movements"].as_array().expect("a page").len()
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundred_requests_with_one_key_take_once(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let patient = ["--wait-limit-ms=20000", "--request-deadline-ms=30000"];
    let app = TestApp::with_flags(backend, 2, &patient).await;
    for strategy in ["single-sql", "for-update", "optimistic", "group-commit"] {
        app.set_level(strategy, 50).await;
        let mut requests = JoinSet::new();
        for replica in 0..100 {
            let body = json!({"sku": strategy, "quantity": 2});
            let request = app.deduct(replica, strategy, &body);
            requests.spawn(send(request.header("Idempotency-Key", strategy)));
        }
        let answers = requests.join_all().await;
        let bodies: BTreeSet<_> = answers.iter().map(|it| it.ok().to_string()).collect();
        assert_eq!(bodies.len(), 1, "{bodies:?}");
        assert_eq!(answers.iter().filter(|it| it.replayed).count(), 99);
        assert_eq!(sales(&app, strategy).await, 1);
        assert_eq!(app.audit(strategy).await["on_hand"], 48);
    }
}

#[rstest]
#[tokio::test]
async fn key_answers_only_the_same_request(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let app = TestApp::with_stock(backend, 2, "real", 10).await;
    let order = json!({"sku": "real", "reference": "order 4711 上海"});
    let first = call!(app, POST "/stock/deduct?strategy=single-sql", key "key", (order) => 200);
    assert!(!first.replayed);
    let all_fields =
        json!({"quantity": 1, "warehouse": "main", "sku": "real", "reference": order["reference"]});
    for strategy in ["single-sql", "for-update"] {
        let path = format!("/stock/deduct?strategy={strategy}");
        assert_replays(&app, &first, &path, "key", &all_fields).await;
    }
    let reference = "order+4711+%E4%B8%8A%E6%B5%B7";
    let in_query = call!(app, 1 POST "/stock/deduct?sku=real&quantity=1&reference={reference}", key "key" => 200 replayed);
    assert_eq!(in_query.body, first.body);

    app.set_level("other", 10).await;
    for other in [
        json!({"sku": "real", "quantity": 2, "reference": order["reference"]}),
        json!({"sku": "other", "reference": order["reference"]}),
        json!({"sku": "real", "reference": "order 4712"}),
        json!({"sku": "real"}),
    ] {
        call!(app, POST "/stock/deduct?strategy=single-sql", key "key", (other) => 422 "idempotency-key-reused");
    }
    assert_eq!(app.audit("real").await["on_hand"], 9);
    assert_eq!(app.audit("other").await["on_hand"], 10);
}

#[rstest]
#[tokio::test]
async fn retry_gets_the_first_answer_after_the_stock_is_sold_out(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let app = TestApp::start(backend).await;
    let strategies = "no-lock local-mutex single-sql for-update optimistic group-commit";
    for sku in strategies.split(' ') {
        app.set_level(sku, 1).await;
        let path = format!("/stock/deduct?strategy={sku}");
        let (body, key) = (json!({ "sku": sku }), format!("mine-{sku}"));
        let first = call!(app, POST "{path}", key &key, (body) => 200);
        call!(app, POST "{path}", key "yours", (body) => 409 "insufficient-stock");
        assert_replays(&app, &first, &path, &key, &body).await;
    }
}

#[rstest]
#[tokio::test]
async fn adjustment_with_a_key_is_made_once(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let app = TestApp::with_stock(backend, 2, "real", 10).await;
    let delivery = json!({"delta": 5, "reason": "delivery", "reference": "PO-1"});
    let theft = json!({"delta": -15, "reason": "theft"});
    for (body, key, remaining) in [(&delivery, "PO-1", 15), (&theft, "theft", 0)] {
        let first =
            call!(app, POST "/stock/real/adjust", key key, (body) => 200, {"remaining": remaining});
        assert!(!first.replayed);
        assert_replays(&app, &first, "/stock/real/adjust", key, body).await;
    }
    app.set_level("real", 9).await;
    for other in [
        json!({"delta": 6, "reason": "delivery", "reference": "PO-1"}),
        json!({"delta": 5, "reason": "gift", "reference": "PO-1"}),
        json!({"delta": 5, "reason": "delivery"}),
    ] {
        call!(app, POST "/stock/real/adjust", key "PO-1", (other) => 422 "idempotency-key-reused");
    }
    call!(app, POST "/stock/deduct", key "PO-1", {"sku": "real"} => 422 "idempotency-key-reused");
    app.assert_consistent("real").await;
}

/// The first request with the key is still running: the test itself keeps its transaction open.
#[rstest]
#[tokio::test]
async fn key_is_in_flight_while_its_request_runs(#[values(Mysql, Postgres)] backend: Backend) {
    let app = TestApp::with_flags(backend, 1, &["--wait-limit-ms=1000"]).await;
    app.set_level("real", 10).await;
    let mut first = Raw::recording_key(backend, &app.database_url).await;
    for strategy in ["single-sql", "for-update", "optimistic", "group-commit"] {
        call!(app, POST "/stock/deduct?strategy={strategy}", key "K", {"sku": "real"} => 409 "request-in-flight");
    }
    call!(app, POST "/stock/real/adjust", key "K", {"delta": 1, "reason": "x"} => 409 "request-in-flight");

    first.run("ROLLBACK").await.expect("it can be rolled back");
    let sold =
        call!(app, POST "/stock/deduct?strategy=single-sql", key "K", {"sku": "real"} => 200);
    assert!(!sold.replayed);
    assert_eq!(app.audit("real").await["on_hand"], 9);
}
