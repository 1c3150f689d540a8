//! Idempotency keys: a repeated request gets the first answer, on every database and replica, with
//! every strategy, and in every form of the request.

use std::collections::BTreeSet;

use reqwest::{Method, RequestBuilder};
use rstest::rstest;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::app::{Answer, TestApp, send};
use crate::support::rival::Raw;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

async fn send_keyed(request: RequestBuilder, key: &str) -> Answer {
    send(request.header("Idempotency-Key", key)).await
}

fn take(app: &TestApp, replica: usize, body: &Value) -> RequestBuilder {
    app.deduct(replica, "single-sql", body)
}

#[track_caller]
fn assert_first(answer: &Answer) {
    assert_eq!((answer.status, answer.replayed), (200, false), "{answer:?}");
}

#[track_caller]
fn assert_replays(answer: &Answer, first: &Answer) {
    assert_eq!((answer.ok(), answer.replayed), (first.ok(), true));
}

/// Number of sales in the ledger.
async fn sales(app: &TestApp, sku: &str) -> usize {
    let path = format!("/stock/{sku}/movements?kind=deducted&limit=1000");
    let page = app.get_json(&path).await;
    page["movements"].as_array().expect("a page").len()
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundred_requests_with_one_key_take_once(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
    #[values("single-sql", "for-update", "optimistic", "group-commit")] strategy: &str,
) {
    let patient = ["--wait-limit-ms=20000", "--request-deadline-ms=30000"];
    let app = TestApp::with_flags(backend, 2, &patient).await;
    app.set_level("hot", 50).await;
    let mut requests = JoinSet::new();
    for replica in 0..100 {
        let body = json!({"sku": "hot", "quantity": 2});
        requests.spawn(send_keyed(app.deduct(replica, strategy, &body), "once"));
    }
    let answers = requests.join_all().await;
    let bodies: BTreeSet<_> = answers.iter().map(|it| it.ok().to_string()).collect();
    assert_eq!(bodies.len(), 1, "{bodies:?}");
    assert_eq!(answers.iter().filter(|it| it.replayed).count(), 99);
    assert_eq!(sales(&app, "hot").await, 1);
    assert_eq!(app.audit("hot").await["on_hand"], 48);
}

#[rstest]
#[tokio::test]
async fn key_answers_only_the_same_request(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let app = TestApp::with_stock(backend, 2, "real", 10).await;
    let first = send_keyed(take(&app, 0, &json!({"sku": "real"})), "key").await;
    assert_first(&first);

    let all_fields = json!({"quantity": 1, "warehouse": "main", "sku": "real"});
    for same in [
        take(&app, 1, &all_fields),
        app.deduct(1, "for-update", &all_fields),
        app.request(0, Method::POST, "/stock/deduct?sku=real&quantity=1"),
    ] {
        assert_replays(&send_keyed(same, "key").await, &first);
    }

    app.set_level("other", 10).await;
    for other in [
        json!({"sku": "real", "quantity": 2}),
        json!({"sku": "other"}),
    ] {
        let refused = send_keyed(take(&app, 0, &other), "key").await;
        assert_eq!(refused.status_and_code(), (422, "idempotency-key-reused"));
    }
    assert_eq!(app.audit("real").await["on_hand"], 9);
    assert_eq!(app.audit("other").await["on_hand"], 10);
}

#[rstest]
#[tokio::test]
async fn reference_is_recorded_and_part_of_the_request(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let app = TestApp::with_stock(backend, 2, "real", 10).await;
    let order = json!({"sku": "real", "reference": "order 4711 上海"});
    let first = send_keyed(take(&app, 0, &order), "key").await;
    assert_first(&first);
    let in_query = "/stock/deduct?sku=real&reference=order+4711+%E4%B8%8A%E6%B5%B7";
    let same = app.request(1, Method::POST, in_query);
    assert_replays(&send_keyed(same, "key").await, &first);
    for other in [
        json!({"sku": "real"}),
        json!({"sku": "real", "reference": "order 4712"}),
    ] {
        let refused = send_keyed(take(&app, 0, &other), "key").await;
        assert_eq!(refused.status_and_code(), (422, "idempotency-key-reused"));
    }
    let page = app.get_json("/stock/real/movements?kind=deducted").await;
    let sale = &page["movements"][0];
    assert_eq!(sale["reference"], order["reference"]);
    assert_eq!(sale["idempotency_key"], "key");
    assert_eq!(
        (&sale["sku"], &sale["caller"]),
        (&json!("real"), &json!("anonymous"))
    );
}

#[rstest]
#[tokio::test]
async fn keys_and_skus_are_case_sensitive(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let app = TestApp::start(backend).await;
    for (sku, on_hand) in [("shirt", 10), ("Shirt", 20), ("SHIRT", 30)] {
        app.set_level(sku, on_hand).await;
    }
    for key in ["order-a", "order-A", "ORDER-A"] {
        assert_first(&send_keyed(take(&app, 0, &json!({"sku": "shirt"})), key).await);
    }
    for (sku, on_hand) in [("shirt", 7), ("Shirt", 20), ("SHIRT", 30)] {
        assert_eq!(app.audit(sku).await["on_hand"], on_hand, "{sku}");
    }
}

#[rstest]
#[tokio::test]
async fn retry_gets_the_first_answer_after_the_stock_is_sold_out(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
    #[values(
        "no-lock",
        "local-mutex",
        "single-sql",
        "for-update",
        "optimistic",
        "group-commit"
    )]
    strategy: &str,
) {
    let app = TestApp::with_stock(backend, 2, "last", 1).await;
    let body = json!({"sku": "last"});
    let first = send_keyed(app.deduct(0, strategy, &body), "mine").await;
    first.ok();
    let late = send_keyed(app.deduct(0, strategy, &body), "yours").await;
    assert_eq!(late.status_and_code(), (409, "insufficient-stock"));
    let retry = send_keyed(app.deduct(1, strategy, &body), "mine").await;
    assert_replays(&retry, &first);
}

