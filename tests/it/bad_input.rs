//! Bad input: each request is refused with a problem that says what is wrong, and changes nothing.

use reqwest::Method;
use rstest::rstest;
use serde_json::Value;

use crate::support::app::TestApp;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

/// The bad requests: method, path, expected status and code. Each indented line below is the body
/// of one request. Without such lines, the request has no body.
const REQUESTS: &str = r#"
POST /stock/deduct 422 invalid-request
    {"sku": "real", "quantity": 0}
    {"sku": "real", "quantity": -1}
    {"sku": "real", "quantity": -0}
    {"sku": "real", "quantity": 1.5}
    {"sku": "real", "quantity": 1.0}
    {"sku": "real", "quantity": 10001}
    {"sku": "real", "quantity": 1e9}
    {"sku": "real", "quantity": 4294967297}
    {"sku": "real", "quantity": 99999999999999999999999}
    {"sku": "real", "quantity": "1"}
    {"sku": "real", "quantity": null}
    {"sku": "real", "quantity": [1]}
    {"sku": "real", "quantity": true}
    {"sku": ""}
    {"sku": null}
    {"sku": 1001}
    {"sku": "a b"}
    {"sku": "real\u0000"}
    {"sku": "real", "warehouse": null}
    {"sku": "real", "reference": ""}
    {"sku": "real", "reference": null}
    {"sku": "real", "reference": "a\u0000"}
    {"sku": "real", "colour": "red"}
    {"sku": "real", "strategy": "no-lock"}
    {"sku": "real", "sku": "real"}
    ["real", "main", 1]
    "real"
    null
    7
POST /operations/01900000-0000-7000-8000-000000000000/reverse 422 invalid-request
    {"restock": true}
    {"reason": "x"}
    {"reason": "", "restock": true}
    {"reason": "x", "restock": "true"}
    {"reason": "x", "restock": null}
    {"reason": "x", "restock": true, "quantity": 0}
    {"reason": "x", "restock": true, "quantity": null}
    {"reason": "x", "restock": true, "sku": "real"}
POST /operations/01900000-0000-7000-8000-000000000000/reverse 404 unknown-operation
    {"reason": "x", "restock": true}
POST /operations/0190000000007000800000000000000/reverse 422 invalid-request
    {"reason": "x", "restock": true}
GET /operations/01900000000070008000000000000000 422 invalid-request
GET /operations/x 422 invalid-request
GET /operations 422 invalid-request
GET /operations?key= 422 invalid-request
GET /operations?key=a&reference=b 422 invalid-request
GET /operations?key=a&since=-1 422 invalid-request
GET /operations?key=a&since=9223372036854775808 422 invalid-request
GET /operations?key=a&limit=0 422 invalid-request
GET /operations?reference=a&cursor=x 422 invalid-request
POST /stock/deduct 404 unknown-sku
    {"sku": "absent"}
    {"sku": "REAL"}
    {"sku": "real", "warehouse": "absent"}
