//! Holds: units that are set aside, and what becomes of them.

use futures_util::future::join_all;
use rstest::rstest;
use serde_json::{Value, json};
use stocklock_testkit::eventually;
use stocklock_testkit::run::number;

use crate::faults::SOON;
use crate::support::app::{Answer, TestApp};
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

mod ends;
mod many;
mod refusals;
mod replaced;
mod retries;

/// How many holds expire together, an even number; `TEST_EXPIRED_HOLDS` in `make verify`.
const DEFAULT_EXPIRED: usize = 20;

/// Holds lines for some seconds. Returns the id of the hold.
async fn hold(app: &TestApp, key: &str, lines: Value, seconds: u32) -> String {
    let body = json!({"lines": lines, "expires_in_s": seconds, "reference": "cart-9"});
    call!(app, POST "/holds", key key, (body) => 201).id
}

/// Ends a hold: `confirm` or `release`. To do that twice is harmless, so it needs no key.
async fn end(app: &TestApp, replica: usize, hold: &str, how: &str, body: &Value) -> Answer {
    let path = format!("/operations/{hold}/{how}");
    let request = app.request(replica, reqwest::Method::POST, &path);
    app.send(request.json(body)).await
}

/// Units on hand and held units of a SKU in its default warehouse.
async fn level(app: &TestApp, sku: &str) -> Value {
    app.levels(sku).await[0].clone()
}

/// Waits until a hold of the SKU has no time left; `all`: until none has.
async fn until_expired(app: &TestApp, sku: &str, all: bool) {
    let is_expired = async || {
        let page = app.get(&format!("/holds?sku={sku}&limit=1000")).await;
        let states = page.rows("holds", &["state"]);
        let expired = states.iter().filter(|state| state[0] == "expired").count();
        if all {
            expired == states.len()
        } else {
            expired > 0
        }
    };
    eventually("holds expire", SOON, is_expired).await;
}

/// Counter, ledger and open holds agree.
async fn is_consistent(app: &TestApp, sku: &str) {
    let audit = app.assert_consistent(sku).await;
    let page = app.get(&format!("/holds?sku={sku}&limit=1000")).await;
    let holds = page.rows("holds", &["quantity"]);
    let open: i64 = (holds.iter().map(|one| one[0].as_i64().expect("units"))).sum();
    assert_eq!(audit["held"], open, "{page:?}");
}

/// Two replicas with ten units of `a`, and three of `b`.
async fn shop(backend: Backend) -> TestApp {
    let app = TestApp::with_stock(backend, 2, "a", 10).await.patient();
    app.set_level("b", 3).await;
    app
}

#[rstest]
#[tokio::test]
async fn hold_keeps_units_and_is_confirmed_by_line(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let app = shop(backend).await;
    let lines = json!([{"sku": "a", "quantity": 8}, {"sku": "b"}, {"sku": "b", "quantity": 2}]);
    let body = json!({"lines": lines, "expires_in_s": 600});
    let held = json!([
        {"line": 0, "sku": "a", "warehouse": "main", "quantity": 8, "remaining": 2},
        {"line": 1, "sku": "b", "warehouse": "main", "quantity": 1, "remaining": 2},
        {"line": 2, "sku": "b", "warehouse": "main", "quantity": 2, "remaining": 0},
    ]);
    let first =
        call!(app, POST "/holds", key "h1", (body) => 201, {"lines": held, "state": "held"});
    let hold = &first.id;
    assert_eq!(first.header("location"), format!("/operations/{hold}"));
    assert!(first.body["expires_at"].is_string(), "{first:?}");
    call!(app, POST "/holds", key "h1", (body) => 201 replayed, {"id": hold, "lines": held});
    let levels = async || json!([level(&app, "a").await, level(&app, "b").await]);
    assert_eq!(levels().await, json!([[10, 8], [3, 3]]));

    // Others cannot have the units.
    call!(app, 1 POST "/stock/deduct?strategy=single-sql", {"sku": "a", "quantity": 3}
        => 409 "insufficient-stock", {"available": 2});
    call!(app, POST "/holds", key "h2", {"lines": [{"sku": "a"}, {"sku": "b"}], "expires_in_s": null}
        => 409 "insufficient-stock", {"/lines/0/sku": "b"});

    let some = json!({"lines": [{"line": 0, "quantity": 5}]});
    let sold = json!([
        {"line": 0, "sku": "a", "warehouse": "main", "quantity": 5, "released": 3, "remaining": 5},
    ]);
    let sold = call!(app, 1 POST "/operations/{hold}/confirm", (some)
        => 200, {"lines": sold, "state": "confirmed", "late": false});
    let again =
        call!(app, POST "/operations/{hold}/confirm", key "another", (some) => 200 replayed);
    assert_eq!(again.body, sold.body);
    for (how, body) in [
        ("confirm", json!({"lines": [{"line": 0}]})),
        ("release", json!({"lines": [{"line": 0}]})),
        (
            "confirm",
            json!({"lines": [{"line": 0, "quantity": 5}, {"line": 1}]}),
        ),
    ] {
        call!(app, POST "/operations/{hold}/{how}", (body)
            => 409 "hold-ended", {"state": "confirmed", "by": sold.id});
    }
    call!(app, GET "/operations/{hold}" => 200, {
        "/hold/state": "held", "/hold/lines": [
            {"line": 0, "state": "confirmed", "open": 0}, {"line": 1, "state": "held", "open": 1},
            {"line": 2, "state": "held", "open": 2},
        ],
        "/movements/2/held_delta": 2,
    });

    call!(app, POST "/operations/{hold}/release", {} => 200, {"state": "released"});
    assert_eq!(levels().await, json!([[5, 0], [3, 0]]));
    call!(app, GET "/operations/{hold}" => 200, {
        "/hold/state": "ended", "/hold/lines/1": {"line": 1, "state": "released", "open": 0},
    });
    // The sale can be reversed like any other.
    let sale = sold.id;
    call!(app, POST "/operations/{sale}/reverse", {"reason": "wrong size", "restock": true} => 200);
    assert_eq!(level(&app, "a").await, json!([10, 0]));
    for sku in ["a", "b"] {
        is_consistent(&app, sku).await;
    }
}

