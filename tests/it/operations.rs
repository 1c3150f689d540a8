//! Looking up what an operation did, by its id, its key and its reference.

use rstest::rstest;
use serde_json::json;

use crate::pages::each_page;
use crate::support::app::TestApp;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

async fn sell(app: &TestApp, key: &str, reference: &str) -> String {
    call!(app, POST "/stock/deduct?strategy=single-sql", key key, {"sku": "a", "reference": reference} => 200).id
}

#[rstest]
#[tokio::test]
async fn operation_is_found_by_id_key_and_reference(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let app = TestApp::with_stock(backend, 2, "a", 10).await;
    let mut sold = Vec::new();
    for (key, reference) in [("k1", "R-1"), ("k2", "R-1"), ("k3", "r-1"), ("k4", "R-1 ")] {
        sold.push(sell(&app, key, reference).await);
    }
    let id = &sold[1];
    for path in [format!("/operations/{id}"), "/operations?key=k2".to_owned()] {
        let found = call!(app, GET "{path}" => 200, {"status": "committed"});
        let fields = [
            "id",
            "sku",
            "kind",
            "delta",
            "available_after",
            "idempotency_key",
            "reference",
            "caller",
        ];
        let expected = json!([id, "a", "deducted", -1, 8, "k2", "R-1", "anonymous"]);
        assert_eq!(found.rows("movements", &fields), [expected], "{path}");
    }
    let pages = each_page(&app, "/operations?reference=R-1&limit=1").await;
    let found = pages
        .iter()
        .flat_map(|page| page.rows("movements", &["id"]));
    assert_eq!(
        found.collect::<Vec<_>>(),
        [json!([sold[1]]), json!([sold[0]])]
    );
}

#[rstest]
#[tokio::test]
async fn operation_that_is_not_in_the_ledger_is_unknown(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let app = TestApp::with_stock(backend, 2, "a", 10).await;
    sell(&app, "k1", "R-1").await;
    for path in [
        "/operations/01900000-0000-7000-8000-000000000000",
        "/operations/00000000-0000-4000-8000-000000000000",
        // The key belongs to another operation.
        "/operations?key=k1&reference=R-2",
        "/operations?key=k9&reference=R-1",
        "/operations?key=k9",
        "/operations?reference=R-9",
    ] {
        let answer = call!(app, GET "{path}" => 200, {"status": "unknown", "movements": []});
        let advice = answer.body["advice"].as_str().expect("advice");
        assert!(advice.contains("the same Idempotency-Key"), "{path}");
    }
    call!(app, GET "/operations?key=k1&reference=R-1" => 200, {"status": "committed", "advice": null});
}
