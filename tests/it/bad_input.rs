//! Bad input: each request is refused with a problem that says what is wrong, and changes nothing.

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::app::{TestApp, send};
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

/// The bad requests: method, path, expected status and code, and the idempotency key if there is one. Each
/// indented line below is the body of one request. Without such lines, the request has no body.
const REQUESTS: &str = include_str!("bad_input.txt");

#[derive(Clone)]
struct Bad {
    method: Method,
    path: String,
    key: Option<String>,
    content_type: &'static str,
    body: String,
    status: u16,
    code: &'static str,
}

impl Bad {
    /// Parses a line of [`REQUESTS`] that is not indented.
    fn parse(line: &'static str) -> Self {
        let mut words = line.split(' ');
        let mut word = || words.next().expect("method, path, status, code");
        Self {
            method: word().parse().expect("a method"),
            path: word().to_owned(),
            content_type: "application/json",
            body: String::new(),
            status: word().parse().expect("a status"),
            code: word(),
            key: words.next().map(str::to_owned),
        }
    }

    fn body(self, body: impl Into<String>) -> Self {
        let body = body.into();
        Self { body, ..self }
    }

    fn key(self, key: impl Into<String>) -> Self {
        let key = Some(key.into());
        Self { key, ..self }
    }

    fn content_type(self, content_type: &'static str) -> Self {
        Self {
            content_type,
            ..self
        }
    }
}

fn table() -> Vec<Bad> {
    let mut requests: Vec<Bad> = Vec::new();
    let mut lines = REQUESTS.lines().filter(|line| !line.is_empty()).peekable();
    while let Some(line) = lines.next() {
        let request = Bad::parse(line);
        let body = |line: &&'static str| line.starts_with(' ');
        if lines.peek().is_none_or(|next| !body(next)) {
            requests.push(request);
            continue;
        }
        while let Some(line) = lines.next_if(body) {
            requests.push(request.clone().body(line.trim_start()));
        }
    }
    requests
}

