//! Stored formats: this build reads what the previous release wrote.
//!
//! For each database, `old_release/` has the rows of a ledger, and the answers about them. The schema is
//! the first migration, which is never edited. Until 0.3.0 is released, the build that froze this
//! migration stands for that release: it wrote these files.

use std::fs;
use std::path::PathBuf;

use rstest::rstest;
use serde::Deserialize;
use serde_json::Value;

use crate::support::app::TestApp;
use crate::support::rival::Raw;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};
use crate::support::services::fresh_database;

#[derive(Debug, Deserialize)]
struct Answers {
    /// The `ETag` of the SKU `a`.
    revision: String,
    pages: Vec<(String, Value)>,
    changes: Vec<Change>,
}

#[derive(Debug, Deserialize)]
struct Change {
    path: String,
    key: String,
    body: Value,
    answer: Value,
}

fn directory(backend: Backend) -> PathBuf {
    let name = match backend {
        Sqlite => "sqlite",
        Mysql => "mysql",
        Postgres => "postgres",
    };
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/it/old_release")
        .join(name)
}

fn first_migration(backend: Backend) -> &'static str {
    match backend {
        Sqlite => include_str!("../../migrations/sqlite/0001_initial.sql"),
        Mysql => include_str!("../../migrations/mysql/0001_initial.sql"),
        Postgres => include_str!("../../migrations/postgres/0001_initial.sql"),
    }
}

/// Only the fields that the release knew.
fn known(found: Value, expected: &Value) -> Value {
    match found {
        Value::Object(mut fields) => {
            fields.retain(|name, _| expected.get(name).is_some());
            let fields = fields.into_iter();
            fields
                .map(|(name, value)| (name.clone(), known(value, &expected[&name])))
                .collect()
        }
        Value::Array(rows) => {
            let rows = rows.into_iter().enumerate();
            rows.map(|(row, value)| known(value, &expected[row]))
                .collect()
        }
        value => value,
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_the_first_release_are_read(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let read = |file| fs::read_to_string(directory(backend).join(file)).expect("the file exists");
    let expected: Answers = serde_json::from_str(&read("answers.json")).expect("valid JSON");
    let database = fresh_database(backend).await;
    let mut raw = Raw::connect(backend, &database.url).await;
    for statements in [
        first_migration(backend),
        "DELETE FROM ledger",
        read("ledger.sql").leak(),
    ] {
        raw.run(statements).await.expect("the dump can be loaded");
    }
    drop(raw);
    let app = TestApp::on(&database.url, 1, &[]).await;

    for (path, answer) in &expected.pages {
        let found = app.get_json(path).await;
        assert_eq!(known(found, answer), *answer, "{path}");
    }
    for change in &expected.changes {
        let Change {
            path,
            key,
            body,
            answer,
        } = change;
        let retried = call!(app, POST "{path}", key key, (body) => 200 replayed);
        assert_eq!(known(retried.body, answer), *answer, "{path}");
    }
    call!(app, PUT "/stock/a", if_match &expected.revision, {"on_hand": 9} => 200);
    // 8 units, and 2 that may be sold beyond them.
    call!(app, POST "/stock/deduct?strategy=sql-lock", {"sku": "a"} => 200, {"remaining": 10});
    app.assert_consistent("a").await;
}
