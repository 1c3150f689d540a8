//! Queries of many levels, imports and exports.

use reqwest::{Body, Method, RequestBuilder};
use rstest::rstest;
use serde_json::{Value, json};

use crate::pages::each_page;
use crate::support::app::{Answer, TestApp, rows, send};
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

mod beside_sales;
mod commands;
mod imports;

/// The lines of an answer.
pub(crate) fn lines(answer: &Answer) -> Vec<Value> {
    match answer.ok() {
        Value::String(text) => json_lines(text),
        // The only line was read as JSON.
        line => vec![line.clone()],
    }
}

/// A value a line.
pub(crate) fn json_lines(text: &str) -> Vec<Value> {
    let lines = text.lines().map(serde_json::from_str);
    lines.map(|line| line.expect("lines of JSON")).collect()
}

/// A row a line.
fn text(rows: &[Value]) -> String {
    rows.iter().map(|row| row.to_string() + "\n").collect()
}

/// A request with rows as the import with this key, ready to send.
pub(crate) fn with_rows(
    import: RequestBuilder,
    key: &str,
    rows: impl Into<Body>,
) -> RequestBuilder {
    let import = import.header("content-type", "application/x-ndjson");
    import.header("Idempotency-Key", key).body(rows)
}

/// Sends rows as the import with this key; `query` begins with `?`.
pub(crate) async fn import(app: &TestApp, key: &str, query: &str, rows: &str) -> Vec<Value> {
    let request = app.request(0, Method::POST, &format!("/import{query}"));
    lines(&send(with_rows(request, key, rows.to_owned())).await)
}

/// Row, status and code of each line but the last one.
fn outcomes(lines: &[Value]) -> Vec<Value> {
    rows(&lines[..lines.len() - 1], &["row", "status", "code"])
}

/// The units on hand of the levels, in their order.
async fn exported(app: &TestApp) -> Vec<Value> {
    let levels = lines(&app.get("/export").await);
    rows(&levels, &["sku", "warehouse", "on_hand"])
}

#[rstest]
#[tokio::test]
async fn levels_are_read_by_their_names(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let app = TestApp::with_stock(backend, 1, "a", 3).await;
    app.set_level("b", 4).await;
    call!(app, PUT "/stock/a", {"warehouse": "x", "on_hand": 5} => 201);
    let answer = call!(app, POST "/levels/query", {"levels": [
        {"sku": "b"}, {"sku": "A"}, {"sku": "a", "warehouse": "x"}, {"sku": "b", "warehouse": "x"},
    ]} => 200);
    let expected = json!({
        "levels": [
            app.get_json("/stock/b").await["warehouses"][0],
            app.get_json("/stock/a").await["warehouses"][1],
        ],
        "unknown": [{"sku": "A", "warehouse": "main"}, {"sku": "b", "warehouse": "x"}],
    });
    assert_eq!(*answer.ok(), expected);
    assert_eq!(app.get_json("/stock/a").await["available"], 8);
    assert_eq!(app.get_json("/stock/a?warehouse=x").await["available"], 5);
}