#[rstest]
#[tokio::test]
async fn refusal_is_not_stored_under_its_key(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let app = TestApp::with_stock(backend, 2, "gone", 0).await;
    let body = json!({"sku": "gone", "quantity": 3});
    let refused = send_keyed(take(&app, 0, &body), "patient").await;
    assert_eq!(refused.status_and_code(), (409, "insufficient-stock"));
    assert!(!refused.replayed);
    assert_eq!(refused.body["requested"], 3);
    assert_eq!(refused.body["available"], 0);
    app.set_level("gone", 5).await;
    let taken = send_keyed(take(&app, 1, &body), "patient").await;
    assert_first(&taken);
    assert_eq!(taken.body["remaining"], 2);
}

#[rstest]
#[tokio::test]
async fn adjustment_with_a_key_is_made_once(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let app = TestApp::with_stock(backend, 2, "real", 10).await;
    let delivery = json!({"delta": 5, "reason": "delivery", "reference": "PO-1"});
    let theft = json!({"delta": -15, "reason": "theft"});
    for (body, key, remaining) in [(&delivery, "PO-1", 15), (&theft, "theft", 0)] {
        let first = send_keyed(app.adjust(0, "real", body), key).await;
        assert_first(&first);
        assert_eq!(first.body["remaining"], remaining);
        let retry = send_keyed(app.adjust(1, "real", body), key).await;
        assert_replays(&retry, &first);
    }
    app.set_level("real", 9).await;
    let reused = |body| app.adjust(0, "real", &body);
    for other in [
        reused(json!({"delta": 6, "reason": "delivery", "reference": "PO-1"})),
        reused(json!({"delta": 5, "reason": "gift", "reference": "PO-1"})),
        reused(json!({"delta": 5, "reason": "delivery"})),
        take(&app, 0, &json!({"sku": "real"})),
    ] {
        let refused = send_keyed(other, "PO-1").await;
        assert_eq!(refused.status_and_code(), (422, "idempotency-key-reused"));
    }
    assert_eq!(app.audit("real").await["consistent"], true);
}

/// The first request with the key is still running: the test itself keeps its transaction open.
#[rstest]
#[tokio::test]
async fn key_is_in_flight_while_its_request_runs(#[values(Mysql, Postgres)] backend: Backend) {
    let app = TestApp::with_flags(backend, 1, &["--wait-limit-ms=1000"]).await;
    app.set_level("real", 10).await;
    let mut first = Raw::recording_key(backend, &app.database_url).await;
    let sale = json!({"sku": "real"});
    for request in [
        app.deduct(0, "single-sql", &sale),
        app.deduct(0, "for-update", &sale),
        app.deduct(0, "optimistic", &sale),
        app.deduct(0, "group-commit", &sale),
        app.adjust(0, "real", &json!({"delta": 1, "reason": "x"})),
    ] {
        let refused = send_keyed(request, "K").await;
        assert_eq!(refused.status_and_code(), (409, "request-in-flight"));
    }

    first.run("ROLLBACK").await.expect("it can be rolled back");
    assert_first(&send_keyed(take(&app, 0, &sale), "K").await);
    assert_eq!(app.audit("real").await["on_hand"], 9);
}
