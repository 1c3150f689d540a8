//! Reversals: units of a sale come back, and never more than were sold.

use rstest::rstest;
use serde_json::json;

use crate::faults::send_until_final;
use crate::support::app::TestApp;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

mod concurrent;

async fn sell(app: &TestApp, sku: &str, quantity: u32) -> String {
    let order = json!({"sku": sku, "quantity": quantity});
    let sold = send_until_final(app.deduct(0, "single-sql", &order)).await;
    sold.ok();
    sold.id
}

#[rstest]
#[tokio::test]
async fn units_come_back_with_and_without_restock(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let app = TestApp::with_stock(backend, 2, "a", 10).await;
    let sale = sell(&app, "a", 5).await;
    let some = json!({"quantity": 2, "reason": "wrong size", "restock": true});
    let first = call!(app, POST "/operations/{sale}/reverse", key "r1", (some) => 200, {
        "reverses": sale, "sku": "a", "warehouse": "main", "quantity": 2, "restock": true, "remaining": 7,
    });
    assert!(!first.replayed);
    let broken = json!({"quantity": 1, "reason": "broken", "restock": false});
    call!(app, POST "/operations/{sale}/reverse", key "r2", (broken) => 200, {"remaining": 7});
    let more = json!({"quantity": 3, "reason": "x", "restock": true});
    call!(app, POST "/operations/{sale}/reverse", key "r3", (more)
        => 409 "exceeds-sale", {"requested": 3, "left": 2});
    let rest = json!({"reason": "regret", "restock": true});
    let last = call!(app, POST "/operations/{sale}/reverse", key "r3", (rest)
        => 200, {"quantity": 2, "remaining": 9});
    call!(app, POST "/operations/{sale}/reverse", (rest) => 409 "exceeds-sale", {"left": 0});

    for (body, key, answer) in [(&some, "r1", &first), (&rest, "r3", &last)] {
        let retry =
            call!(app, 1 POST "/operations/{sale}/reverse", key key, (body) => 200 replayed);
        assert_eq!(retry.body, answer.body);
    }
    for other in [
        json!({"quantity": 2, "reason": "wrong size", "restock": false}),
        json!({"quantity": 2, "reason": "x", "restock": true}),
        json!({"reason": "wrong size", "restock": true}),
    ] {
        call!(app, POST "/operations/{sale}/reverse", key "r1", (other) => 422 "idempotency-key-reused");
    }

    let page = app.get("/stock/a/movements?kind=returned").await;
    let expected = [
        json!([sale, 2, 2, "regret"]),
        json!([sale, 1, 0, "broken"]),
        json!([sale, 2, 2, "wrong size"]),
    ];
    let fields = ["reverses", "returned", "delta", "reason"];
    assert_eq!(page.rows("movements", &fields), expected);
    let audit = app.assert_consistent("a").await;
    let sums = ["received", "sold", "on_hand", "drift", "oversold"];
    assert_eq!(sums.map(|sum| &audit[sum]), [14, 5, 9, 0, 0]);
}

#[rstest]
#[tokio::test]
async fn only_sales_are_reversed(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let app = TestApp::with_stock(backend, 2, "a", 10).await;
    let all = json!({"reason": "x", "restock": true});
    let sale = sell(&app, "a", 1).await;
    let returned = call!(app, POST "/operations/{sale}/reverse", (all) => 200).id;
    let adjusted = call!(app, POST "/stock/a/adjust", {"delta": -1, "reason": "theft"} => 200).id;
    for id in [returned, adjusted] {
        call!(app, POST "/operations/{id}/reverse", (all) => 409 "not-a-sale");
    }
    let unknown = "01900000-0000-7000-8000-000000000000";
    call!(app, POST "/operations/{unknown}/reverse", (all) => 404 "unknown-operation");
    assert_eq!(app.audit("a").await["on_hand"], 9);
}
