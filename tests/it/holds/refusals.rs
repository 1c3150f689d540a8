//! Confirmations of holds that are refused.

use serde_json::{Value, json};

use super::{end, hold, shop};
use crate::support::services::Backend::Sqlite;

#[tokio::test]
async fn bad_confirmations_are_refused() {
    let app = shop(Sqlite).await;
    let sold = call!(app, POST "/stock/deduct?strategy=single-sql", {"sku": "a"} => 200).id;
    let held = hold(&app, "k9", json!([{"sku": "a"}]), 600).await;
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
