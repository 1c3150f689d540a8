//! Levels: created, set, adjusted, under preconditions and within their limits.

use reqwest::header::{ETAG, IF_MATCH, IF_NONE_MATCH};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::app::TestApp;
use crate::support::services::Backend;

async fn send(request: RequestBuilder) -> (u16, Value) {
    let response = request.send().await.expect("an answer");
    let status = response.status().as_u16();
    let text = response.text().await.expect("a body");
    (status, serde_json::from_str(&text).unwrap_or(Value::Null))
}

fn put(app: &TestApp, sku: &str, body: &Value) -> RequestBuilder {
    app.request(0, Method::PUT, &format!("/stock/{sku}"))
        .json(body)
}

fn adjust(app: &TestApp, sku: &str, body: &Value) -> RequestBuilder {
    let path = format!("/stock/{sku}/adjust");
    app.request(1, Method::POST, &path).json(body)
}

async fn etag(app: &TestApp, sku: &str) -> String {
    let response = app.get(&format!("/stock/{sku}")).await;
    let etag = response.headers()[ETAG].to_str();
    etag.expect("an ETag is ASCII").to_owned()
}

#[rstest::rstest]
#[tokio::test]
async fn a_level_is_created_and_then_set(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::start(backend).await;
    let (status, level) = send(put(&app, "a", &json!({"on_hand": 5}))).await;
    assert_eq!(status, 201, "{level}");
    let expected = json!({
        "sku": "a", "warehouse": "main", "on_hand": 5, "held": 0, "available": 5,
        "backorder_limit": 0, "version": 1, "home": "sql",
    });
    assert_eq!(level, expected);

    let body = json!({"on_hand": 3, "backorder_limit": 2, "reason": "stocktaking"});
    let (status, level) = send(put(&app, "a", &body)).await;
    assert_eq!((status, &level["version"]), (200, &json!(2)), "{level}");
    assert_eq!(level["available"], 5);

    let body = json!({"on_hand": 8, "warehouse": "north", "home": "sql"});
    let (status, _) = send(put(&app, "a", &body)).await;
    assert_eq!(status, 201);
    let (status, level) = send(put(&app, "a", &json!({"on_hand": 4}))).await;
    assert_eq!((status, &level["backorder_limit"]), (200, &json!(2)));

    let levels = app.get_json("/stock/a").await;
    assert_eq!(levels["warehouses"][0], level);
    assert_eq!(levels["warehouses"][1]["warehouse"], "north");
    let page = app.get_json("/stock/a/movements?warehouse=main").await;
    let movements = page["movements"].as_array().expect("a page").iter();
    let deltas: Vec<_> = movements.map(|movement| &movement["delta"]).collect();
    assert_eq!(deltas, [1, -2, 5]);
    app.stop().await;
}

#[rstest::rstest]
#[tokio::test]
async fn stock_may_be_sold_down_to_the_backorder_limit_and_no_further(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::start(backend).await;
    let below = json!({"on_hand": -4, "backorder_limit": 3});
    let (status, problem) = send(put(&app, "a", &below)).await;
    assert_eq!((status, &problem["code"]), (409, &json!("below-limit")));
    let body = json!({"on_hand": 2, "backorder_limit": 3});
    send(put(&app, "a", &body)).await;
    for strategy in ["single-sql", "for-update", "optimistic"] {
        let too_much = json!({"sku": "a", "quantity": 6});
        let (status, problem) = send(app.deduct(0, strategy, &too_much)).await;
        assert_eq!((status, &problem["available"]), (409, &json!(5)));
    }
    let (status, sold) =
        send(app.deduct(0, "single-sql", &json!({"sku": "a", "quantity": 4}))).await;
    assert_eq!((status, &sold["remaining"]), (200, &json!(1)), "{sold}");
    let audit = app.audit("a").await;
    assert_eq!(
        (&audit["on_hand"], &audit["oversold"]),
        (&json!(-2), &json!(0))
    );
    assert_eq!(audit["consistent"], true);

    // The limit cannot be taken away from under what is sold already.
    let body = json!({"on_hand": -2, "backorder_limit": 1});
    let (status, problem) = send(put(&app, "a", &body)).await;
    assert_eq!((status, &problem["code"]), (409, &json!("below-limit")));
    app.stop().await;
}

