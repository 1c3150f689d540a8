//! Levels: created, set and adjusted, with preconditions and within their limits.

use std::cell::Cell;

use reqwest::header::{HeaderName, IF_MATCH, IF_NONE_MATCH};
use rstest::rstest;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::app::{TestApp, send};
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

async fn etag(app: &TestApp, sku: &str) -> String {
    let answer = app.get(&format!("/stock/{sku}")).await;
    answer.header("etag").to_owned()
}

#[rstest]
#[tokio::test]
async fn level_is_created_and_then_set(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let app = TestApp::start(backend).await;
    let created = call!(app, PUT "/stock/a", {"on_hand": 5} => 201);
    let expected = json!({
        "sku": "a", "warehouse": "main", "on_hand": 5, "held": 0, "available": 5,
        "backorder_limit": 0, "version": 1,
    });
    assert_eq!(created.body, expected);
    call!(app, PUT "/stock/a", {"on_hand": 3, "backorder_limit": 2, "reason": "stocktaking"}
        => 200, {"version": 2, "available": 5});
    call!(app, PUT "/stock/a", {"on_hand": 8, "warehouse": "north"} => 201);
    let set =
        call!(app, PUT "/stock/a", if_match "*", {"on_hand": 4} => 200, {"backorder_limit": 2});
    call!(app, GET "/stock/a" => 200, {"/warehouses/0": set.body, "/warehouses/1/warehouse": "north"});
    let page = app.get("/stock/a/movements?warehouse=main").await;
    let expected = [
        json!(["received", 1, null]),
        json!(["adjusted", -2, "stocktaking"]),
        json!(["received", 5, null]),
    ];
    let found = page.rows("movements", &["kind", "delta", "reason"]);
    assert_eq!(found, expected);
}

#[rstest]
#[tokio::test]
async fn backorders_are_sold_down_to_the_limit(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let app = TestApp::start(backend).await;
    call!(app, PUT "/stock/a", {"on_hand": -4, "backorder_limit": 3} => 409 "below-limit");
    call!(app, PUT "/stock/a", {"on_hand": 2, "backorder_limit": 3} => 201);
    for strategy in ["single-sql", "for-update", "optimistic", "group-commit"] {
        call!(app, POST "/stock/deduct?strategy={strategy}", {"sku": "a", "quantity": 6}
            => 409 "insufficient-stock", {"available": 5});
    }
    call!(app, POST "/stock/deduct?strategy=single-sql", {"sku": "a", "quantity": 4} => 200, {"remaining": 1});
    let audit = app.assert_consistent("a").await;
    assert_eq!([&audit["on_hand"], &audit["oversold"]], [-2, 0]);

    // The limit cannot be set below what is already sold.
    call!(app, PUT "/stock/a", {"backorder_limit": 1} => 409 "below-limit");
}

#[rstest]
#[tokio::test]
async fn preconditions_are_honoured(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let app = TestApp::start(backend).await;
    let failed = (412, json!("precondition-failed"));
    let set = (200, Value::Null);
    let units = Cell::new(0);
    let outcome = async |header, value: &str| {
        units.set(units.get() + 1);
        let body = json!({"on_hand": units.get()});
        let answer = send(app.put(0, "a", &body).header(header, value)).await;
        (answer.status, answer.body["code"].clone())
    };
    assert_eq!(outcome(IF_MATCH, "*").await, failed);
    assert_eq!(outcome(IF_MATCH, "\"0000000000000000\"").await, failed);
    assert_eq!(outcome(IF_NONE_MATCH, "*").await, (201, Value::Null));
    assert_eq!(outcome(IF_NONE_MATCH, "*").await, failed);
    assert_eq!(outcome(IF_MATCH, "*").await, set);
    // It cannot be there and not be there.
    for sku in ["a", "b"] {
        call!(app, PUT "/stock/{sku}", if_match "*", if_none_match "*", {"on_hand": 1} => 412 "precondition-failed");
    }

    let current = etag(&app, "a").await;
    assert_eq!(outcome(IF_MATCH, &current).await, set);
    assert_eq!(outcome(IF_MATCH, &current).await, failed);
    let one_of = format!("\"stale\", {}", etag(&app, "a").await);
    assert_eq!(outcome(IF_MATCH, &one_of).await, set);
    // A proxy may make tags weak, or split a list over several header lines.
    let weak = format!("W/{}", etag(&app, "a").await);
    assert_eq!(outcome(IF_MATCH, &weak).await, set);
    let split = app.put(0, "a", &json!({"on_hand": 50}));
    let split = split.header(IF_MATCH, "\"stale\"");
    let split = split.header(IF_MATCH, etag(&app, "a").await);
    send(split).await.ok();

    let before_sale = etag(&app, "a").await;
    let before = app.audit("a").await["on_hand"].as_i64();
    call!(app, 1 POST "/stock/deduct?strategy=single-sql", {"sku": "a"} => 200);
    assert_eq!(outcome(IF_MATCH, &before_sale).await, failed);
    assert_eq!(outcome(IF_MATCH, "W/\"stale\"").await, failed);
    for invalid in ["", "naked", "\"half"] {
        assert_eq!(outcome(IF_MATCH, invalid).await.0, 422, "{invalid}");
    }
    let after = app.audit("a").await["on_hand"].as_i64();
    assert_eq!(after, before.map(|units| units - 1));
}

