//! Audits of all SKUs: over HTTP, by the command, and in the metrics.

use rstest::rstest;
use serde_json::{Value, json};

use crate::bulk::{json_lines, lines};
use crate::support::app::{TestApp, send};
use crate::support::process::Process;
use crate::support::rival::Raw;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};
use crate::support::services::fresh_database;

/// The lines of `GET /audit`.
async fn all_audits(app: &TestApp) -> Vec<Value> {
    let answer = app.get("/audit").await;
    assert_eq!(answer.header("content-type"), "application/x-ndjson");
    lines(&answer)
}

#[rstest]
#[tokio::test]
async fn all_skus_are_audited_and_counted(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let database = fresh_database(backend).await;
    let app = TestApp::on(&database.url, 1, &[]).await;
    for sku in ["a", "b", "上海"] {
        app.set_level(sku, 10).await;
    }
    let north = json!({"on_hand": 5, "warehouse": "north"});
    assert_eq!(send(app.put(0, "b", &north)).await.status, 201);
    assert_eq!(app.gauge("stock_drift_units").await, None);
    assert_eq!(all_audits(&app).await.len(), 3);
    for name in ["stock_drift_units", "stock_oversold_units"] {
        assert_eq!(app.gauge(name).await, Some(0.0), "{name}");
    }

    let mut raw = Raw::connect(backend, &database.url).await;
    for lost in [
        "UPDATE stock SET on_hand = on_hand - 3 WHERE sku = 'a'",
        "UPDATE stock SET on_hand = on_hand + 2 WHERE warehouse = 'north'",
        "UPDATE movement SET delta = -17, kind = 'deducted' WHERE sku = '上海'",
    ] {
        raw.run(lost).await.unwrap();
    }
    let audits = all_audits(&app).await;
    let mut one_by_one = Vec::new();
    for sku in ["a", "b", "上海"] {
        one_by_one.push(app.get_json(&format!("/stock/{sku}/audit")).await);
    }
    assert_eq!(audits, one_by_one);
    assert_eq!(audits[1]["warehouses"][1]["drift"], 2);
    // 10 units on hand, although 17 were sold and none received.
    assert_eq!(app.gauge("stock_drift_units").await, Some(32.0));
    assert_eq!(app.gauge("stock_oversold_units").await, Some(17.0));

    raw.run("UPDATE stock SET on_hand = on_hand + 3 WHERE sku = 'a'")
        .await
        .unwrap();
    assert_eq!(app.gauge("stock_drift_units").await, Some(32.0));
    app.assert_consistent("a").await;
    assert_eq!(app.gauge("stock_drift_units").await, Some(29.0));
}

/// The levels are read in pages, whose ends are in the middle of SKUs.
#[tokio::test]
async fn every_sku_of_several_pages_is_audited_once() {
    let database = fresh_database(Sqlite).await;
    let app = TestApp::on(&database.url, 1, &[]).await;
    assert_eq!(all_audits(&app).await.len(), 0);
    let mut raw = Raw::connect(Sqlite, &database.url).await;
    let many = "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 700)
        INSERT INTO stock (sku, warehouse, on_hand)
        SELECT printf('sku-%04d', n), warehouse, 0 FROM s CROSS JOIN
            (SELECT 'a' AS warehouse UNION SELECT 'b' UNION SELECT 'c')";
    raw.run(many).await.unwrap();
    let audits = all_audits(&app).await;
    let skus: Vec<_> = audits.iter().map(|audit| audit["sku"].as_str()).collect();
    let expected: Vec<_> = (1..=700).map(|n| format!("sku-{n:04}")).collect();
    let expected = expected.iter().map(|sku| Some(&**sku)).collect::<Vec<_>>();
    assert_eq!(skus, expected);
    let is_whole = |audit: &Value| audit["warehouses"].as_array().is_some_and(|w| w.len() == 3);
    assert!(audits.iter().all(is_whole));
}

#[rstest]
#[tokio::test]
async fn audit_command_fails_on_drift(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let database = fresh_database(backend).await;
    let variables = [("DATABASE_URL", &*database.url)];
    let app = TestApp::on(&database.url, 1, &[]).await;
    for sku in ["a", "b"] {
        app.set_level(sku, 10).await;
        let sale = app.deduct(0, "single-sql", &json!({ "sku": sku }));
        send(sale).await.ok();
    }
    let all = ["audit", "--all", "--fail-on-drift"];
    let ended = Process::run(&all, &variables).await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(json_lines(&ended.stdout), all_audits(&app).await);

    let mut raw = Raw::connect(backend, &database.url).await;
    raw.run("UPDATE stock SET on_hand = on_hand + 1 WHERE sku = 'b'")
        .await
        .unwrap();
    for (arguments, code, printed) in [
        (&all[..], 1, 2),
        (&["audit", "--all"][..], 0, 2),
        (&["audit", "a", "--fail-on-drift"][..], 0, 1),
        (&["audit", "a", "b", "--fail-on-drift"][..], 1, 2),
        (&["audit", "nothing"][..], 3, 0),
        (&["audit"][..], 2, 0),
        (&["audit", "--all", "a"][..], 2, 0),
    ] {
        let ended = Process::run(arguments, &variables).await;
        assert_eq!(ended.code, Some(code), "{arguments:?}: {}", ended.stderr);
        assert_eq!(json_lines(&ended.stdout).len(), printed, "{arguments:?}");
    }
}
