//! Headers: `Allow`, `X-Request-Id`, compression, and headers that a request may have only once.

use reqwest::Method;
use reqwest::header::{ACCEPT_ENCODING, IF_MATCH, IF_NONE_MATCH};
use serde_json::json;

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

#[tokio::test]
async fn large_reads_are_compressed_and_writes_are_not() {
    let app = TestApp::with_stock(Sqlite, 1, "real", 1_000).await;
    let lines: Vec<_> = (0..20).map(|_| json!({"sku": "real"})).collect();
    let batch = app.request(0, Method::POST, "/stock/deduct/batch");
    let sold = batch.json(&json!({ "lines": lines }));
    let get = |path: &str| app.request(0, Method::GET, path);
    for (request, compressed) in [
        (sold, false),
        (get("/openapi.json"), true),
        (get("/stock/real/movements"), true),
        (get("/"), true),
        (get("/healthz"), false),
    ] {
        let (plain, path) = (
            request.try_clone().expect("no stream"),
            format!("{request:?}"),
        );
        let plain = send(plain).await;
        assert_eq!(plain.header("content-encoding"), "", "{path}");
        let varies = plain.header("vary") == "accept-encoding";
        assert_eq!(varies, compressed, "{path}");
        let answer = send(request.header(ACCEPT_ENCODING, "gzip")).await;
        let is_compressed = answer.header("content-encoding") == "gzip";
        assert_eq!(is_compressed, compressed, "{path}");
    }
}

/// Another encoding has other bytes, so a strong tag would be wrong.
#[tokio::test]
async fn tag_of_a_compressed_level_is_weak_and_can_be_used() {
    let app = TestApp::with_flags(Sqlite, 1, &[]).await;
    for warehouse in 0..20 {
        let level = json!({"warehouse": format!("w{warehouse}"), "on_hand": 1});
        assert_eq!(send(app.put(0, "real", &level)).await.status, 201);
    }
    let get = || {
        let request = app.request(0, Method::GET, "/stock/real");
        request.header(ACCEPT_ENCODING, "gzip")
    };
    let level = send(get()).await;
    let tag = level.header("etag");
    assert!(tag.starts_with("W/\""), "{level:?}");
    assert_eq!(send(get().header(IF_NONE_MATCH, tag)).await.status, 304);
    let set = app.put(0, "real", &json!({"warehouse": "w0", "on_hand": 2}));
    let set = send(set.header(IF_MATCH, tag)).await;
    assert_eq!(set.status, 200, "{set:?}");
}
