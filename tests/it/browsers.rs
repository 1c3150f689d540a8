//! The browser as a caller: no page of another site sells stock, changes it, or uses the lab.

use reqwest::Method;
use reqwest::header::{HOST, ORIGIN};
use serde_json::json;

use crate::support::app::{TestApp, send};
use crate::support::process::Process;
use crate::support::services::Backend::Sqlite;

const SEC_FETCH_SITE: &str = "Sec-Fetch-Site";

/// A browser sends each of these without asking first, or would after a preflight.
const WRITES: [(&str, &str); 6] = [
    ("POST", "/stock/deduct?sku=real"),
    ("POST", "/stock/deduct/batch"),
    ("PUT", "/stock/real"),
    ("POST", "/stock/real/adjust"),
    (
        "POST",
        "/operations/01900000-0000-7000-8000-000000000000/reverse",
    ),
    ("POST", "/nowhere"),
];

#[tokio::test]
async fn write_of_another_sites_page_changes_nothing() {
    let serve = Process::serving(&["serve"], &[]).await;
    serve.set_level("real", 10).await;
    for (method, path) in WRITES {
        let method: Method = method.parse().expect("a method");
        for (name, value) in [
            (SEC_FETCH_SITE, "cross-site"),
            (SEC_FETCH_SITE, "same-site"),
            ("Origin", "https://evil.example"),
            ("Origin", "null"),
        ] {
            let request = serve.request(method.clone(), path).header(name, value);
            let refused = send(request).await;
            let expected = (403, "foreign-origin");
            assert_eq!(refused.status_and_code(), expected, "{path} {value}");
        }
    }
    let level = serve.get("/stock/real").await;
    assert_eq!(level.ok()["warehouses"][0]["on_hand"], 10);
}

#[tokio::test]
async fn own_pages_and_other_clients_may_write() {
    let serve = Process::serving(&["serve"], &[]).await;
    serve.set_level("real", 10).await;
    let deduct = || serve.request(Method::POST, "/stock/deduct?sku=real");
    let own = format!("http://{}", serve.address());
    for request in [
        deduct(),
        deduct().header(SEC_FETCH_SITE, "none"),
        deduct().header(SEC_FETCH_SITE, "same-origin"),
        deduct().header(ORIGIN, own),
        // Through a proxy that passes on the name, and ends TLS.
        deduct()
            .header(HOST, "shop.example")
            .header(ORIGIN, "https://shop.example"),
        // Through one that does not.
        deduct()
            .header(SEC_FETCH_SITE, "same-origin")
            .header(ORIGIN, "https://shop.example"),
    ] {
        send(request).await.ok();
    }
    // A link of another site to a page of this one.
    let docs = serve.request(Method::GET, "/docs/");
    let docs = send(docs.header(SEC_FETCH_SITE, "cross-site")).await;
    assert_eq!(docs.status, 200);
}

/// Another site has given its name the address of this machine, so its page is of the same origin.
#[tokio::test]
async fn lab_has_no_route_for_a_name_of_another_site() {
    let app = TestApp::with_stock(Sqlite, 1, "real", 10).await;
    let set = app.put(0, "real", &json!({"on_hand": 99}));
    let deduct = app.request(0, Method::POST, "/stock/deduct?sku=real");
    let mut requests = vec![set, deduct];
    for path in [
        "/",
        "/docs/",
        "/openapi.json",
        "/metrics",
        "/stock",
        "/stock/real",
        "/audit",
        "/lab/races",
        "/lab/locks?sku=real",
        "/nowhere",
    ] {
        requests.push(app.request(0, Method::GET, path));
    }
    for request in requests {
        let what = format!("{request:?}");
        let refused = send(request.header(HOST, "evil.example")).await;
        assert_eq!(refused.status_and_code(), (403, "foreign-host"), "{what}");
    }
    assert_eq!(app.audit("real").await["on_hand"], 10);
}

/// Clicks in a frame would be writes of the service's own page.
#[tokio::test]
async fn no_page_can_be_shown_in_a_frame() {
    let app = TestApp::with_flags(Sqlite, 1, &[]).await;
    for path in ["/", "/docs/"] {
        let page = app.get(path).await;
        let policy = page.header("content-security-policy");
        let refuses_frames = policy.contains("frame-ancestors 'none'");
        assert!(refuses_frames, "{path}: {policy}");
    }
}
