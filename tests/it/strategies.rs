//! The strategies as clients see them: all are listed, with the reason why one is not available.

use serde_json::json;

use crate::support::app::{TestApp, send};
use crate::support::services::Backend::Sqlite;

/// The strategies that need only the database.
pub(crate) const WITHOUT_SERVICES: [&str; 7] = [
    "no-lock",
    "local-mutex",
    "single-sql",
    "for-update",
    "optimistic",
    "group-commit",
    "sql-lock",
];

/// The strategies that need another server, with the reason why they are unavailable without it.
pub(crate) const WITH_SERVICE: [(&str, &str); 6] = [
    ("redis-get-set", "it needs Redis: set REDIS_URL"),
    ("redis-lock", "it needs Redis: set REDIS_URL"),
    (
        "redlock",
        "it needs a majority of the Redis masters: set REDLOCK_URLS",
    ),
    (
        "zookeeper-lock",
        "it needs ZooKeeper: set ZOOKEEPER_CONNECT",
    ),
    ("redis-watch", "it needs Redis: set REDIS_URL"),
    ("redis-lua", "it needs Redis: set REDIS_URL"),
];

#[tokio::test]
async fn all_strategies_are_listed_with_tier_and_texts() {
    let app = TestApp::with_flags(Sqlite, 1, &[]).await;
    let list = app.get_json("/strategies").await;
    let listed = list["strategies"].as_array().expect("a list");
    let tiers: Vec<_> = listed
        .iter()
        .map(|it| format!("{} {}", it["name"], it["tier"]).replace('"', ""))
        .collect();
    let expected = [
        "no-lock unsafe",
        "local-mutex unsafe",
        "redis-get-set unsafe",
        "single-sql safe",
        "for-update safe",
        "optimistic safe",
        "group-commit safe",
        "sql-lock guarded",
        "redis-lock guarded",
        "redlock guarded",
        "zookeeper-lock guarded",
        "redis-watch safe",
        "redis-lua safe",
    ];
    assert_eq!(tiers, expected);
    for strategy in listed {
        let is_available = WITHOUT_SERVICES.contains(&strategy["name"].as_str().expect("a name"));
        assert_eq!(strategy["available"], is_available, "{strategy}");
        assert_eq!(strategy["reason"].is_null(), is_available, "{strategy}");
        for text in ["guarantees", "costs", "fails_when", "use_when"] {
            let text = strategy[text].as_str();
            assert!(text.is_some_and(|text| text.len() > 10), "{strategy}");
        }
    }
}

#[tokio::test]
async fn strategy_without_its_server_says_what_to_set() {
    let app = TestApp::with_flags(Sqlite, 2, &[]).await;
    app.set_level("a", 10).await;
    let list = app.get_json("/strategies").await;
    let list = list["strategies"].as_array().expect("a list");
    for (replica, (name, reason)) in WITH_SERVICE.into_iter().enumerate() {
        let listed = list.iter().find(|strategy| strategy["name"] == name);
        assert_eq!(listed.expect("it is listed")["reason"], reason);
        let answer = send(app.deduct(replica, name, &json!({"sku": "a"}))).await;
        answer.assert_is(503, "strategy-unavailable");
        assert!(answer.detail.contains(reason), "{answer:?}");
        assert_eq!(answer.body["strategy"], name, "{answer:?}");
        // A missing server is not back after a moment.
        assert!(!answer.retry_after, "{name}");
    }
    assert_eq!(app.audit("a").await["sold"], 0);
}
