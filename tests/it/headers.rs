//! Headers: `Allow`, `X-Request-Id`, and headers that a request may have only once.

use reqwest::Method;

use crate::support::app::{TestApp, send};
use crate::support::services::Backend::Sqlite;

#[tokio::test]
async fn refused_method_is_answered_with_the_allowed_ones() {
    let app = TestApp::with_flags(Sqlite, 1, &[]).await;
    for (path, allowed) in [
        ("/stock/deduct", "POST"),
        ("/stock/real", "GET,HEAD,PUT"),
        ("/stock", "GET,HEAD"),
    ] {
        let refused = send(app.request(0, Method::DELETE, path)).await;
        assert_eq!(refused.header("allow"), allowed, "{path}");
    }
}

#[tokio::test]
async fn valid_request_id_is_kept_and_an_invalid_one_replaced() {
    let app = TestApp::with_flags(Sqlite, 1, &[]).await;
    let too_long = "x".repeat(129);
    for (given, kept) in [("order-4711", true), ("a b", false), (&too_long, false)] {
        let request = app.request(0, Method::GET, "/nowhere");
        let answer = send(request.header("X-Request-Id", given)).await;
        let id = answer.header("x-request-id");
        assert_eq!(id == given, kept, "{given}: {id:?}");
        assert_eq!(answer.body["request_id"], id);
    }
}

#[tokio::test]
async fn two_idempotency_keys_in_one_request_are_refused() {
    let app = TestApp::with_stock(Sqlite, 1, "real", 10).await;
    let request = app.request(0, Method::POST, "/stock/deduct?sku=real");
    let request = request.header("Idempotency-Key", "a");
    let refused = send(request.header("Idempotency-Key", "b")).await;
    assert_eq!(refused.status, 422, "{refused:?}");
    assert_eq!(app.audit("real").await["sold"], 0);
}
