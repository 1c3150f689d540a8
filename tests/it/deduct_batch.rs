//! `POST /stock/deduct/batch`: each line is answered like a request of its own.

use std::collections::BTreeSet;

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::app::{TestApp, send};
use crate::support::rival::Rival;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

/// Status and code of each line.
fn outcomes(results: &[Value]) -> Vec<(u64, &str)> {
    let outcome = |line: &Value| line["status"].as_u64().expect("a status");
    let codes = results.iter().map(|line| line["code"].as_str());
    let statuses = results.iter().map(outcome);
    statuses
        .zip(codes.map(|code| code.expect("a code")))
        .collect()
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
        {"sku": "a", "warehouse": "absent"},
        {"sku": "b", "key": "k-4"},
    ]);
    let first = app.deduct_all(strategy, &lines).await;
    let expected = [
        (200, "deducted"),
        (409, "insufficient-stock"),
        (404, "unknown-sku"),
        (404, "unknown-sku"),
        (200, "deducted"),
    ];
    assert_eq!(outcomes(&first), expected);
    let id = first[0]["id"].as_str().expect("an id");
    assert_eq!(
        first[0],
        json!({
            "status": 200, "code": "deducted", "id": id, "sku": "a", "warehouse": "main",
            "quantity": 2, "remaining": 8, "strategy": strategy,
        })
    );
    let short = (
        first[1]["requested"].as_i64(),
        first[1]["available"].as_i64(),
    );
    assert_eq!(short, (Some(2), Some(1)));
    assert!(first[1]["detail"].is_string(), "{first:?}");

    // A retry of the batch, and lines whose key another line has.
    let again = app.deduct_all(strategy, &lines).await;
    let replayed = (200, "replayed");
    assert_eq!(
        outcomes(&again),
        [replayed, expected[1], expected[2], expected[3], replayed]
    );
    assert_eq!(
        (&again[0]["id"], &again[4]["id"]),
        (&first[0]["id"], &first[4]["id"])
    );
    let repeated = json!([
        {"sku": "a", "key": "k-5"},
        {"sku": "a", "key": "k-5"},
        {"sku": "a", "key": "k-1"},
        {"sku": "a"},
    ]);
    let repeated = app.deduct_all(strategy, &repeated).await;
    assert_eq!(repeated[0]["id"], repeated[1]["id"]);
    let of_key: BTreeSet<_> = outcomes(&repeated[..2]).into_iter().collect();
    assert_eq!(of_key, BTreeSet::from([(200, "deducted"), replayed]));
    let others = [(422, "idempotency-key-reused"), (200, "deducted")];
    assert_eq!(outcomes(&repeated[2..]), others);

    // A request of its own finds what a line has done.
    let alone = app.deduct(
        0,
        strategy,
        &json!({"sku": "a", "quantity": 2, "reference": "order-1"}),
    );
    let alone = send(alone.header("Idempotency-Key", "k-1")).await;
    assert_eq!(
        (alone.ok()["id"].as_str(), alone.replayed),
        (Some(id), true)
    );
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
    let outcomes = outcomes(&results);
    let sold = outcomes.iter().filter(|it| **it == (200, "deducted"));
    assert_eq!(sold.count(), 900);
    let refused = outcomes
        .iter()
        .filter(|it| **it == (409, "insufficient-stock"));
    assert_eq!(refused.count(), 100);
    let remaining: BTreeSet<_> = results
        .iter()
        .filter_map(|it| it["remaining"].as_i64())
        .collect();
    assert_eq!(remaining, (0..900).collect());
    let audit = app.audit("a").await;
    assert_eq!(
        (&audit["sold"], &audit["consistent"]),
        (&json!(900), &json!(true))
    );
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
        assert_eq!(
            (&line["status"], &line["code"]),
            (&json!(503), &json!("overloaded"))
        );
    }
    assert!(
        results.iter().all(|line| line["status"] == 503),
        "{results:?}"
    );
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
    assert_eq!(outcomes(&refused), [(409, "insufficient-stock"); 100]);
    assert_eq!(look_up.fired(), 0);
}

full! { lines_behind_slow_ones_are_overloaded(backend: Backend [Sqlite, Mysql]); }