#[rstest::rstest]
#[tokio::test]
async fn preconditions_are_honoured(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::start(backend).await;
    let body = json!({"on_hand": 5});
    let failed = (412, json!("precondition-failed"));
    let outcome = async |header, value: &str| {
        let (status, answer) = send(put(&app, "a", &body).header(header, value)).await;
        (status, answer["code"].clone())
    };
    assert_eq!(outcome(IF_MATCH, "*").await, failed);
    assert_eq!(outcome(IF_MATCH, "\"0000000000000000\"").await, failed);
    assert_eq!(outcome(IF_NONE_MATCH, "*").await, (201, Value::Null));
    assert_eq!(outcome(IF_NONE_MATCH, "*").await, failed);
    assert_eq!(outcome(IF_MATCH, "*").await, (200, Value::Null));

    let right = etag(&app, "a").await;
    assert_eq!(outcome(IF_MATCH, &right).await, (200, Value::Null));
    assert_eq!(outcome(IF_MATCH, &right).await, failed);
    let one_of = format!("\"stale\", {}", etag(&app, "a").await);
    assert_eq!(outcome(IF_MATCH, &one_of).await, (200, Value::Null));

    let seen = etag(&app, "a").await;
    let (status, _) = send(app.deduct(1, "single-sql", &json!({"sku": "a"}))).await;
    assert_eq!(status, 200);
    assert_eq!(outcome(IF_MATCH, &seen).await, failed);
    assert_eq!(outcome(IF_MATCH, "W/\"stale\"").await, failed);
    for nonsense in ["", "naked", "\"half"] {
        assert_eq!(outcome(IF_MATCH, nonsense).await.0, 422, "{nonsense}");
    }
    assert_eq!(app.audit("a").await["on_hand"], 4);
    app.stop().await;
}

/// Tags that a proxy has made weak, and lists that it has split, mean what they meant before.
#[tokio::test]
async fn a_precondition_survives_a_proxy() {
    let app = TestApp::with_flags(Backend::Sqlite, 1, &[]).await;
    app.set_level("a", 1).await;
    let body = json!({"on_hand": 5});
    let weak = format!("W/{}", etag(&app, "a").await);
    let request = put(&app, "a", &body).header(IF_MATCH, weak);
    assert_eq!(send(request).await.0, 200);
    let request = put(&app, "a", &body).header(IF_MATCH, "\"stale\"");
    let request = request.header(IF_MATCH, etag(&app, "a").await);
    assert_eq!(send(request).await.0, 200);
    app.stop().await;
}

#[rstest::rstest]
#[tokio::test]
async fn a_change_tells_the_tag_for_the_next_one(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::start(backend).await;
    app.set_level("a", 1).await;
    let mut tag = etag(&app, "a").await;
    for (warehouse, status) in [("main", 200), ("north", 201), ("north", 200)] {
        let body = json!({"on_hand": 5, "warehouse": warehouse});
        let request = put(&app, "a", &body).header(IF_MATCH, &tag);
        let response = request.send().await.expect("an answer");
        assert_eq!(response.status(), status);
        let told = response.headers()[ETAG].to_str();
        told.expect("an ETag is ASCII").clone_into(&mut tag);
        assert_eq!(tag, etag(&app, "a").await);
    }
    app.stop().await;
}

