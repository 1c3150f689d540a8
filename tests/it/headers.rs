//! Headers: what they allow, what they name, and those that may come once only.

use reqwest::{Method, StatusCode};
use serde_json::Value;

use crate::support::app::TestApp;
use crate::support::services::Backend;

#[tokio::test]
async fn a_refused_method_is_told_which_ones_there_are() {
    let app = TestApp::with_flags(Backend::Sqlite, 1, &[]).await;
    for (path, allowed) in [
        ("/stock/deduct", "POST"),
        ("/stock/real", "GET,HEAD,PUT"),
        ("/stock", "GET,HEAD"),
    ] {
        let response = app.request(0, Method::DELETE, path).send().await;
        let response = response.expect("an answer");
        assert_eq!(response.headers()["allow"], allowed, "{path}");
    }
    app.stop().await;
}

#[tokio::test]
async fn a_harmless_request_id_is_kept_and_another_is_replaced() {
    let app = TestApp::with_flags(Backend::Sqlite, 1, &[]).await;
    let too_long = "x".repeat(129);
    for (given, kept) in [("order-4711", true), ("a b", false), (&too_long, false)] {
        let request = app.request(0, Method::GET, "/nowhere");
        let response = request.header("X-Request-Id", given).send().await;
        let response = response.expect("an answer");
        let id = response.headers()["x-request-id"].clone();
        assert_eq!(id == given, kept, "{given}: {id:?}");
        let problem: Value = response.json().await.expect("a problem");
        assert_eq!(problem["request_id"].as_str(), id.to_str().ok());
    }
    app.stop().await;
}

#[tokio::test]
async fn two_idempotency_keys_at_once_are_refused() {
    let app = TestApp::with_flags(Backend::Sqlite, 1, &[]).await;
    app.set_level("real", 10).await;
    let request = app.request(0, Method::POST, "/stock/deduct?sku=real");
    let request = request.header("Idempotency-Key", "a");
    let response = request.header("Idempotency-Key", "b").send().await;
    let response = response.expect("an answer");
    assert_eq!(response.status(), StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(app.audit("real").await["sold"], 0);
    app.stop().await;
}
