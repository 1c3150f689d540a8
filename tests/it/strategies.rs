//! The strategies as callers see them: all are listed, and what can be used is what is said to be.

use serde_json::{Value, json};
use stocklock::strategy::Strategy;

use crate::support::app::TestApp;
use crate::support::lock_services::LockServices;
use crate::support::services::Backend;

/// What can be used where there is nothing but the database.
const AVAILABLE: [&str; 5] = [
    "no-lock",
    "local-mutex",
    "single-sql",
    "for-update",
    "optimistic",
];

/// What can be used where there is its service as well, and what it says where there is none.
const WITH_SERVICES: [(&str, &str); 2] = [
    ("redis-lock", "it needs Redis: set REDIS_URL"),
    (
        "zookeeper-lock",
        "it needs ZooKeeper: set ZOOKEEPER_CONNECT",
    ),
];

#[tokio::test]
async fn all_strategies_are_listed_with_what_they_are_worth() {
    let app = TestApp::with_flags(Backend::Sqlite, 1, &[]).await;
    let list = app.get_json("/strategies").await;
    let listed = list["strategies"].as_array().expect("a list");
    let tiers: Vec<_> = listed
        .iter()
        .map(|it| format!("{} {}", it["name"], it["tier"]).replace('"', ""))
        .collect();
    let expected = [
        "no-lock unsafe",
        "local-mutex unsafe",
        "single-sql safe",
        "for-update safe",
        "optimistic safe",
        "group-commit safe",
        "redis-lock guarded",
        "redlock guarded",
        "zookeeper-lock guarded",
        "sql-lock guarded",
        "redis-watch volatile",
        "redis-lua volatile",
    ];
    assert_eq!(tiers, expected);
    for strategy in listed {
        let is_available = AVAILABLE.contains(&strategy["name"].as_str().expect("a name"));
        assert_eq!(strategy["available"], is_available, "{strategy}");
        assert_eq!(strategy["reason"].is_null(), is_available, "{strategy}");
        for text in ["guarantees", "costs", "fails_when", "use_when"] {
            let text = strategy[text].as_str();
            assert!(text.is_some_and(|text| text.len() > 10), "{strategy}");
        }
    }
    app.stop().await;
}

#[tokio::test]
async fn every_strategy_sells_or_says_why_it_cannot() {
    let app = TestApp::start(Backend::Sqlite).await;
    app.set_level("a", 100).await;
    for (number, name) in Strategy::names().into_iter().enumerate() {
        let response = app.deduct(number, name, &json!({"sku": "a"})).send().await;
        let response = response.expect("an answer");
        let status = response.status().as_u16();
        // What is not built yet will not be a second later.
        assert!(!response.headers().contains_key("retry-after"), "{name}");
        let body: Value = response.json().await.expect("JSON");
        assert_eq!(body["strategy"], name, "{body}");
        if AVAILABLE.contains(&name) {
            assert_eq!(status, 200, "{body}");
        } else {
            assert_eq!(
                (status, &body["code"]),
                (503, &json!("strategy-unavailable"))
            );
        }
    }
    assert_eq!(app.audit("a").await["sold"], 5);
    app.stop().await;
}

#[tokio::test]
async fn a_lock_without_its_service_is_refused_with_what_to_set() {
    let app = TestApp::start(Backend::Sqlite).await;
    app.set_level("a", 1).await;
    for (name, reason) in WITH_SERVICES {
        let response = app.deduct(0, name, &json!({"sku": "a"})).send().await;
        let response = response.expect("an answer");
        assert_eq!(response.status(), 503);
        let body: Value = response.json().await.expect("JSON");
        let detail = body["detail"].as_str().expect("a detail");
        assert!(detail.contains(reason), "{body}");
        assert_eq!(listed(&app, name).await["reason"], reason);
    }
    app.stop().await;
}

#[tokio::test]
async fn a_lock_with_its_service_sells() {
    let services = LockServices::fresh().await;
    let flags = services.flags();
    let flags = flags.each_ref().map(|flag| &**flag);
    let app = TestApp::with_flags(Backend::Sqlite, 2, &flags).await;
    app.set_level("a", 10).await;
    for (number, (name, _)) in WITH_SERVICES.into_iter().enumerate() {
        let strategy = listed(&app, name).await;
        assert_eq!(strategy["available"], true, "{strategy}");
        assert!(strategy["reason"].is_null(), "{strategy}");
        let response = app.deduct(number, name, &json!({"sku": "a"})).send().await;
        let response = response.expect("an answer");
        assert_eq!(response.status(), 200, "{name}");
        let body: Value = response.json().await.expect("JSON");
        assert_eq!(body["strategy"], name, "{body}");
    }
    assert_eq!(app.audit("a").await["sold"], 2);
    app.stop().await;
}

/// What `GET /strategies` says of one.
async fn listed(app: &TestApp, name: &str) -> Value {
    let list = app.get_json("/strategies").await;
    let listed = list["strategies"].as_array().expect("a list");
    let found = listed.iter().find(|strategy| strategy["name"] == name);
    found.expect("it is listed").clone()
}
