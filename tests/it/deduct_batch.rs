//! `POST /stock/deduct/batch`: each line is answered like a request of its own.

use std::collections::BTreeSet;
use std::slice::from_ref;

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::app::{TestApp, rows};
use crate::support::rival::Rival;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

fn outcomes(results: &[Value]) -> Vec<Value> {
    rows(results, &["status", "code"])
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_line_is_answered_as_if_it_were_alone(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
    #[values("single-sql", "for-update", "group-commit")] strategy: &str,
) {
    let app = TestApp::with_stock(backend, 1, "a", 10).await;
    app.set_level("b", 1).await;
    app.set_level("short", 1).await;
    let lines = json!([
        {"sku": "a", "quantity": 2, "key": "k-1", "reference": "order-1"},
        {"sku": "short", "quantity": 2, "key": "k-2"},
        {"sku": "absent", "key": "k-3"},
        {"sku": "absent"},
        {"sku": "a", "warehouse": "absent"},
        {"sku": "b", "key": "k-4"},
    ]);
    let first = app.deduct_all(strategy, &lines).await;
    let [deducted, replayed] = ["deducted", "replayed"].map(|code| json!([200, code]));
    let unknown = json!([404, "unknown-sku"]);
    let short = json!([409, "insufficient-stock"]);
    let refused = [short, unknown.clone(), unknown.clone(), unknown];
    let all = |code: &Value| [from_ref(code), &refused[..], from_ref(code)].concat();
    assert_eq!(outcomes(&first), all(&deducted));
    let id = first[0]["id"].as_str().expect("an id");
    let expected = json!({
        "status": 200, "code": "deducted", "id": id, "sku": "a", "warehouse": "main",
        "quantity": 2, "remaining": 8, "strategy": strategy,
    });
    assert_eq!(first[0], expected);
    assert_eq!([&first[1]["requested"], &first[1]["available"]], [2, 1]);
    assert!(first[1]["detail"].is_string(), "{first:?}");

    // A retry of the batch, and lines whose key another line has.
    let again = app.deduct_all(strategy, &lines).await;
    assert_eq!(outcomes(&again), all(&replayed));
    for line in [0, 5] {
        assert_eq!(again[line]["id"], first[line]["id"]);
    }
    let repeated = json!([
        {"sku": "a", "key": "k-5"},
        {"sku": "a", "key": "k-5"},
        {"sku": "a", "key": "k-1"},
        {"sku": "a"},
    ]);
    let repeated = app.deduct_all(strategy, &repeated).await;
    assert_eq!(repeated[0]["id"], repeated[1]["id"]);
    let mut of_key = outcomes(&repeated[..2]);
    of_key.sort_by_key(Value::to_string);
    assert_eq!(of_key, [deducted.clone(), replayed]);
    let others = [json!([422, "idempotency-key-reused"]), deducted];
    assert_eq!(outcomes(&repeated[2..]), others);

    // A request of its own finds what a line has done.
    call!(app, POST "/stock/deduct?strategy={strategy}", key "k-1",
        {"sku": "a", "quantity": 2, "reference": "order-1"} => 200 replayed, {"id": id});
    assert_eq!(app.audit("a").await["sold"], 4);
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousand_lines_sell_exactly_the_stock(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let app = TestApp::with_stock(backend, 1, "a", 900).await;
    let key = "k".repeat(250);
    let line =
        |number| json!({"sku": "a", "key": format!("{number:0>4}-{key}"), "reference": key[..200]});
    let lines: Vec<_> = (0..1_000).map(line).collect();
    let results = app.deduct_all("group-commit", &lines.into()).await;
    let count = |outcome| {
        outcomes(&results)
            .iter()
            .filter(|it| **it == outcome)
            .count()
    };
    assert_eq!(count(json!([200, "deducted"])), 900);
    assert_eq!(count(json!([409, "insufficient-stock"])), 100);
    let remaining = results.iter().filter_map(|it| it["remaining"].as_i64());
    assert_eq!(remaining.collect::<BTreeSet<_>>(), (0..900).collect());
    assert_eq!(app.assert_consistent("a").await["sold"], 900);
}

/// The first lines wait for a row until half of the request's time has passed.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_behind_slow_ones_are_overloaded(#[values(Postgres)] backend: Backend) {
    let flags = ["--wait-limit-ms=6000", "--request-deadline-ms=9000"];
    let app = TestApp::with_flags(backend, 1, &flags).await;
    app.set_level("a", 10).await;
    let rival = Rival::holding_stock(backend, &app.database_url).await;
    let lines = vec![json!({"sku": "a"}); 300];
    let results = app.deduct_all("group-commit", &lines.into()).await;
    for line in &results[256..] {
        let detail = line["detail"].as_str().unwrap_or_default();
        assert!(detail.contains("it was not started"), "{line}");
        assert_eq!(line["code"], "overloaded");
    }
    let all_failed = results.iter().all(|line| line["status"] == 503);
    assert!(all_failed, "{results:?}");
    rival.let_go().await;
    assert_eq!(app.audit("a").await["sold"], 0);
}

/// A deduction that is refused alone asks the ledger for its key. One runtime thread: all lines wait when
/// the first call begins.
#[rstest]
#[tokio::test]
async fn keyed_refusals_need_no_look_up_each(#[values(Mysql, Postgres)] backend: Backend) {
    let (proxy, app) = TestApp::proxied(backend, &[]).await;
    app.set_level("a", 0).await;
    let look_up = proxy.cut_before(b"ORDER BY operation_id = ", 1_000);
    let line = |number| json!({"sku": "a", "key": format!("k-{number}")});
    let lines: Vec<_> = (0..100).map(line).collect();
    let refused = app.deduct_all("group-commit", &lines.into()).await;
    let expected = vec![json!([409, "insufficient-stock"]); 100];
    assert_eq!(outcomes(&refused), expected);
    assert_eq!(look_up.fired(), 0);
}

full! { lines_behind_slow_ones_are_overloaded(backend: Backend [Sqlite, Mysql]); }
