//! Reversals: units of a sale come back, and never more than were sold.

use rstest::rstest;
use serde_json::{Value, json};

use crate::faults::send_until_final;
use crate::support::app::{Answer, TestApp, send};
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

mod concurrent;

async fn reverse_keyed(app: &TestApp, sale: &str, body: &Value, key: &str) -> Answer {
    send(app.reverse(0, sale, body).header("Idempotency-Key", key)).await
}

/// Sells units of a SKU; returns the id of the sale.
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
    let first = reverse_keyed(&app, &sale, &some, "r1").await;
    let expected = json!([sale, "a", "main", 2, true, 7]);
    let fields = [
        "reverses",
        "sku",
        "warehouse",
        "quantity",
        "restock",
        "remaining",
    ];
    assert_eq!(json!(fields.map(|field| &first.ok()[field])), expected);
    assert!(!first.replayed);
    let broken = json!({"quantity": 1, "reason": "broken", "restock": false});
    assert_eq!(
        reverse_keyed(&app, &sale, &broken, "r2").await.ok()["remaining"],
        7
    );

    let more = json!({"quantity": 3, "reason": "x", "restock": true});
    let refused = reverse_keyed(&app, &sale, &more, "r3").await;
    assert_eq!(refused.status_and_code(), (409, "exceeds-sale"));
    assert_eq!(
        (&refused.body["requested"], &refused.body["left"]),
        (&json!(3), &json!(2))
    );
    let rest = json!({"reason": "regret", "restock": true});
    let last = reverse_keyed(&app, &sale, &rest, "r3").await;
    assert_eq!(
        (&last.ok()["quantity"], &last.body["remaining"]),
        (&json!(2), &json!(9))
    );
    let refused = send(app.reverse(0, &sale, &rest)).await;
    assert_eq!(refused.status_and_code(), (409, "exceeds-sale"));
    assert_eq!(refused.body["left"], 0);

    for (body, key, answer) in [(&some, "r1", &first), (&rest, "r3", &last)] {
        let retry = send(app.reverse(1, &sale, body).header("Idempotency-Key", key)).await;
        assert_eq!((retry.ok(), retry.replayed), (answer.ok(), true));
    }
    for other in [
        json!({"quantity": 2, "reason": "wrong size", "restock": false}),
        json!({"quantity": 2, "reason": "x", "restock": true}),
        json!({"reason": "wrong size", "restock": true}),
    ] {
        let reused = reverse_keyed(&app, &sale, &other, "r1").await;
        assert_eq!(reused.status_and_code(), (422, "idempotency-key-reused"));
    }

    let page = app.get_json("/stock/a/movements?kind=returned").await;
    let rows = page["movements"].as_array().expect("a page").iter();
    let rows = rows.map(|row| {
        json!([
            row["reverses"],
            row["returned"],
            row["delta"],
            row["reason"]
        ])
    });
    let expected = [
        json!([sale, 2, 2, "regret"]),
        json!([sale, 1, 0, "broken"]),
        json!([sale, 2, 2, "wrong size"]),
    ];
    assert_eq!(rows.collect::<Vec<_>>(), expected);
    let audit = app.audit("a").await;
    let sums = [
        "received",
        "sold",
        "on_hand",
        "drift",
        "oversold",
        "consistent",
    ];
    let expected = json!([14, 5, 9, 0, 0, true]);
    assert_eq!(json!(sums.map(|sum| &audit[sum])), expected);
}

#[rstest]
#[tokio::test]
async fn only_sales_are_reversed(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let app = TestApp::with_stock(backend, 2, "a", 10).await;
    let all = json!({"reason": "x", "restock": true});
    let sale = sell(&app, "a", 1).await;
    let returned = send(app.reverse(0, &sale, &all)).await;
    returned.ok();
    let adjusted = send(app.adjust(0, "a", &json!({"delta": -1, "reason": "theft"}))).await;
    for id in [&returned.id, &adjusted.id] {
        let refused = send(app.reverse(0, id, &all)).await;
        assert_eq!(refused.status_and_code(), (409, "not-a-sale"));
    }
    let unknown = "01900000-0000-7000-8000-000000000000";
    let refused = send(app.reverse(0, unknown, &all)).await;
    assert_eq!(refused.status_and_code(), (404, "unknown-operation"));
    assert_eq!(app.audit("a").await["on_hand"], 9);
}
