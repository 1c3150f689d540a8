//! Bad input: refused with a problem that says what is wrong, and nothing is changed by it.

use reqwest::header::{ALLOW, CONTENT_TYPE, HeaderMap};
use reqwest::{Method, StatusCode};
use serde_json::Value;

use crate::support::app::TestApp;
use crate::support::services::Backend;

/// A request that must be refused.
struct Bad {
    method: Method,
    path: String,
    key: Option<String>,
    content_type: &'static str,
    body: String,
    status: u16,
    code: &'static str,
}

fn bad(method: Method, path: impl Into<String>, status: u16, code: &'static str) -> Bad {
    Bad {
        method,
        path: path.into(),
        key: None,
        content_type: "application/json",
        body: String::new(),
        status,
        code,
    }
}

const INVALID: &str = "invalid-request";
const NO_JSON: &str = "not-json";
const NO_SKU: &str = "unknown-sku";

fn deduct(body: impl Into<String>, status: u16, code: &'static str) -> Bad {
    Bad {
        body: body.into(),
        ..bad(Method::POST, "/stock/deduct", status, code)
    }
}

fn quantity(json: &str) -> Bad {
    deduct(
        format!(r#"{{"sku": "real", "quantity": {json}}}"#),
        422,
        INVALID,
    )
}

fn query(query: &str, status: u16, code: &'static str) -> Bad {
    bad(Method::POST, format!("/stock/deduct?{query}"), status, code)
}

fn key(key: impl Into<String>) -> Bad {
    Bad {
        key: Some(key.into()),
        ..deduct(r#"{"sku": "real"}"#, 422, "invalid-idempotency-key")
    }
}

fn put(path: &str, body: &str, status: u16, code: &'static str) -> Bad {
    Bad {
        body: body.into(),
        ..bad(Method::PUT, path, status, code)
    }
}

fn adjust(body: &str, status: u16, code: &'static str) -> Bad {
    Bad {
        body: body.into(),
        ..bad(Method::POST, "/stock/real/adjust", status, code)
    }
}

fn get(path: &str, status: u16, code: &'static str) -> Bad {
    bad(Method::GET, path, status, code)
}

fn deductions() -> Vec<Bad> {
    vec![
        quantity("0"),
        quantity("-1"),
        quantity("-0"),
        quantity("1.5"),
        quantity("1.0"),
        quantity("10001"),
        quantity("1e9"),
        quantity("4294967297"),
        quantity("99999999999999999999999"),
        quantity(r#""1""#),
        quantity("null"),
        quantity("[1]"),
        quantity("true"),
        deduct(r#"{"sku": "absent"}"#, 404, NO_SKU),
        deduct(r#"{"sku": "REAL"}"#, 404, NO_SKU),
        deduct(r#"{"sku": "real", "warehouse": "absent"}"#, 404, NO_SKU),
        deduct(r#"{"sku": ""}"#, 422, INVALID),
        deduct(r#"{"sku": null}"#, 422, INVALID),
        deduct(r#"{"sku": 1001}"#, 422, INVALID),
        deduct(r#"{"sku": "a b"}"#, 422, INVALID),
        deduct(r#"{"sku": "real\u0000"}"#, 422, INVALID),
        deduct(r#"{"sku": "real", "warehouse": null}"#, 422, INVALID),
        deduct(r#"{"sku": "real", "colour": "red"}"#, 422, INVALID),
        deduct(r#"{"sku": "real", "strategy": "no-lock"}"#, 422, INVALID),
        deduct(r#"{"sku": "real", "sku": "real"}"#, 422, INVALID),
        deduct(r#"["real", "main", 1]"#, 422, INVALID),
        deduct(r#""real""#, 422, INVALID),
        deduct("null", 422, INVALID),
        deduct("7", 422, INVALID),
        deduct(r#"{"sku": "real""#, 400, NO_JSON),
        deduct(r#"{"sku": "real"} {"sku": "real"}"#, 400, NO_JSON),
        deduct("{'sku': 'real'}", 400, NO_JSON),
        deduct("sku=real", 400, NO_JSON),
        deduct("\u{feff}{}", 400, NO_JSON),
        deduct("[".repeat(9_000), 400, NO_JSON),
        deduct(" ".repeat(17 * 1024), 413, "body-too-large"),
        Bad {
            content_type: "text/plain",
            ..deduct(r#"{"sku": "real"}"#, 415, "unsupported-media-type")
        },
        Bad {
            content_type: "application/x-www-form-urlencoded",
            ..deduct("sku=real", 415, "unsupported-media-type")
        },
        Bad {
            body: r#"{"sku": "real"}"#.to_owned(),
            ..query("quantity=1", 422, INVALID)
        },
        Bad {
            body: "{}".to_owned(),
            ..query("sku=real", 422, INVALID)
        },
        key(""),
        key("two words"),
        key("k".repeat(256)),
        key("k".repeat(300)),
        query("sku=real&quantity=0", 422, INVALID),
        query("sku=real&quantity=", 422, INVALID),
        query("sku=real&quantity=1.5", 422, INVALID),
        query("sku=real&sku=real", 422, INVALID),
        query("sku=real&colour=red", 422, INVALID),
        query("sku=%00", 422, INVALID),
        query("sku=absent", 404, NO_SKU),
        query("sku=real&strategy=prayer", 422, "unknown-strategy"),
        query("sku=real&strategy=No-Lock", 422, "unknown-strategy"),
        query("sku=real&strategy=", 422, "unknown-strategy"),
        query("sku=real&strategy=redis-lua", 503, "strategy-unavailable"),
    ]
}

fn levels() -> Vec<Bad> {
    vec![
        put("/stock/new", "", 415, "unsupported-media-type"),
        put("/stock/new", "{}", 422, INVALID),
        put("/stock/new", r#"{"on_hand": null}"#, 422, INVALID),
        put("/stock/new", r#"{"on_hand": "5"}"#, 422, INVALID),
        put("/stock/new", r#"{"on_hand": 1.5}"#, 422, INVALID),
        put("/stock/new", r#"{"on_hand": -1}"#, 409, "below-limit"),
        put(
            "/stock/new",
            r#"{"on_hand": 9223372036854775807}"#,
            422,
            "level-too-large",
        ),
        put(
            "/stock/new",
            r#"{"on_hand": -9223372036854775808}"#,
            422,
            "level-too-large",
        ),
        put(
            "/stock/new",
            r#"{"on_hand": 1, "backorder_limit": 9223372036854775807}"#,
            422,
            "level-too-large",
        ),
        put(
            "/stock/new",
            r#"{"on_hand": 1, "backorder_limit": -1}"#,
            422,
            INVALID,
        ),
        put(
            "/stock/new",
            r#"{"on_hand": 1, "home": "redis"}"#,
            503,
            "home-unavailable",
        ),
        put(
            "/stock/new",
            r#"{"on_hand": 1, "home": "moon"}"#,
            422,
            INVALID,
        ),
        put(
            "/stock/new",
            r#"{"on_hand": 1, "reason": ""}"#,
            422,
            INVALID,
        ),
        put(
            "/stock/new",
            r#"{"on_hand": 1, "reason": "a\u0000b"}"#,
            422,
            INVALID,
        ),
        put("/stock/new", r#"{"on_hand": 1, "held": 1}"#, 422, INVALID),
        Bad {
            key: Some("k".to_owned()),
            ..put("/stock/new", r#"{"on_hand": 1}"#, 422, INVALID)
        },
        put("/stock/a%20b", r#"{"on_hand": 1}"#, 422, INVALID),
        put(
            "/stock/new?warehouse=north",
            r#"{"on_hand": 1}"#,
            422,
            INVALID,
        ),
        put("/stock/a%2Fb", r#"{"on_hand": 1}"#, 422, INVALID),
        put("/stock/%00", r#"{"on_hand": 1}"#, 422, INVALID),
        put("/stock/%FF", r#"{"on_hand": 1}"#, 400, "bad-request"),
    ]
}

fn adjustments() -> Vec<Bad> {
    vec![
        adjust(r#"{"delta": 0, "reason": "x"}"#, 422, INVALID),
        adjust(r#"{"delta": 1}"#, 422, INVALID),
        adjust(r#"{"delta": 1, "reason": ""}"#, 422, INVALID),
        adjust(r#"{"delta": 1, "reason": null}"#, 422, INVALID),
        adjust(
            r#"{"delta": 1, "reason": "x", "reference": ""}"#,
            422,
            INVALID,
        ),
        adjust(
            r#"{"delta": 9223372036854775807, "reason": "x"}"#,
            422,
            INVALID,
        ),
        adjust(
            r#"{"delta": -9223372036854775808, "reason": "x"}"#,
            422,
            INVALID,
        ),
        adjust(
            r#"{"delta": 1000000000000, "reason": "x"}"#,
            422,
            "level-too-large",
        ),
        adjust(
            r#"{"delta": -11, "reason": "x"}"#,
            409,
            "insufficient-stock",
        ),
        adjust(
            r#"{"delta": 1, "reason": "x", "warehouse": "absent"}"#,
            404,
            NO_SKU,
        ),
        Bad {
            path: "/stock/absent/adjust".to_owned(),
            ..adjust(r#"{"delta": 1, "reason": "x"}"#, 404, NO_SKU)
        },
        Bad {
            path: "/stock/real/adjust?warehouse=north".to_owned(),
            ..adjust(r#"{"delta": 1, "reason": "x"}"#, 422, INVALID)
        },
        Bad {
            key: Some(String::new()),
            ..adjust(
                r#"{"delta": 1, "reason": "x"}"#,
                422,
                "invalid-idempotency-key",
            )
        },
    ]
}

fn reads_and_routes() -> Vec<Bad> {
    let wrong_method = "method-not-allowed";
    vec![
        get("/stock/absent", 404, NO_SKU),
        get("/stock/absent/audit", 404, NO_SKU),
        get("/stock/absent/movements", 404, NO_SKU),
        get("/stock/a%20b", 404, NO_SKU),
        get("/stock/%FF", 400, "bad-request"),
        get("/stock?limit=0", 422, INVALID),
        get("/stock?limit=1001", 422, INVALID),
        get("/stock?limit=ten", 422, INVALID),
        get("/stock?cursor=nonsense", 422, INVALID),
        get("/stock?cursor=", 422, INVALID),
        get("/stock?cursor=%00/main", 422, INVALID),
        get("/stock?page=2", 422, INVALID),
        get("/stock/real/movements?limit=0", 422, INVALID),
        get("/stock/real/movements?kind=stolen", 422, INVALID),
        get("/stock/real/movements?cursor=nonsense", 422, INVALID),
        get("/stock/real/movements?warehouse=", 422, INVALID),
        get("/stock/real/movements?reference=", 422, INVALID),
        get("/stock/real/movements?reference=%00", 422, INVALID),
        get("/stock/real/movements?colour=red", 422, INVALID),
        get("/stock/real?warehouse=main", 422, INVALID),
        get("/stock/real/audit?warehouse=main", 422, INVALID),
        get("/stock/deduct", 405, wrong_method),
        bad(Method::PUT, "/stock/deduct", 405, wrong_method),
        bad(Method::DELETE, "/stock/real", 405, wrong_method),
        bad(Method::POST, "/stock", 405, wrong_method),
        bad(Method::POST, "/healthz", 405, wrong_method),
        get("/nowhere", 404, "no-such-route"),
        get("/stock/", 404, "no-such-route"),
        get("/stock/real/", 404, "no-such-route"),
        bad(Method::POST, "/stock/deduct/", 404, "no-such-route"),
        bad(Method::POST, "/lab/anything", 404, "no-such-route"),
    ]
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.unwrap_or_default()
}

/// What is wrong with the answer to a bad request, if anything.
async fn complaint(app: &TestApp, bad: Bad) -> Option<String> {
    let what = format!("{} {} {:?} {:.60}", bad.method, bad.path, bad.key, bad.body);
    let mut request = app.request(0, bad.method, &bad.path);
    if !bad.body.is_empty() {
        request = request.header(CONTENT_TYPE, bad.content_type);
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
    let is_right = status == bad.status
        && problem["status"] == bad.status
        && problem["code"] == bad.code
        && problem["type"] == format!("urn:stocklock:problem:{}", bad.code)
        && problem["detail"]
            .as_str()
            .is_some_and(|detail| !detail.is_empty())
        && problem["request_id"] == header(&headers, "x-request-id")
        && header(&headers, "x-replica") == "replica-1"
        && header(&headers, "content-type") == "application/problem+json"
        && headers.contains_key(ALLOW) == (status == StatusCode::METHOD_NOT_ALLOWED);
    (!is_right).then(|| format!("{what}: not {} {} but {text}", bad.status, bad.code))
}

#[rstest::rstest]
#[tokio::test]
async fn bad_input_is_refused_by_a_problem_and_changes_nothing(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::with_flags(backend, 1, &[]).await;
    app.set_level("real", 10).await;
    let pages = ["/stock", "/stock/real", "/stock/real/movements"];
    let mut before = Vec::new();
    for page in pages {
        before.push(app.get_json(page).await);
    }
    let mut complaints = Vec::new();
    let tables = [deductions(), levels(), adjustments(), reads_and_routes()];
    for bad in tables.into_iter().flatten() {
        complaints.extend(complaint(&app, bad).await);
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    for (page, before) in pages.iter().zip(before) {
        assert_eq!(app.get_json(page).await, before, "{page}");
    }
    app.stop().await;
}

/// Whoever watches may add what defeats a cache.
#[tokio::test]
async fn probes_and_documents_take_any_query() {
    let app = TestApp::with_flags(Backend::Sqlite, 1, &[]).await;
    for path in ["/healthz", "/readyz", "/metrics", "/openapi.json"] {
        let response = app.get(&format!("{path}?now=1")).await;
        assert_eq!(response.status(), 200, "{path}");
    }
    app.stop().await;
}
