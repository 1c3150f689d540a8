//! Levels: created, set and adjusted, with preconditions and within their limits.

use std::cell::Cell;

use reqwest::Method;
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
    let created = send(app.put(0, "a", &json!({"on_hand": 5}))).await;
    assert_eq!(created.status, 201, "{created:?}");
    let expected = json!({
        "sku": "a", "warehouse": "main", "on_hand": 5, "held": 0, "available": 5,
        "backorder_limit": 0, "version": 1,
    });
    assert_eq!(created.body, expected);

    let body = json!({"on_hand": 3, "backorder_limit": 2, "reason": "stocktaking"});
    let set = send(app.put(0, "a", &body)).await;
    assert_eq!(set.ok()["version"], 2);
    assert_eq!(set.body["available"], 5);

    let body = json!({"on_hand": 8, "warehouse": "north"});
    assert_eq!(send(app.put(0, "a", &body)).await.status, 201);
    let put = app.put(0, "a", &json!({"on_hand": 4}));
    let set = send(put.header(IF_MATCH, "*")).await;
    assert_eq!(set.ok()["backorder_limit"], 2);

    let levels = app.get_json("/stock/a").await;
    assert_eq!(levels["warehouses"][0], set.body);
    assert_eq!(levels["warehouses"][1]["warehouse"], "north");
    let page = app.get_json("/stock/a/movements?warehouse=main").await;
    let movements = page["movements"].as_array().expect("a page").iter();
    let changes = movements.map(|one| json!([one["kind"], one["delta"], one["reason"]]));
    let expected = json!([
        ["received", 1, null],
        ["adjusted", -2, "stocktaking"],
        ["received", 5, null]
    ]);
    assert_eq!(changes.collect::<Value>(), expected);
}

#[rstest]
#[tokio::test]
async fn backorders_are_sold_down_to_the_limit(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let app = TestApp::start(backend).await;
    let below_limit = json!({"on_hand": -4, "backorder_limit": 3});
    let refused = send(app.put(0, "a", &below_limit)).await;
    assert_eq!(refused.status_and_code(), (409, "below-limit"));
    send(app.put(0, "a", &json!({"on_hand": 2, "backorder_limit": 3}))).await;
    for strategy in ["single-sql", "for-update", "optimistic", "group-commit"] {
        let too_much = json!({"sku": "a", "quantity": 6});
        let refused = send(app.deduct(0, strategy, &too_much)).await;
        assert_eq!(refused.status, 409, "{refused:?}");
        assert_eq!(refused.body["available"], 5);
    }
    let sale = app.deduct(0, "single-sql", &json!({"sku": "a", "quantity": 4}));
    assert_eq!(send(sale).await.ok()["remaining"], 1);
    let audit = app.audit("a").await;
    assert_eq!(audit["on_hand"], -2);
    assert_eq!(audit["oversold"], 0);
    assert_eq!(audit["consistent"], true);

    // The limit cannot be set below what is already sold.
    let lower_limit = json!({"backorder_limit": 1});
    let refused = send(app.put(0, "a", &lower_limit)).await;
    assert_eq!(refused.status_and_code(), (409, "below-limit"));
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
        let put = app.put(0, sku, &json!({"on_hand": 1}));
        let both = send(put.header(IF_MATCH, "*").header(IF_NONE_MATCH, "*")).await;
        assert_eq!(both.status_and_code(), (412, "precondition-failed"));
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
    let sale = app.deduct(1, "single-sql", &json!({"sku": "a"}));
    send(sale).await.ok();
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
    let sale = app.deduct(1, "single-sql", &json!({"sku": "a", "quantity": 3}));
    send(sale).await.ok();
    let blind = json!({"on_hand": 7, "backorder_limit": 2});
    let refused = send(app.put(0, "a", &blind)).await;
    assert_eq!(refused.status_and_code(), (428, "precondition-required"));
    let refused = send(app.put(0, "a", &blind).header(IF_MATCH, read)).await;
    assert_eq!(refused.status_and_code(), (412, "precondition-failed"));

    let limit = json!({"backorder_limit": 2});
    let set = send(app.put(0, "a", &limit)).await;
    let units = (&set.ok()["on_hand"], &set.body["available"]);
    assert_eq!(units, (&json!(4), &json!(6)));
    let audit = app.audit("a").await;
    assert_eq!((&audit["received"], &audit["sold"]), (&json!(7), &json!(3)));
    let known = app.put(0, "a", &json!({"on_hand": 9}));
    send(known.header(IF_MATCH, set.header("etag"))).await.ok();

    let refused = send(app.put(0, "new", &limit)).await;
    assert_eq!(refused.status_and_code(), (404, "unknown-sku"));
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
        let set = send(app.put(0, "a", &body)).await;
        assert_eq!(
            (&set.ok()["version"], set.header("etag")),
            (&json!(1), &*before)
        );
    }
    let page = app.get_json("/stock/a/movements").await;
    assert_eq!(page["movements"].as_array().map(Vec::len), Some(1));
}

