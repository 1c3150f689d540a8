//! Idempotency: a key names one request, and whoever repeats it is answered what was answered
//! first; whatever the database, the replica, the strategy, or the form in which it comes.

use std::collections::BTreeSet;

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::app::TestApp;
use crate::support::rival::Rival;
use crate::support::services::Backend;

/// An answer, as far as it matters here.
#[derive(Debug, Clone, PartialEq)]
struct Answer {
    status: u16,
    body: Value,
    replayed: bool,
}

async fn send(request: RequestBuilder, key: &str) -> Answer {
    let response = request.header("Idempotency-Key", key).send().await;
    let response = response.expect("an answer");
    let replayed = response.headers().get("Idempotent-Replayed");
    Answer {
        status: response.status().as_u16(),
        replayed: replayed.is_some_and(|value| value == "true"),
        body: response.json().await.expect("its body is JSON"),
    }
}

fn take(app: &TestApp, replica: usize, body: &Value) -> RequestBuilder {
    app.deduct(replica, "single-sql", body)
}

/// The sales in the ledger.
async fn sales(app: &TestApp, sku: &str) -> usize {
    let path = format!("/stock/{sku}/movements?kind=deducted&limit=1000");
    let page = app.get_json(&path).await;
    page["movements"].as_array().expect("a page").len()
}

#[rstest::rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_requests_with_one_key_over_two_replicas_take_once(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
    #[values("single-sql", "for-update", "optimistic")] strategy: &str,
) {
    let app = TestApp::start(backend).await;
    app.set_level("hot", 50).await;
    let mut requests = JoinSet::new();
    for number in 0..100 {
        let body = json!({"sku": "hot", "quantity": 2});
        requests.spawn(send(app.deduct(number, strategy, &body), "once"));
    }
    let answers = requests.join_all().await;
    let bodies: BTreeSet<_> = answers.iter().map(|it| it.body.to_string()).collect();
    assert_eq!(bodies.len(), 1, "{bodies:?}");
    assert!(answers.iter().all(|it| it.status == 200), "{bodies:?}");
    assert_eq!(answers.iter().filter(|it| it.replayed).count(), 99);
    assert_eq!(sales(&app, "hot").await, 1);
    assert_eq!(app.audit("hot").await["on_hand"], 48);
    app.stop().await;
}

#[rstest::rstest]
#[tokio::test]
async fn a_key_answers_for_the_same_request_in_any_form_and_for_no_other(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::start(backend).await;
    app.set_level("real", 10).await;
    let first = send(take(&app, 0, &json!({"sku": "real"})), "key").await;
    assert_eq!((first.status, first.replayed), (200, false), "{first:?}");
    let again = Answer {
        replayed: true,
        ..first
    };

    let spelled_out = json!({"quantity": 1, "warehouse": "main", "sku": "real"});
    assert_eq!(send(take(&app, 1, &spelled_out), "key").await, again);
    let other_strategy = app.deduct(1, "for-update", &spelled_out);
    assert_eq!(send(other_strategy, "key").await, again);
    let query = "/stock/deduct?sku=real&quantity=1";
    let by_query = app.request(0, Method::POST, query);
    assert_eq!(send(by_query, "key").await, again);

    app.set_level("other", 10).await;
    for other in [
        json!({"sku": "real", "quantity": 2}),
        json!({"sku": "other"}),
    ] {
        let refused = send(take(&app, 0, &other), "key").await;
        assert_eq!(refused.status, 422, "{refused:?}");
        assert_eq!(refused.body["code"], "idempotency-key-reused");
    }
    assert_eq!(app.audit("real").await["on_hand"], 9);
    assert_eq!(app.audit("other").await["on_hand"], 10);
    app.stop().await;
}

#[rstest::rstest]
#[tokio::test]
async fn keys_and_skus_that_differ_only_in_case_are_different(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::start(backend).await;
    for (sku, on_hand) in [("shirt", 10), ("Shirt", 20), ("SHIRT", 30)] {
        app.set_level(sku, on_hand).await;
    }
    for key in ["order-a", "order-A", "ORDER-A"] {
        let answer = send(take(&app, 0, &json!({"sku": "shirt"})), key).await;
        assert_eq!((answer.status, answer.replayed), (200, false), "{answer:?}");
    }
    for (sku, on_hand) in [("shirt", 7), ("Shirt", 20), ("SHIRT", 30)] {
        assert_eq!(app.audit(sku).await["on_hand"], on_hand, "{sku}");
    }
    app.stop().await;
}

#[rstest::rstest]
#[tokio::test]
async fn a_repeat_is_answered_when_everything_is_sold(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
    #[values("no-lock", "local-mutex", "single-sql", "for-update", "optimistic")] strategy: &str,
) {
    let app = TestApp::start(backend).await;
    app.set_level("last", 1).await;
    let body = json!({"sku": "last"});
    let first = send(app.deduct(0, strategy, &body), "mine").await;
    assert_eq!(first.status, 200, "{first:?}");
    let late = send(app.deduct(0, strategy, &body), "yours").await;
    assert_eq!(late.body["code"], "insufficient-stock", "{late:?}");
    let again = send(app.deduct(1, strategy, &body), "mine").await;
    assert_eq!((again.status, &again.body), (200, &first.body), "{again:?}");
    assert!(again.replayed);
    app.stop().await;
}