POST /stock/deduct 400 not-json
    {"sku": "real"
    {"sku": "real"} {"sku": "real"}
    {'sku': 'real'}
    sku=real
POST /stock/deduct?quantity=1 422 invalid-request
    {"sku": "real"}
POST /stock/deduct?sku=real 422 invalid-request
    {}
POST /stock/deduct?sku=real&quantity=0 422 invalid-request
POST /stock/deduct?sku=real&quantity= 422 invalid-request
POST /stock/deduct?sku=real&quantity=1.5 422 invalid-request
POST /stock/deduct?sku=real&sku=real 422 invalid-request
POST /stock/deduct?sku=real&reference= 422 invalid-request
POST /stock/deduct?sku=real&colour=red 422 invalid-request
POST /stock/deduct?sku=%00 422 invalid-request
POST /stock/deduct?sku=absent 404 unknown-sku
POST /stock/deduct?sku=real&strategy=prayer 422 unknown-strategy
POST /stock/deduct?sku=real&strategy=No-Lock 422 unknown-strategy
POST /stock/deduct?sku=real&strategy= 422 unknown-strategy
POST /stock/deduct?sku=real&strategy=redis-lua 503 strategy-unavailable

PUT /stock/new 415 unsupported-media-type
PUT /stock/new 404 unknown-sku
    {}
    {"backorder_limit": 1}
PUT /stock/new 422 invalid-request
    {"on_hand": null}
    {"on_hand": "5"}
    {"on_hand": 1.5}
    {"on_hand": 1, "backorder_limit": -1}
    {"on_hand": 1, "home": "moon"}
    {"on_hand": 1, "reason": ""}
    {"on_hand": 1, "reason": "a\u0000b"}
    {"on_hand": 1, "held": 1}
PUT /stock/new 409 below-limit
    {"on_hand": -1}
PUT /stock/new 422 level-too-large
    {"on_hand": 9223372036854775807}
    {"on_hand": -9223372036854775808}
    {"on_hand": 1, "backorder_limit": 9223372036854775807}
PUT /stock/new 503 home-unavailable
    {"on_hand": 1, "home": "redis"}
PUT /stock/a%20b 422 invalid-request
    {"on_hand": 1}
PUT /stock/new?warehouse=north 422 invalid-request
    {"on_hand": 1}
PUT /stock/a%2Fb 422 invalid-request
    {"on_hand": 1}
PUT /stock/%00 422 invalid-request
    {"on_hand": 1}
PUT /stock/%FF 400 bad-request
    {"on_hand": 1}

POST /stock/real/adjust 422 invalid-request
    {"delta": 0, "reason": "x"}
    {"delta": 1}
    {"delta": 1, "reason": ""}
    {"delta": 1, "reason": null}
    {"delta": 1, "reason": "x", "reference": ""}
    {"delta": 9223372036854775807, "reason": "x"}
    {"delta": -9223372036854775808, "reason": "x"}
POST /stock/real/adjust 422 level-too-large
    {"delta": 1000000000000, "reason": "x"}
POST /stock/real/adjust 409 insufficient-stock
    {"delta": -11, "reason": "x"}
POST /stock/real/adjust 404 unknown-sku
    {"delta": 1, "reason": "x", "warehouse": "absent"}
POST /stock/absent/adjust 404 unknown-sku
    {"delta": 1, "reason": "x"}
POST /stock/real/adjust?warehouse=north 422 invalid-request
    {"delta": 1, "reason": "x"}

GET /stock/absent 404 unknown-sku
GET /stock/absent/audit 404 unknown-sku
GET /stock/absent/movements 404 unknown-sku
GET /stock/a%20b 404 unknown-sku
GET /stock/%FF 400 bad-request
GET /stock?limit=0 422 invalid-request
GET /stock?limit=1001 422 invalid-request
GET /stock?limit=ten 422 invalid-request
GET /stock?cursor=nonsense 422 invalid-request
GET /stock?cursor= 422 invalid-request
GET /stock?cursor=%00/main 422 invalid-request
GET /stock?page=2 422 invalid-request
GET /stock/real/movements?limit=0 422 invalid-request
GET /stock/real/movements?kind=stolen 422 invalid-request
GET /stock/real/movements?cursor=nonsense 422 invalid-request
GET /stock/real/movements?warehouse= 422 invalid-request
GET /stock/real/movements?reference= 422 invalid-request
GET /stock/real/movements?reference=%00 422 invalid-request
GET /stock/real/movements?colour=red 422 invalid-request
GET /stock/real?warehouse= 422 invalid-request
GET /stock/real?warehouse=absent 404 unknown-sku
GET /stock/real?home=sql 422 invalid-request
GET /stock/real/audit?warehouse=main 422 invalid-request

GET /stock/deduct 405 method-not-allowed
PUT /stock/deduct 405 method-not-allowed
DELETE /stock/real 405 method-not-allowed
POST /stock 405 method-not-allowed
POST /healthz 405 method-not-allowed
GET /nowhere 404 no-such-route
GET /stock/ 404 no-such-route
GET /stock/real/ 404 no-such-route
POST /stock/deduct/ 404 no-such-route
POST /lab/anything 404 no-such-route
"#;

/// A request that must be refused.
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
        let words: Vec<_> = line.split(' ').collect();
        let [method, path, status, code] = words[..] else {
            panic!("not a request: {line}");
        };
        Self {
            method: method.parse().expect("a method"),
            path: path.to_owned(),
            key: None,
            content_type: "application/json",
            body: String::new(),
            status: status.parse().expect("a status"),
            code,
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

/// All of [`REQUESTS`].
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

/// Requests with a key, another content type, or a body that does not fit into [`REQUESTS`].
fn others() -> Vec<Bad> {
    let real = r#"{"sku": "real"}"#;
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
        parse("POST /stock/deduct 413 body-too-large").body(" ".repeat(17 * 1024)),
        parse(wrong_type).body(real).content_type("text/plain"),
        parse(wrong_type)
            .body("sku=real")
            .content_type("application/x-www-form-urlencoded"),
        key(""),
        key("two words"),
        key(&"k".repeat(256)),
        key(&"k".repeat(300)),
        parse("PUT /stock/new 422 invalid-request")
            .body(r#"{"on_hand": 1}"#)
            .key("k"),
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
    let app = TestApp::with_flags(backend, 1, &[]).await;
    app.set_level("real", 10).await;
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
    app.stop().await;
}

/// Monitoring tools may add a parameter that defeats a cache.
#[tokio::test]
async fn probes_and_documents_accept_any_query() {
    let app = TestApp::with_flags(Sqlite, 1, &[]).await;
    for path in ["/healthz", "/readyz", "/metrics", "/openapi.json"] {
        let response = app.get(&format!("{path}?now=1")).await;
        assert_eq!(response.status(), 200, "{path}");
    }
    app.stop().await;
}