/// Goal: no sale depends on a background task, whatever protects it.
#[rstest]
#[tokio::test]
async fn units_of_expired_holds_are_sold(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let strategies = ["group-commit", "single-sql", "for-update", "optimistic"];
    // More buyers at the same time would only wait for each other.
    let units = number("TEST_EXPIRED_HOLDS", DEFAULT_EXPIRED).min(100);
    let stock = i64::try_from(units).expect("few units");
    let app = TestApp::start(backend).await.patient();
    for sku in strategies {
        app.set_level(sku, stock).await;
        let held = (0..units).map(async |number| {
            hold(
                &app,
                &format!("held-{sku}-{number}"),
                json!([{"sku": sku}]),
                1,
            )
            .await;
        });
        join_all(held).await;
    }
    for strategy in strategies {
        until_expired(&app, strategy, true).await;
        let sold = (0..units).map(async |number| {
            let request = app.deduct(number, strategy, &json!({"sku": strategy}));
            let request = request.header("Idempotency-Key", format!("{strategy}-{number}"));
            app.send(request).await.ok();
        });
        join_all(sold).await;
        assert_eq!(level(&app, strategy).await, json!([0, 0]));
        is_consistent(&app, strategy).await;
    }
}

#[rstest]
#[tokio::test]
async fn expired_hold_is_sold_late_if_units_are_left(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let half = number("TEST_EXPIRED_HOLDS", DEFAULT_EXPIRED) / 2;
    let half = i64::try_from(half).expect("few units");
    let app = TestApp::with_stock(backend, 2, "a", 2 * half).await;
    let app = app.patient();
    let held = (0..2 * half)
        .map(async |number| hold(&app, &format!("h{number}"), json!([{"sku": "a"}]), 1).await);
    let ids = join_all(held).await;
    until_expired(&app, "a", true).await;
    let first = &ids[0];
    call!(app, POST "/operations/{first}/confirm", {"late": false} => 409 "hold-expired");
    call!(app, POST "/stock/deduct?strategy=single-sql", {"sku": "a", "quantity": half}
        => 200, {"remaining": half});
    // Each hold is confirmed by two callers.
    let nothing = json!({});
    let confirm = |id, replica| end(&app, replica, id, "confirm", &nothing);
    let confirms = ids
        .iter()
        .map(async |id| tokio::join!(confirm(id, 0), confirm(id, 1)));
    let mut confirmed = 0;
    for (one, other) in join_all(confirms).await {
        assert_eq!((one.status, &one.id), (other.status, &other.id));
        if one.status == 200 {
            confirmed += 1;
            assert!(one.replayed || other.replayed, "{one:?} {other:?}");
        } else {
            one.assert_is(409, "hold-expired");
        }
    }
    assert_eq!(confirmed, half);
    assert_eq!(level(&app, "a").await, json!([0, 0]));
    is_consistent(&app, "a").await;
}

#[rstest]
#[tokio::test]
async fn released_hold_cannot_be_confirmed_late(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let app = shop(backend).await;
    let held = hold(&app, "h1", json!([{"sku": "a"}]), 1).await;
    until_expired(&app, "a", true).await;
    let released = call!(app, POST "/operations/{held}/release", {} => 200, {"state": "released"});
    let again = call!(app, 1 POST "/operations/{held}/release", {} => 200 replayed);
    assert_eq!(again.body, released.body);
    call!(app, 1 POST "/operations/{held}/confirm", {} => 409 "hold-ended", {"state": "released"});
    is_consistent(&app, "a").await;
}

#[rstest]
#[tokio::test]
async fn hold_is_extended_and_never_shortened(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let app = shop(backend).await;
    let body = json!({"lines": [{"sku": "a"}, {"sku": "b"}], "expires_in_s": 2});
    let held = call!(app, POST "/holds", key "h1", (body) => 201);
    let hold_id = &held.id;
    let longer = call!(app, POST "/operations/{hold_id}/extend", {"expires_in_s": 900} => 200);
    let longer = &longer.body["expires_at"];
    let is_longer = longer.as_str() > held.body["expires_at"].as_str();
    assert!(is_longer, "{longer} {held:?}");
    for (seconds, expected) in [
        (json!(60), longer),
        (json!(null), &Value::Null),
        (json!(60), &Value::Null),
    ] {
        call!(app, 1 POST "/operations/{hold_id}/extend", {"expires_in_s": seconds}
            => 200, {"expires_at": expected});
    }
    let page = call!(app, GET "/holds?limit=1" => 200, {"/holds/0/expires_at": null});
    let cursor = page.body["next_cursor"].as_str().expect("another page");
    call!(app, GET "/holds?limit=1&cursor={cursor}" => 200, {"/holds/0/line": 1, "next_cursor": null});

    let short = hold(&app, "h2", json!([{"sku": "a"}]), 1).await;
    until_expired(&app, "a", false).await;
    call!(app, POST "/operations/{short}/extend", {"expires_in_s": 60}
        => 409 "hold-ended", {"state": "expired"});
}