/// The seller read seven units, three were sold, and the seller changes only the limit.
#[rstest]
#[tokio::test]
async fn new_limit_brings_no_sold_unit_back(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let app = TestApp::with_stock(backend, 2, "a", 7).await;
    let read = etag(&app, "a").await;
    call!(app, 1 POST "/stock/deduct?strategy=single-sql", {"sku": "a", "quantity": 3} => 200);
    let blind = json!({"on_hand": 7, "backorder_limit": 2});
    call!(app, PUT "/stock/a", (blind) => 428 "precondition-required");
    call!(app, PUT "/stock/a", if_match read, (blind) => 412 "precondition-failed");

    // The next ETag is that of both warehouses.
    call!(app, PUT "/stock/a", {"on_hand": 5, "warehouse": "north"} => 201);
    let limit = json!({"backorder_limit": 2});
    let set = call!(app, PUT "/stock/a", (limit) => 200, {"on_hand": 4, "available": 6});
    let audit = app.audit("a").await;
    assert_eq!([&audit["received"], &audit["sold"]], [7, 3]);
    call!(app, PUT "/stock/a", if_match set.header("etag"), {"on_hand": 9} => 200);

    let refused = call!(app, PUT "/stock/new", (limit) => 404 "unknown-sku");
    assert!(refused.detail.contains("on_hand"), "{refused:?}");
}

#[rstest]
#[tokio::test]
async fn put_without_a_change_keeps_the_etag(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let app = TestApp::with_stock(backend, 2, "a", 7).await;
    let before = etag(&app, "a").await;
    for body in [
        json!({"on_hand": 7, "backorder_limit": 0, "reason": "count"}),
        json!({}),
    ] {
        let set = call!(app, PUT "/stock/a", (body) => 200, {"version": 1});
        assert_eq!(set.header("etag"), before);
    }
    let page = app.get("/stock/a/movements").await;
    assert_eq!(page.rows("movements", &[]).len(), 1);
}

#[rstest]
#[tokio::test]
async fn etag_of_one_warehouse_covers_only_its_level(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let app = TestApp::start(backend).await;
    for warehouse in ["main", "north"] {
        let body = json!({"on_hand": 1, "warehouse": warehouse});
        call!(app, PUT "/stock/a", if_match "*", (body) => 412 "precondition-failed");
        call!(app, PUT "/stock/a", if_none_match "*", (body) => 201);
        call!(app, PUT "/stock/a", if_none_match "*", (body) => 412 "precondition-failed");
    }
    let read = app.get("/stock/a?warehouse=main").await;
    let mut tag = read.header("etag").to_owned();
    assert_eq!(read.rows("warehouses", &[]).len(), 1);
    for on_hand in [2, 3] {
        // A change of the other warehouse does not matter.
        call!(app, PUT "/stock/a", if_match "*", {"on_hand": on_hand, "warehouse": "north"} => 200);
        let set = call!(app, PUT "/stock/a", if_match &tag, {"on_hand": on_hand, "warehouse": "main"} => 200);
        call!(app, PUT "/stock/a", if_match &tag, {"on_hand": 9, "warehouse": "main"} => 412 "precondition-failed");
        set.header("etag").clone_into(&mut tag);
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_conditional_puts_wins(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let app = TestApp::with_stock(backend, 2, "a", 1).await;
    let current = etag(&app, "a").await;
    let race = async |header: HeaderName, value: &str, sku: &str| {
        let mut writers = JoinSet::new();
        for number in 0..12 {
            let request = app.put(number, sku, &json!({"on_hand": 100 + number}));
            writers.spawn(send(request.header(&header, value)));
        }
        let mut statuses: Vec<_> = writers
            .join_all()
            .await
            .iter()
            .map(|it| it.status)
            .collect();
        statuses.sort_unstable();
        statuses
    };
    let mut expected = vec![412; 12];
    expected[0] = 200;
    assert_eq!(race(IF_MATCH, &current, "a").await, expected);
    expected[0] = 201;
    assert_eq!(race(IF_NONE_MATCH, "*", "b").await, expected);
    for sku in ["a", "b"] {
        app.assert_consistent(sku).await;
    }
}

#[tokio::test]
async fn get_with_the_current_etag_answers_304() {
    let app = TestApp::with_stock(Sqlite, 1, "a", 1).await;
    let current = etag(&app, "a").await;
    for tags in [
        current.clone(),
        format!("\"stale\", {current}"),
        format!("W/{current}"), // A proxy that compresses weakens the tag.
        "*".to_owned(),
    ] {
        let answer = call!(app, GET "/stock/a", if_none_match tags => 304);
        assert_eq!(answer.header("etag"), current);
    }
    let changed = call!(app, GET "/stock/a", if_none_match "\"stale\"" => 200);
    assert_eq!(changed.header("etag"), current);
    app.set_level("a", 2).await;
    assert_ne!(etag(&app, "a").await, current);
}

/// 10 received, 4 added, 2 lost, 3 sold.
#[rstest]
#[tokio::test]
async fn audit_adds_up(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let app = TestApp::with_stock(backend, 2, "a", 10).await;
    call!(app, PUT "/stock/a", {"on_hand": 7, "warehouse": "north"} => 201);
    for delta in [4, -2] {
        call!(app, 1 POST "/stock/a/adjust", {"delta": delta, "reason": "x"} => 200);
    }
    for quantity in [1, 2] {
        call!(app, POST "/stock/deduct?strategy=optimistic", {"sku": "a", "quantity": quantity} => 200);
    }
    let expected = json!({"sku": "a", "warehouses": [
        {"warehouse": "main", "received": 12, "sold": 3, "on_hand": 9, "held": 0, "drift": 0,
         "held_drift": 0, "oversold": 0, "consistent": true},
        {"warehouse": "north", "received": 7, "sold": 0, "on_hand": 7, "held": 0, "drift": 0,
         "held_drift": 0, "oversold": 0, "consistent": true},
    ]});
    assert_eq!(app.get_json("/stock/a/audit").await, expected);
}
