//! Stored formats: this build reads what the previous release wrote.
//!
//! For each database, `old_release/` has the rows of a ledger, and the answers about them. The schema is
//! the first migration, which is never edited. Until 0.3.0 is released, the build that froze this
//! migration stands for that release: it wrote these files, by this test with `TEST_WRITE_RELEASE=1`.
//! The test then needs `sqlite3`, `mariadb-dump` and `pg_dump`.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use reqwest::Method;
use rstest::rstest;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stocklock_testkit::run::variable;

use crate::support::app::{Answer, TestApp, send};
use crate::support::rival::Raw;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};
use crate::support::services::fresh_database;

/// The tables with rows, except for that of the migrations.
const TABLES: [&str; 5] = [
    "stock",
    "movement",
    "ledger",
    "distributed_lock",
    "distributed_lock_source",
];

#[derive(Debug, Serialize, Deserialize)]
struct Answers {
    /// The `ETag` of the SKU `a`.
    revision: String,
    pages: Vec<(String, Value)>,
    changes: Vec<Change>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Change {
    path: String,
    key: String,
    body: Value,
    answer: Value,
}

async fn change(app: &TestApp, path: &str, key: &str, body: &Value) -> Answer {
    let request = app.request(0, Method::POST, path).json(body);
    send(request.header("Idempotency-Key", key)).await
}

async fn make_changes(app: &TestApp) -> Vec<Change> {
    for level in [
        json!({"on_hand": 20, "backorder_limit": 2, "reason": "count"}),
        json!({"on_hand": 5, "warehouse": "上海仓"}),
    ] {
        let created = send(app.put(0, "a", &level)).await;
        assert_eq!(created.status, 201, "{created:?}");
    }
    let mut changes: Vec<Change> = Vec::new();
    for line in [
        r#"/stock/deduct?strategy=single-sql {"sku": "a", "quantity": 3, "reference": "R-1"}"#,
        r#"/stock/deduct?strategy=group-commit {"sku": "a"}"#,
        r#"/stock/deduct?strategy=optimistic {"sku": "a", "warehouse": "上海仓"}"#,
        r#"/stock/deduct?strategy=sql-lock {"sku": "a", "quantity": 2}"#,
        r#"/stock/deduct?strategy=no-lock {"sku": "a"}"#,
        r#"/stock/a/adjust {"delta": -1, "reason": "broken", "reference": "R-2"}"#,
        r#"/operations/ID/reverse {"quantity": 1, "reason": "wrong size", "restock": true}"#,
    ] {
        let (path, body) = line.split_once(' ').expect("path and body");
        let body = serde_json::from_str(body).expect("it is JSON");
        let first = changes.first().and_then(|one| one.answer["id"].as_str());
        let path = path.replace("ID", first.unwrap_or_default());
        let key = format!("key-{}", changes.len());
        let answer = change(app, &path, &key, &body).await.ok().clone();
        changes.push(Change {
            path,
            key,
            body,
            answer,
        });
    }
    changes
}

async fn read_pages(app: &TestApp, changes: &[Change]) -> Vec<(String, Value)> {
    let page = "/stock/a/movements?limit=4";
    let cursor = app.get_json(page).await["next_cursor"].clone();
    let next = format!("{page}&cursor={}", cursor.as_str().expect("another page"));
    let id = changes[0].answer["id"].as_str().expect("an id");
    let mut pages = Vec::new();
    for path in [
        "/stock/a".to_owned(),
        "/stock/a/audit".to_owned(),
        page.to_owned(),
        next,
        "/stock/a/movements?kind=returned".to_owned(),
        "/stock/a/movements?reference=R-1".to_owned(),
        "/operations?key=key-5".to_owned(),
        format!("/operations/{id}"),
    ] {
        let answer = app.get_json(&path).await;
        pages.push((path, answer));
    }
    pages
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

/// Dumps the table of the migrations, and the rows of the others.
fn dump(backend: Backend, url: &str) -> String {
    let output = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output();
        let output = output.expect("the program is installed");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program}: {errors}");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let dump = match backend {
        Sqlite => {
            let file = url.trim_start_matches("sqlite:").trim_start_matches("//");
            let rows = format!(".dump --data-only {}", TABLES.join(" "));
            output("sqlite3", &[file, ".dump _sqlx_migrations", &rows])
        }
        Mysql => {
            let url = reqwest::Url::parse(url).expect("a URL");
            let server = [
                format!("--host={}", url.host_str().unwrap()),
                format!("--port={}", url.port().unwrap_or(3306)),
                format!("--user={}", url.username()),
                format!("--password={}", url.password().unwrap_or_default()),
            ];
            let database = url.path().trim_start_matches('/');
            let run = |options: &[&str], tables: &[&str]| {
                let server: Vec<&str> = server.iter().map(String::as_str).collect();
                let common = ["--compact", "--complete-insert", "--hex-blob"];
                output(
                    "mariadb-dump",
                    &[&server[..], &common, options, &[database], tables].concat(),
                )
            };
            run(&[], &["_sqlx_migrations"]) + &run(&["--no-create-info"], &TABLES)
        }
        Postgres => {
            let run = |options: &[&str], tables: &[&str]| {
                let tables: Vec<_> = tables
                    .iter()
                    .map(|table| format!("--table={table}"))
                    .collect();
                let tables: Vec<&str> = tables.iter().map(String::as_str).collect();
                let common = ["--dbname", url, "--column-inserts", "--no-owner"];
                output("pg_dump", &[&common[..], options, &tables].concat())
            };
            run(&[], &["_sqlx_migrations"]) + &run(&["--data-only"], &TABLES)
        }
    };
    // Not: comments, commands of psql, and clients' settings.
    let is_statement = |line: &&str| {
        let other = ["--", "\\", "/*", "SELECT pg_catalog.set_config"];
        !line.is_empty() && !other.iter().any(|start| line.starts_with(start))
    };
    let lines: Vec<_> = dump.lines().filter(is_statement).collect();
    lines.join("\n") + "\n"
}

async fn write_release(backend: Backend) {
    let database = fresh_database(backend).await;
    let app = TestApp::on(&database.url, 1, &[]).await;
    let changes = make_changes(&app).await;
    let answers = Answers {
        revision: app.get("/stock/a").await.header("etag").to_owned(),
        pages: read_pages(&app, &changes).await,
        changes,
    };
    app.stop().await;
    let answers = serde_json::to_string_pretty(&answers).expect("JSON") + "\n";
    let directory = directory(backend);
    for (file, text) in [
        ("answers.json", answers),
        ("ledger.sql", dump(backend, &database.url)),
    ] {
        fs::write(directory.join(file), text).expect("the file can be written");
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
    if variable("TEST_WRITE_RELEASE").is_some() {
        return write_release(backend).await;
    }
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
    for one in &expected.changes {
        let retried = change(&app, &one.path, &one.key, &one.body).await;
        let found = known(retried.ok().clone(), &one.answer);
        assert_eq!(found, one.answer, "{one:?}");
        assert!(retried.replayed, "{one:?}");
    }
    call!(app, PUT "/stock/a", if_match &expected.revision, {"on_hand": 9} => 200);
    // 8 units, and 2 that may be sold beyond them.
    call!(app, POST "/stock/deduct?strategy=sql-lock", {"sku": "a"} => 200, {"remaining": 10});
    app.assert_consistent("a").await;
}