#[rstest::rstest]
#[tokio::test]
async fn a_refusal_is_not_remembered(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::start(backend).await;
    app.set_level("gone", 0).await;
    let body = json!({"sku": "gone", "quantity": 3});
    let refused = send(take(&app, 0, &body), "patient").await;
    assert_eq!((refused.status, refused.replayed), (409, false));
    assert_eq!(refused.body["code"], "insufficient-stock");
    assert_eq!(refused.body["requested"], 3);
    assert_eq!(refused.body["available"], 0);
    app.set_level("gone", 5).await;
    let taken = send(take(&app, 1, &body), "patient").await;
    assert_eq!((taken.status, taken.replayed), (200, false), "{taken:?}");
    assert_eq!(taken.body["remaining"], 2);
    app.stop().await;
}

#[rstest::rstest]
#[tokio::test]
async fn an_adjustment_is_repeated_by_its_key_as_well(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::start(backend).await;
    app.set_level("real", 10).await;
    let adjust = |replica, body: Value| {
        app.request(replica, Method::POST, "/stock/real/adjust")
            .json(&body)
    };
    let delivery = json!({"delta": 5, "reason": "delivery", "reference": "PO-1"});
    let first = send(adjust(0, delivery.clone()), "PO-1").await;
    assert_eq!((first.status, first.replayed), (200, false), "{first:?}");
    assert_eq!(first.body["remaining"], 15);
    let again = send(adjust(1, delivery), "PO-1").await;
    assert_eq!((&again.body, again.replayed), (&first.body, true));

    let shrinkage = json!({"delta": -15, "reason": "theft"});
    let emptied = send(adjust(0, shrinkage.clone()), "theft").await;
    assert_eq!(emptied.body["remaining"], 0, "{emptied:?}");
    let again = send(adjust(1, shrinkage), "theft").await;
    assert_eq!((&again.body, again.replayed), (&emptied.body, true));

    for other in [
        json!({"delta": 6, "reason": "delivery", "reference": "PO-1"}),
        json!({"delta": 5, "reason": "gift", "reference": "PO-1"}),
        json!({"delta": 5, "reason": "delivery"}),
    ] {
        let refused = send(adjust(0, other), "PO-1").await;
        assert_eq!(
            refused.body["code"], "idempotency-key-reused",
            "{refused:?}"
        );
    }
    app.set_level("real", 9).await;
    let a_sale = send(take(&app, 0, &json!({"sku": "real"})), "PO-1").await;
    assert_eq!(a_sale.body["code"], "idempotency-key-reused", "{a_sale:?}");
    assert_eq!(app.audit("real").await["consistent"], true);
    app.stop().await;
}

#[tokio::test]
async fn adjustments_in_parallel_under_one_key_add_once() {
    let app = TestApp::start(Backend::Postgres).await;
    app.set_level("real", 10).await;
    let mut requests = JoinSet::new();
    for number in 0..30 {
        let request = app.request(number, Method::POST, "/stock/real/adjust");
        let body = json!({"delta": 5, "reason": "delivery"});
        requests.spawn(send(request.json(&body), "PO-1"));
    }
    let answers = requests.join_all().await;
    assert!(
        answers.iter().all(|it| it.body == answers[0].body),
        "{answers:?}"
    );
    assert_eq!(answers.iter().filter(|it| it.replayed).count(), 29);
    assert_eq!(app.audit("real").await["on_hand"], 15);
    app.stop().await;
}

/// The first request with the key is still open: its transaction is played by a test.
#[rstest::rstest]
#[tokio::test]
async fn a_key_whose_first_request_is_still_running_is_in_flight(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let recording = match backend {
        Backend::Postgres => {
            "INSERT INTO movement (operation_id, line, sku, warehouse, kind, delta,
                available_after, durability, caller, idempotency_key)
             VALUES ('0123456789abcdef0123456789abcdef', 0, 'other', 'main', 'deducted', -1, 1,
                'committed', 'anonymous', 'running')"
        }
        Backend::Sqlite | Backend::Mysql => {
            "INSERT INTO movement (operation_id, line, sku, warehouse, kind, delta,
                available_after, durability, caller, idempotency_key)
             VALUES ('0123456789abcdef', 0, 'other', 'main', 'deducted', -1, 1,
                'committed', 'anonymous', 'running')"
        }
    };
    let app = TestApp::with_flags(backend, 1, &["--wait-limit-ms=1000"]).await;
    app.set_level("real", 10).await;
    let rival = Rival::holding(backend, &app.database_url, recording).await;
    for strategy in ["single-sql", "for-update", "optimistic"] {
        let body = json!({"sku": "real"});
        let refused = send(app.deduct(0, strategy, &body), "running").await;
        assert_eq!(refused.status, 409, "{strategy}: {refused:?}");
        assert_eq!(refused.body["code"], "request-in-flight");
    }
    let body = json!({"delta": 1, "reason": "x"});
    let adjust = app
        .request(0, Method::POST, "/stock/real/adjust")
        .json(&body);
    let refused = send(adjust, "running").await;
    assert_eq!(refused.body["code"], "request-in-flight", "{refused:?}");

    rival.let_go().await;
    let taken = send(take(&app, 0, &json!({"sku": "real"})), "running").await;
    assert_eq!((taken.status, taken.replayed), (200, false), "{taken:?}");
    assert_eq!(app.audit("real").await["on_hand"], 9);
    app.stop().await;
}
