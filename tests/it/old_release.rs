//! Stored formats: this build reads what release 0.1.0 (commit 89e5f97) wrote.
//!
//! For each database, `old_release/` has a dump of the ledger, a dump of the Redis keys, and
//! answers of that build. When the dumps were made, three movements were only in Redis: the
//! database was stopped before these sales, and the build was killed after them. The answers are
//! from later, after that build had applied the three movements to the ledger.

use std::collections::BTreeMap;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rstest::rstest;
use serde_json::{Value, json};

use crate::faults::{send, until};
use crate::support::app::TestApp;
use crate::support::rival::Raw;
use crate::support::services::{Backend, TestRedis, connect_to_redis, fresh_database, fresh_redis};

/// The files that the release left for one database.
struct Left {
    ledger: &'static str,
    redis: &'static str,
    answers: &'static str,
}

macro_rules! left {
    ($database:literal) => {
        Left {
            ledger: include_str!(concat!("old_release/", $database, "/ledger.sql")),
            redis: include_str!(concat!("old_release/", $database, "/redis.json")),
            answers: include_str!(concat!("old_release/", $database, "/answers.json")),
        }
    };
}

/// Restores the keys, without expiry.
async fn restore(redis: &TestRedis, keys: &str) {
    let keys: BTreeMap<String, String> = serde_json::from_str(keys).expect("valid JSON");
    let connection = connect_to_redis(&redis.url).await;
    let mut connection = connection.expect("the test's Redis answers");
    for (key, dump) in keys {
        let dump = BASE64_STANDARD.decode(dump).expect("valid Base64");
        let mut command = redis::cmd("RESTORE");
        command.arg(&key).arg(0).arg(dump);
        let restored: Result<(), _> = command.query_async(&mut connection).await;
        restored.unwrap_or_else(|error| panic!("{key}: {error}"));
    }
}

/// Without the version, which a load into Redis may increase.
fn without_version(mut answer: Value) -> Value {
    for warehouse in answer["warehouses"].as_array_mut().into_iter().flatten() {
        warehouse
            .as_object_mut()
            .map(|level| level.remove("version"));
    }
    answer
}

/// Fields of rows that the old release wrote, but did not show.
const SHOWN_SINCE: [&str; 3] = ["sku", "caller", "idempotency_key"];

/// Without the fields that were added since. Others are `null` for what the old release wrote, but this
/// build numbers the movements that it applies.
fn without_added(found: Value, expected: &Value) -> Value {
    match found {
        Value::Object(fields) => {
            let is_added = |name: &str, value: &Value| {
                let is_new = value.is_null() || name == "level_version";
                expected.get(name).is_none() && (is_new || SHOWN_SINCE.contains(&name))
            };
            let known = fields
                .into_iter()
                .filter(|(name, value)| !is_added(name, value));
            known
                .map(|(name, value)| {
                    let value = without_added(value, &expected[&name]);
                    (name, value)
                })
                .collect()
        }
        Value::Array(rows) => (rows.into_iter().enumerate())
            .map(|(row, value)| without_added(value, &expected[row]))
            .collect(),
        value => value,
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ledger_and_journal_of_the_last_release_are_read(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let left = match backend {
        Backend::Sqlite => left!("sqlite"),
        Backend::Mysql => left!("mysql"),
        Backend::Postgres => left!("postgres"),
    };
    let (database, redis) = (fresh_database(backend).await, fresh_redis().await);
    let mut raw = Raw::connect(backend, &database.url).await;
    raw.run(left.ledger).await.expect("the dump can be loaded");
    drop(raw);
    restore(&redis, left.redis).await;
    let app = TestApp::on(&database.url, 1, &["--redis-url", &redis.url]).await;

    until("the journal is applied", async || {
        app.audit("in-redis").await["pending"] == 0
    })
    .await;
    let expected: BTreeMap<String, Value> = serde_json::from_str(left.answers).expect("valid JSON");
    let pages = expected.iter().filter(|(path, _)| path.starts_with('/'));
    for (path, answer) in pages {
        let expected = without_version(answer.clone());
        let found = without_version(app.get_json(path).await);
        assert_eq!(without_added(found, &expected), expected, "{path}");
    }

    // Retries get the first answer: from SQL, and from the dedup entries in Redis.
    for (key, name, strategy, quantity, sku) in [
        ("sql-1", "sql", "single-sql", 3, "in-sql"),
        ("redis-1", "redis", "redis-lua", 2, "in-redis"),
        ("redis-2", "pending", "redis-watch", 1, "in-redis"),
    ] {
        let order = json!({"sku": sku, "quantity": quantity});
        let retry = app.deduct(0, strategy, &order);
        let answer = send(retry.header("Idempotency-Key", key)).await;
        assert_eq!(answer.ok(), &expected["answers"][name], "{key}");
        assert!(answer.replayed, "{key}");
    }
    let sold = send(app.deduct(0, "redis-lua", &json!({"sku": "in-redis"}))).await;
    assert_eq!(sold.ok()["remaining"], 3);
    until("the sale is applied", async || {
        app.audit("in-redis").await["pending"] == 0
    })
    .await;
    assert_eq!(app.audit("in-redis").await["consistent"], true);
    app.stop().await;
}