#[rstest::rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_who_saw_the_same_one_may_write(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::start(backend).await;
    app.set_level("a", 1).await;
    let seen = etag(&app, "a").await;
    let race = async |header, value: &str, sku: &str| {
        let mut writers = JoinSet::new();
        for number in 0..12 {
            let request = app.request(number, Method::PUT, &format!("/stock/{sku}"));
            let body = json!({"on_hand": 100 + number});
            writers.spawn(send(request.json(&body).header(&header, value)));
        }
        let mut statuses: Vec<_> = writers.join_all().await.iter().map(|it| it.0).collect();
        statuses.sort_unstable();
        statuses
    };
    let mut expected = vec![412; 12];
    expected[0] = 200;
    assert_eq!(race(IF_MATCH, &seen, "a").await, expected);
    expected[0] = 201;
    assert_eq!(race(IF_NONE_MATCH, "*", "b").await, expected);
    for sku in ["a", "b"] {
        assert_eq!(app.audit(sku).await["consistent"], true, "{sku}");
    }
    app.stop().await;
}

#[tokio::test]
async fn who_has_the_current_state_is_told_so() {
    let app = TestApp::with_flags(Backend::Sqlite, 1, &[]).await;
    app.set_level("a", 1).await;
    let current = etag(&app, "a").await;
    let ask = async |seen: String| {
        let request = app.request(0, Method::GET, "/stock/a");
        let response = request.header(IF_NONE_MATCH, seen).send().await;
        let response = response.expect("an answer");
        assert_eq!(response.headers()[ETAG], current);
        response.status().as_u16()
    };
    for seen in [
        current.clone(),
        format!("\"stale\", {current}"),
        format!("W/{current}"), // What a proxy that compresses makes of it.
        "*".to_owned(),
    ] {
        assert_eq!(ask(seen.clone()).await, 304, "{seen}");
    }
    assert_eq!(ask("\"stale\"".to_owned()).await, 200);
    app.set_level("a", 1).await;
    assert_ne!(etag(&app, "a").await, current);
    app.stop().await;
}

#[rstest::rstest]
#[tokio::test]
async fn adjustments_add_and_take_within_the_limit(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::start(backend).await;
    app.set_level("a", 5).await;
    let (status, answer) = send(adjust(
        &app,
        "a",
        &json!({"delta": 7, "reason": "delivery"}),
    ))
    .await;
    assert_eq!(
        (status, &answer["remaining"]),
        (200, &json!(12)),
        "{answer}"
    );
    let theft = json!({"delta": -13, "reason": "theft"});
    let (status, problem) = send(adjust(&app, "a", &theft)).await;
    assert_eq!(
        (status, &problem["code"]),
        (409, &json!("insufficient-stock"))
    );
    assert_eq!(
        (&problem["requested"], &problem["available"]),
        (&json!(13), &json!(12))
    );
    let theft = json!({"delta": -12, "reason": "theft"});
    let (status, answer) = send(adjust(&app, "a", &theft)).await;
    assert_eq!((status, &answer["remaining"]), (200, &json!(0)), "{answer}");
    app.stop().await;
}

/// 10 received, 4 added, 2 lost, 3 sold.
#[rstest::rstest]
#[tokio::test]
async fn the_audit_adds_up(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::start(backend).await;
    app.set_level("a", 10).await;
    send(put(&app, "a", &json!({"on_hand": 7, "warehouse": "north"}))).await;
    for delta in [4, -2] {
        send(adjust(&app, "a", &json!({"delta": delta, "reason": "x"}))).await;
    }
    for quantity in [1, 2] {
        let body = json!({"sku": "a", "quantity": quantity});
        send(app.deduct(0, "optimistic", &body)).await;
    }
    let expected = json!({"sku": "a", "warehouses": [
        {"warehouse": "main", "received": 12, "sold": 3, "on_hand": 9, "held": 0, "drift": 0,
         "oversold": 0, "pending": 0, "consistent": true},
        {"warehouse": "north", "received": 7, "sold": 0, "on_hand": 7, "held": 0, "drift": 0,
         "oversold": 0, "pending": 0, "consistent": true},
    ]});
    assert_eq!(app.get_json("/stock/a/audit").await, expected);
    app.stop().await;
}