#[rstest]
#[tokio::test]
async fn pages_list_what_runs_low(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let app = TestApp::start(backend).await;
    let row = |number: u64| {
        let (sku, units) = (format!("s-{number:04}"), number % 7);
        let warehouse = if number.is_multiple_of(2) {
            "main"
        } else {
            "north"
        };
        json!({"sku": sku, "warehouse": warehouse, "on_hand": units, "create": true})
    };
    let numbers = 0..2_100;
    let rows: String = numbers.clone().map(|n| row(n).to_string() + "\n").collect();
    import(&app, "first", "", &rows).await;
    let other = r#"{"sku": "r", "on_hand": 0, "create": true}"#;
    import(&app, "others", "", other).await;
    for (query, takes) in [
        ("available_max=1", (|n| n % 7 <= 1) as fn(u64) -> bool),
        ("warehouse=north&prefix=s-", |n| n % 2 == 1),
        ("warehouse=north&available_max=0&prefix=s-1", |n| {
            n % 14 == 7 && (1_000..2_000).contains(&n)
        }),
        ("prefix=s-20", |n| n >= 2_000),
        ("prefix=s-2099", |n| n == 2_099),
        ("prefix=t", |_| false),
    ] {
        let mut expected: Vec<_> = numbers
            .clone()
            .filter(|n| takes(*n))
            .map(|n| json!([format!("s-{n:04}")]))
            .collect();
        if query == "available_max=1" {
            expected.insert(0, json!(["r"]));
        }
        for limit in [7, 1_000] {
            let pages = each_page(&app, &format!("/stock?limit={limit}&{query}")).await;
            let pages: Vec<_> = pages
                .iter()
                .map(|page| page.rows("levels", &["sku"]))
                .collect();
            assert!(
                pages.iter().all(|page| page.len() <= limit),
                "{query} {limit}"
            );
            assert_eq!(pages.concat(), expected, "{query} {limit}");
        }
    }
}

#[rstest]
#[tokio::test]
async fn each_row_is_answered_and_made_once(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let app = TestApp::with_stock(backend, 1, "a", 40).await;
    app.set_level("b", 7).await;
    let rows = r#"{"sku": "a", "add": 2}
{"sku": "a", "on_hand": 50, "from": 42}
{"sku": "a", "on_hand": 1, "from": 42}

{"sku": "n", "on_hand": 9, "create": true}
{"sku": "n", "warehouse": "x", "on_hand": 0, "create": true}
{"sku": "a", "on_hand": 9, "create": true}
{"sku": "b", "on_hand": 7, "from": null}
{"sku": "absent", "add": 1}
{"sku": "absent", "on_hand": 1, "from": null}
{"sku": "a", "add": 2, "on_hand": 3}
[1, 2]
{"sku": "n", "add": -10}
{"sku": "n", "add": -9}"#;
    let first = import(&app, "K", "?rows=all", rows).await;
    let expected = json!([
        [1, 200, "adjusted"],
        [2, 200, "counted"],
        [3, 412, "precondition-failed"],
        [5, 200, "created"],
        [6, 200, "created"],
        [7, 412, "precondition-failed"],
        [8, 200, "counted"],
        [9, 404, "unknown-sku"],
        [10, 404, "unknown-sku"],
        [11, 422, "invalid-request"],
        [12, 422, "invalid-request"],
        [13, 409, "insufficient-stock"],
        [14, 200, "adjusted"],
    ]);
    assert_eq!(Value::from(outcomes(&first)), expected);
    let versions = |lines: &[Value]| {
        lines
            .iter()
            .filter_map(|line| line["version"].as_i64())
            .collect::<Vec<_>>()
    };
    assert_eq!(versions(&first), [2, 3, 1, 1, 2, 2]);
    assert_eq!([&first[2]["on_hand"], &first[5]["on_hand"]], [50, 50]);
    let end = json!({"done": true, "rows": 13, "replayed": 0, "failed": 7});
    assert_eq!(first[13], end);
    let units = json!([
        ["a", "main", 50],
        ["b", "main", 7],
        ["n", "main", 0],
        ["n", "x", 0]
    ]);
    assert_eq!(Value::from(exported(&app).await), units);

    // Sent again, after a sale: a count does not bring its units back.
    send(app.deduct(0, "group-commit", &json!({"sku": "b"})))
        .await
        .ok();
    let again = import(&app, "K", "?rows=all", rows).await;
    assert_eq!(again[13]["replayed"], 6);
    let mut replayed = again;
    replayed.retain(|line| line["code"] == "replayed");
    assert_eq!(versions(&replayed), [2, 3, 1, 1, 2, 2]);
    let failures = import(&app, "K", "", rows).await;
    assert_eq!(failures.len(), 8, "{failures:?}");
    assert_eq!(app.get_json("/stock/b").await["available"], 6);
    app.assert_consistent("b").await;

    assert_eq!(lines(&app.get("/export?after=b/main").await).len(), 2);
}
