//! Requests for holds that are refused.

use serde_json::{Value, json};

use super::{end, hold, shop};
use crate::support::services::Backend::Sqlite;

#[tokio::test]
async fn bad_requests_for_holds_are_refused() {
    let app = shop(Sqlite).await;
    let line = json!([{"sku": "a"}]);
    call!(app, POST "/holds", {"lines": line} => 400 "idempotency-key-required");
    for (number, body) in [
        json!({"lines": []}),
        json!({"lines": [{"sku": "a", "quantity": 0}]}),
        json!({"lines": line, "expires_in_s": 0}),
        json!({"lines": line, "expires_in_s": 2_592_001}),
        json!({"lines": line, "expires_in_s": "600"}),
        json!({"lines": line, "seconds": 600}),
    ]
    .into_iter()
    .enumerate()
    {
        call!(app, POST "/holds", key format!("k{number}"), (body) => 422 "invalid-request");
    }
    call!(app, POST "/holds", key "k", {"lines": [{"sku": "x"}], "expires_in_s": 5} => 404 "unknown-sku");
    let sold = call!(app, POST "/stock/deduct?strategy=single-sql", {"sku": "a"} => 200).id;
    let held = hold(&app, "k9", line, 600).await;
    let nobody = "018f0000-0000-7000-8000-000000000000";
    for (operation, lines, status, code) in [
        (&*sold, json!(null), 409, "not-a-hold"),
        (nobody, json!(null), 404, "unknown-operation"),
        (&held, json!([{"line": 7}]), 404, "unknown-line"),
        (
            &held,
            json!([{"line": 0}, {"line": 0}]),
            422,
            "invalid-request",
        ),
        (
            &held,
            json!([{"line": 0, "quantity": 2}]),
            409,
            "exceeds-hold",
        ),
    ] {
        let body = match lines {
            Value::Null => json!({}),
            lines => json!({"lines": lines}),
        };
        let refused = end(&app, 0, operation, "confirm", &body).await;
        refused.assert_is(status, code);
    }
    call!(app, POST "/operations/{held}/confirm" => 200, {"state": "confirmed"});
}