/// Requests with another content type, or a key or a body that does not fit into [`REQUESTS`].
fn others() -> Vec<Bad> {
    let real = r#"{"sku": "real"}"#;
    let lines = |count| format!(r#"{{"lines": [{}]}}"#, vec![real; count].join(","));
    let parse = Bad::parse;
    let key = |key: &str| {
        let line = "POST /stock/deduct 422 invalid-idempotency-key";
        parse(line).body(real).key(key)
    };
    let not_json = "POST /stock/deduct 400 not-json";
    let wrong_type = "POST /stock/deduct 415 unsupported-media-type";
    vec![
        parse(not_json).body("\u{feff}{}"),
        parse(not_json).body("[".repeat(9_000)),
        parse("POST /stock/deduct 413 body-too-large").body(" ".repeat(65 * 1024)),
        parse(wrong_type).body(real).content_type("text/plain"),
        parse(wrong_type)
            .body("sku=real")
            .content_type("application/x-www-form-urlencoded"),
        key(""),
        key("two words"),
        key(&"k".repeat(256)),
        key(&"k".repeat(300)),
        parse("POST /stock/deduct/batch 422 invalid-request").body(lines(1_001)),
        parse("POST /stock/deduct/batch 413 body-too-large").body(" ".repeat(1_048_577)),
        parse("POST /stock/deduct/batch 415 unsupported-media-type")
            .body(lines(1))
            .content_type("text/plain"),
        parse("POST /import 422 invalid-idempotency-key").key("k".repeat(241)),
        parse("POST /stock/real/adjust 422 invalid-idempotency-key")
            .body(r#"{"delta": 1, "reason": "x"}"#)
            .key(""),
    ]
}

/// What is wrong with the answer to a bad request, if anything.
async fn error_in_answer(app: &TestApp, bad: Bad) -> Option<String> {
    let what = format!("{} {} {:?} {:.60}", bad.method, bad.path, bad.key, bad.body);
    let mut request = app.request(0, bad.method, &bad.path);
    if !bad.body.is_empty() {
        request = request.header("content-type", bad.content_type);
    }
    if let Some(key) = bad.key {
        request = request.header("Idempotency-Key", key);
    }
    let response = request.body(bad.body).send().await.expect("an answer");
    let (status, headers) = (response.status(), response.headers().clone());
    let text = response.text().await.expect("a body");
    let Ok(problem) = serde_json::from_str::<Value>(&text) else {
        return Some(format!("{what}: {status} {text}"));
    };
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let detail = problem["detail"].as_str();
    let is_right = status == bad.status
        && problem["status"] == bad.status
        && problem["code"] == bad.code
        && problem["type"] == format!("urn:stocklock:problem:{}", bad.code)
        && detail.is_some_and(|detail| !detail.is_empty())
        && problem["request_id"] == header("x-request-id").unwrap_or_default()
        && header("x-replica") == Some("replica-1")
        && header("content-type") == Some("application/problem+json")
        && header("allow").is_some() == (status == 405);
    (!is_right).then(|| format!("{what}: not {} {} but {text}", bad.status, bad.code))
}

#[rstest]
#[tokio::test]
async fn bad_input_is_refused_without_effect(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let app = TestApp::with_stock(backend, 1, "real", 10).await;
    let pages = ["/stock", "/stock/real", "/stock/real/movements"];
    let mut before = Vec::new();
    for page in pages {
        before.push(app.get_json(page).await);
    }
    let mut errors = Vec::new();
    for bad in table().into_iter().chain(others()) {
        errors.extend(error_in_answer(&app, bad).await);
    }
    assert!(errors.is_empty(), "{}", errors.join("\n"));
    for (page, before) in pages.iter().zip(before) {
        assert_eq!(app.get_json(page).await, before, "{page}");
    }
}

/// JSON has one type of numbers, and JSON Schema takes 2.0 for an integer.
#[tokio::test]
async fn whole_number_may_have_a_point_or_an_exponent() {
    let app = TestApp::with_flags(Sqlite, 1, &[]).await;
    for line in [
        r#"available 103 PUT /stock/a {"on_hand": 1e2, "backorder_limit": 3.0}"#,
        r#"remaining 102 POST /stock/a/adjust {"delta": -1.0, "reason": "x"}"#,
        r#"remaining 100 POST /stock/deduct {"sku": "a", "quantity": 20e-1}"#,
        r#"on_hand 0 PUT /stock/b {"on_hand": -0.0}"#,
    ] {
        let words: Vec<_> = line.splitn(5, ' ').collect();
        let [field, expected, method, path, body] = words[..] else {
            panic!("{line}")
        };
        let request = app.request(0, method.parse().expect("a method"), path);
        let request = request.header("content-type", "application/json");
        let answer = send(request.body(body.to_owned())).await;
        assert_eq!(answer.body[field].to_string(), expected, "{answer:?}");
    }
    let lines = r#"{"lines": [{"sku": "a", "quantity": 2.0}]}"#;
    let batch = app.request(0, Method::POST, "/stock/deduct/batch");
    let batch = batch.header("content-type", "application/json").body(lines);
    assert_eq!(send(batch).await.ok()["results"][0]["remaining"], 98);
    let sale = send(app.deduct(0, "single-sql", &json!({"sku": "a"}))).await;
    let path = format!("/operations/{}/reverse", sale.id);
    let back = r#"{"quantity": 1.0, "reason": "x", "restock": true}"#;
    let back = app.request(0, Method::POST, &path).body(back);
    let back = send(back.header("content-type", "application/json")).await;
    assert_eq!(back.ok()["quantity"], 1);
}

/// Monitoring tools may add a parameter that defeats a cache.
#[tokio::test]
async fn probes_and_documents_accept_any_query() {
    let app = TestApp::with_flags(Sqlite, 1, &[]).await;
    for path in ["/healthz", "/readyz", "/metrics", "/openapi.json"] {
        app.get(&format!("{path}?now=1")).await.ok();
    }
}