#[rstest]
#[tokio::test]
async fn put_answers_the_etag_for_the_next(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let app = TestApp::with_stock(backend, 2, "a", 1).await;
    let north = json!({"on_hand": 5, "warehouse": "north"});
    assert_eq!(send(app.put(0, "a", &north)).await.status, 201);
    let mut tag = etag(&app, "a").await;
    for on_hand in [2, 3] {
        let put = app.put(0, "a", &json!({"on_hand": on_hand}));
        let set = send(put.header(IF_MATCH, &tag)).await;
        set.ok();
        set.header("etag").clone_into(&mut tag);
        assert_eq!(tag, etag(&app, "a").await);
    }
}

#[rstest]
#[tokio::test]
async fn etag_of_one_warehouse_covers_only_its_level(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let app = TestApp::start(backend).await;
    let body = |warehouse, on_hand| json!({"on_hand": on_hand, "warehouse": warehouse});
    for warehouse in ["main", "north"] {
        let put = || app.put(0, "a", &body(warehouse, 1));
        let create = || put().header(IF_NONE_MATCH, "*");
        for (put, status) in [
            (put().header(IF_MATCH, "*"), 412),
            (create(), 201),
            (create(), 412),
        ] {
            assert_eq!(send(put).await.status, status, "{warehouse}");
        }
    }
    let read = app.get("/stock/a?warehouse=main").await;
    let mut tag = read.header("etag").to_owned();
    assert_eq!(read.ok()["warehouses"].as_array().map(Vec::len), Some(1));
    for on_hand in [2, 3] {
        // A change of the other warehouse does not matter.
        let other = app.put(0, "a", &body("north", on_hand));
        send(other.header(IF_MATCH, "*")).await.ok();
        let put = |units| app.put(0, "a", &body("main", units)).header(IF_MATCH, &tag);
        let set = send(put(on_hand)).await;
        set.ok();
        let refused = send(put(9)).await;
        assert_eq!(refused.status_and_code(), (412, "precondition-failed"));
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
        assert_eq!(app.audit(sku).await["consistent"], true, "{sku}");
    }
}

#[tokio::test]
async fn get_with_the_current_etag_answers_304() {
    let app = TestApp::with_stock(Sqlite, 1, "a", 1).await;
    let current = etag(&app, "a").await;
    for (tags, status) in [
        (current.clone(), 304),
        (format!("\"stale\", {current}"), 304),
        (format!("W/{current}"), 304), // A proxy that compresses weakens the tag.
        ("*".to_owned(), 304),
        ("\"stale\"".to_owned(), 200),
    ] {
        let request = app.request(0, Method::GET, "/stock/a");
        let answer = send(request.header(IF_NONE_MATCH, &tags)).await;
        assert_eq!(answer.header("etag"), current);
        assert_eq!(answer.status, status, "{tags}");
    }
    app.set_level("a", 2).await;
    assert_ne!(etag(&app, "a").await, current);
}

#[rstest]
#[tokio::test]
async fn adjustment_below_limit_is_refused(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let app = TestApp::with_stock(backend, 2, "a", 5).await;
    let adjust = async |delta, reason| {
        let body = json!({"delta": delta, "reason": reason});
        send(app.adjust(1, "a", &body)).await
    };
    assert_eq!(adjust(7, "delivery").await.ok()["remaining"], 12);
    let refused = adjust(-13, "theft").await;
    assert_eq!(refused.status_and_code(), (409, "insufficient-stock"));
    assert_eq!(refused.body["requested"], 13);
    assert_eq!(refused.body["available"], 12);
    assert_eq!(adjust(-12, "theft").await.ok()["remaining"], 0);
}

/// 10 received, 4 added, 2 lost, 3 sold.
#[rstest]
#[tokio::test]
async fn audit_adds_up(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let app = TestApp::with_stock(backend, 2, "a", 10).await;
    send(app.put(0, "a", &json!({"on_hand": 7, "warehouse": "north"}))).await;
    for delta in [4, -2] {
        send(app.adjust(1, "a", &json!({"delta": delta, "reason": "x"}))).await;
    }
    for quantity in [1, 2] {
        let body = json!({"sku": "a", "quantity": quantity});
        send(app.deduct(0, "optimistic", &body)).await;
    }
    let expected = json!({"sku": "a", "warehouses": [
        {"warehouse": "main", "received": 12, "sold": 3, "on_hand": 9, "held": 0, "drift": 0,
         "held_drift": 0, "oversold": 0, "consistent": true},
        {"warehouse": "north", "received": 7, "sold": 0, "on_hand": 7, "held": 0, "drift": 0,
         "held_drift": 0, "oversold": 0, "consistent": true},
    ]});
    assert_eq!(app.get_json("/stock/a/audit").await, expected);
}
