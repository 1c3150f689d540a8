//! Requests for holds that are refused.

use reqwest::Method;
use serde_json::json;

use super::{hold, id, post, post_plain, shop};
use crate::support::app::send;
use crate::support::services::Backend::Sqlite;

#[tokio::test]
async fn bad_requests_for_holds_are_refused() {
    let app = shop(Sqlite).await;
    let line = json!([{"sku": "a"}]);
    let without_key = post_plain(&app, 0, "/holds", &json!({"lines": line})).await;
    assert_eq!(
        without_key.status_and_code(),
        (400, "idempotency-key-required")
    );
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
        let refused = post(&app, 0, "/holds", &body, &format!("k{number}")).await;
        assert_eq!(refused.status, 422, "{body}: {refused:?}");
    }
    let unknown = hold(&app, "k", json!([{"sku": "x"}]), json!(5)).await;
    assert_eq!(unknown.status_and_code(), (404, "unknown-sku"));
    let sold = send(app.deduct(0, "single-sql", &json!({"sku": "a"}))).await;
    let held = id(&hold(&app, "k9", line, json!(600)).await);
    let nobody = "018f0000-0000-7000-8000-000000000000";
    for (operation, body, expected) in [
        (&id(&sold), json!({}), (409, "not-a-hold")),
        (&nobody.to_owned(), json!({}), (404, "unknown-operation")),
        (
            &held,
            json!({"lines": [{"line": 7}]}),
            (404, "unknown-line"),
        ),
        (
            &held,
            json!({"lines": [{"line": 0}, {"line": 0}]}),
            (422, "invalid-request"),
        ),
        (
            &held,
            json!({"lines": [{"line": 0, "quantity": 2}]}),
            (409, "exceeds-hold"),
        ),
    ] {
        let path = format!("/operations/{operation}/confirm");
        let refused = post_plain(&app, 0, &path, &body).await;
        assert_eq!((refused.status, refused.code.as_str()), expected, "{body}");
    }
    let path = format!("/operations/{held}/confirm");
    let empty = send(app.request(0, Method::POST, &path)).await;
    assert_eq!(empty.ok()["state"], "confirmed");
}
