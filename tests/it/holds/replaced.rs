//! Holds that replace others, in one operation.

use rstest::rstest;
use serde_json::json;

use super::{end, hold, is_consistent, level, shop, until_expired};
use crate::support::app::TestApp;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

/// A cart that grows is not in its own way.
#[rstest]
#[tokio::test]
async fn cart_grows_by_what_it_holds_itself(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let app = shop(backend).await;
    let two = json!([{"sku": "a"}, {"sku": "b", "quantity": 2}]);
    let old = hold(&app, "h1", two, 600).await;
    let three = json!([{"sku": "b", "quantity": 3}]);
    let body = json!({"lines": three, "replaces": old});
    // Lines 0 and 1 of this operation are the ends of those of the other hold.
    let lines = json!([
        {"line": 2, "request_line": 0, "sku": "b", "warehouse": "main", "quantity": 3, "remaining": 0},
    ]);
    let held = call!(app, POST "/holds", key "h2", (body) => 201, {"lines": lines});
    assert!(held.body["expires_at"].is_string(), "{held:?}");
    let new = held.id;
    let levels = async || json!([level(&app, "a").await, level(&app, "b").await]);
    assert_eq!(levels().await, json!([[10, 0], [3, 3]]));

    call!(app, 1 POST "/holds", key "h2", (body) => 201 replayed, {"id": new, "lines": lines});
    for body in [
        json!({"lines": [{"sku": "b"}], "replaces": old}),
        json!({"lines": three, "replaces": new}),
        json!({"lines": three}),
    ] {
        call!(app, POST "/holds", key "h2", (body) => 422 "idempotency-key-reused");
    }

    let found = app.get(&format!("/operations/{new}")).await;
    let expected = [
        json!([0, "released", -1, old]),
        json!([1, "released", -2, old]),
        json!([2, "held", 3, null]),
    ];
    let fields = ["line", "kind", "held_delta", "reverses"];
    assert_eq!(found.rows("movements", &fields), expected);
    found.assert_has(&json!({"/hold/lines": [{"line": 2, "state": "held", "open": 3}]}));

    call!(app, POST "/operations/{old}/confirm", {}
        => 409 "hold-ended", {"state": "released", "by": new});
    call!(app, 1 POST "/operations/{new}/confirm", {} => 200, {"/lines/0/quantity": 3});
    assert_eq!(levels().await, json!([[10, 0], [0, 0]]));
    is_consistent(&app, "b").await;
}

#[rstest]
#[tokio::test]
async fn short_replacement_leaves_the_old_hold(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let app = shop(backend).await;
    let old = hold(&app, "h1", json!([{"sku": "b", "quantity": 2}]), 600).await;
    hold(&app, "h2", json!([{"sku": "b"}]), 600).await;
    let more = json!([{"sku": "a"}, {"sku": "b", "quantity": 3}]);
    let short = json!([
        {"line": 1, "sku": "b", "warehouse": "main", "requested": 3, "available": 2},
    ]);
    call!(app, 1 POST "/holds", key "h3", {"lines": more, "replaces": old}
        => 409 "insufficient-stock", {"lines": short});
    call!(app, 1 POST "/holds", key "h3", {"lines": [{"sku": "x"}], "replaces": old} => 404 "unknown-sku");
    assert_eq!(level(&app, "a").await, json!([10, 0]));
    assert_eq!(level(&app, "b").await, json!([3, 3]));
    call!(app, POST "/operations/{old}/confirm", {} => 200, {"/lines/0/quantity": 2});
    is_consistent(&app, "b").await;
}

/// What was sold stays sold, and what has expired can be replaced, but not sold afterwards.
#[rstest]
#[tokio::test]
async fn what_is_left_of_a_hold_is_replaced(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let app = shop(backend).await;
    let old = hold(&app, "h1", json!([{"sku": "a"}, {"sku": "b"}]), 600).await;
    call!(app, POST "/operations/{old}/confirm", {"lines": [{"line": 0}]} => 200);
    let nine = json!([{"sku": "a", "quantity": 9}]);
    call!(app, POST "/holds", key "h2", {"lines": nine, "replaces": old} => 201, {"/lines/0/line": 0});
    assert_eq!(level(&app, "a").await, json!([9, 9]));
    assert_eq!(level(&app, "b").await, json!([3, 0]));
    call!(app, POST "/holds", key "h3", {"lines": [{"sku": "b"}], "replaces": old} => 409 "hold-ended");

    let three = json!([{"sku": "b", "quantity": 3}]);
    let short = hold(&app, "h4", three.clone(), 1).await;
    until_expired(&app, "b", true).await;
    call!(app, 1 POST "/holds", key "h5", {"lines": three, "replaces": short} => 201);
    call!(app, POST "/operations/{short}/confirm", {} => 409 "hold-ended");
    assert_eq!(level(&app, "b").await, json!([3, 3]));
    for sku in ["a", "b"] {
        is_consistent(&app, sku).await;
    }
}

/// Two replacements of one hold: one is made, and the other learns of it.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_is_replaced_once(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    const ROUNDS: i64 = 10;
    let app = TestApp::with_stock(backend, 2, "a", 10 * ROUNDS).await;
    let app = app.patient();
    for round in 0..ROUNDS {
        let old = hold(&app, &format!("h{round}"), json!([{"sku": "a"}]), 600).await;
        let body = json!({"lines": [{"sku": "a", "quantity": 2}], "replaces": old});
        let replace = |replica: usize| {
            let request = app.request(replica, reqwest::Method::POST, "/holds");
            let request = request.header("Idempotency-Key", format!("{replica}-{round}"));
            app.send(request.json(&body))
        };
        let (one, other) = tokio::join!(replace(0), replace(1));
        let (made, refused) = if one.status == 201 {
            (one, other)
        } else {
            (other, one)
        };
        made.assert_is(201, "");
        refused.assert_is(409, "hold-ended");
        refused.assert_has(&json!({"by": made.id}));
    }
    assert_eq!(level(&app, "a").await, json!([10 * ROUNDS, 2 * ROUNDS]));
    is_consistent(&app, "a").await;
}

#[tokio::test]
async fn bad_replacements_are_refused() {
    let app = shop(Sqlite).await;
    let sale = call!(app, POST "/stock/deduct?strategy=single-sql", {"sku": "a"} => 200).id;
    let old = hold(&app, "h1", json!([{"sku": "b"}]), 600).await;
    let ended = hold(&app, "h2", json!([{"sku": "b"}]), 600).await;
    let released = end(&app, 0, &ended, "release", &json!({})).await.id;
    let line = json!([{"sku": "a"}]);
    let nobody = "018f0000-0000-7000-8000-000000000000";
    let many: Vec<_> = (0..100).map(|n| json!({"sku": format!("x{n}")})).collect();
    call!(app, POST "/holds", key "k", {"lines": line, "replaces": sale} => 409 "not-a-hold");
    call!(app, POST "/holds", key "k", {"lines": line, "replaces": nobody} => 404 "unknown-operation");
    call!(app, POST "/holds", key "k", {"lines": line, "replaces": "h1"} => 422 "invalid-request");
    call!(app, POST "/holds", key "k", {"lines": many, "replaces": old} => 422 "too-many-lines");
    call!(app, POST "/holds", key "k", {"lines": line, "replaces": ended}
        => 409 "hold-ended", {"state": "released", "by": released});
}
