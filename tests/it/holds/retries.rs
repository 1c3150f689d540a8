//! Requests that end a hold and are sent again, and what a hold says that has ended.

use rstest::rstest;
use serde_json::json;

use super::{hold, is_consistent, shop, until_expired};
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

/// A confirmation of the rest gets its answer again, not the one of an earlier part.
#[rstest]
#[tokio::test]
async fn end_of_the_rest_is_repeated(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
    #[values("confirm", "release")] how: &str,
    #[values(0, 2)] first: u32,
) {
    let app = shop(backend).await;
    let held = hold(
        &app,
        "h1",
        json!([{"sku": "a"}, {"sku": "b"}, {"sku": "b"}]),
        600,
    )
    .await;
    let path = format!("/operations/{held}/{how}");
    let part = json!({"lines": [{ "line": first }]});
    let first = call!(app, POST "/operations/{held}/confirm", (part) => 200);
    let rest = call!(app, POST "{path}", key "rest", {} => 200);
    assert_ne!(rest.id, first.id);
    let mut again = vec![call!(app, 1 POST "{path}", {} => 200 replayed)];
    for key in ["rest", "another"] {
        again.push(call!(app, 1 POST "{path}", key key, {} => 200 replayed));
    }
    for again in again {
        assert_eq!(again.body, rest.body);
    }
    call!(app, POST "/operations/{held}/confirm", (part) => 200 replayed, {"id": first.id});
    // No request has ended exactly these lines.
    for lines in [
        json!([{"line": 1}]),
        json!([{"line": 0}, {"line": 1}, {"line": 2}]),
    ] {
        call!(app, POST "{path}", {"lines": lines} => 409 "hold-ended");
    }
    is_consistent(&app, "b").await;
}

/// Goal: no answer depends on whether a due line has been ended.
#[rstest]
#[tokio::test]
async fn expired_hold_reads_the_same_when_it_was_ended(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let app = shop(backend).await;
    let held = hold(
        &app,
        "h1",
        json!([{"sku": "b"}, {"sku": "a", "quantity": 2}]),
        1,
    )
    .await;
    call!(app, POST "/operations/{held}/confirm", {"lines": [{"line": 0}]} => 200);
    until_expired(&app, "a", true).await;
    let expired = json!({"state": "expired", "expires_at": null, "lines": [
        {"line": 0, "state": "confirmed", "open": 0}, {"line": 1, "state": "expired", "open": 0},
    ]});
    for units in [1, 11] {
        // There are ten of them; to look for more ends the hold.
        let status = if units == 1 { 200 } else { 409 };
        let order = app.deduct(1, "group-commit", &json!({"sku": "a", "quantity": units}));
        assert_eq!(
            app.send(order.header("Idempotency-Key", units))
                .await
                .status,
            status
        );
        call!(app, GET "/operations/{held}" => 200, {"hold": expired});
        let refused = call!(app, POST "/operations/{held}/extend", {"expires_in_s": 60}
            => 409 "hold-ended", {"state": "expired", "line": 1});
        assert!(refused.body.get("by").is_none(), "{refused:?}");
    }
    call!(app, GET "/holds?sku=a" => 200, {"holds": []});
    call!(app, POST "/operations/{held}/confirm", {} => 200, {"late": true});
    call!(app, GET "/operations/{held}" => 200, {"/hold/state": "ended"});
}
