//! Orders and adjustments of several lines: all of them, or nothing; and what comes back of each line.

use reqwest::{Method, RequestBuilder};
use rstest::rstest;
use serde_json::{Value, json};

use crate::pages::each_page;
use crate::support::app::TestApp;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

mod contended;
mod sourced;

/// Ten units of `a`, and three of `b`, at two replicas.
async fn shop(backend: Backend) -> TestApp {
    let app = TestApp::with_stock(backend, 2, "a", 10).await;
    app.set_level("b", 3).await;
    app
}

/// Units on hand of a SKU, in the order of its warehouses.
async fn on_hand(app: &TestApp, sku: &str) -> Vec<Value> {
    let levels = app.levels(sku).await;
    levels.iter().map(|level| level[0].clone()).collect()
}

/// An order, ready to send.
fn order(app: &TestApp, replica: usize, lines: &Value) -> RequestBuilder {
    let request = app.request(replica, Method::POST, "/stock/deduct");
    request.json(&json!({ "lines": lines }))
}

#[rstest]
#[tokio::test]
async fn order_takes_all_lines_and_is_replayed(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let app = shop(backend).await;
    let cart = json!([{"sku": "b"}, {"sku": "a", "quantity": 2}, {"sku": "b", "quantity": 2}]);
    let sold = call!(app, 1 POST "/stock/deduct", key "k1", {"lines": cart} => 200);
    let expected = json!({
        "id": sold.id,
        "lines": [
            {"line": 0, "sku": "b", "warehouse": "main", "quantity": 1, "remaining": 2},
            {"line": 1, "sku": "a", "warehouse": "main", "quantity": 2, "remaining": 8},
            {"line": 2, "sku": "b", "warehouse": "main", "quantity": 2, "remaining": 0},
        ],
        "strategy": "group-commit",
    });
    assert_eq!((&sold.body, sold.replayed), (&expected, false));

    let retry = call!(app, POST "/stock/deduct", key "k1", {"lines": cart} => 200 replayed);
    assert_eq!(retry.body, expected);
    for other in [json!([{"sku": "a"}, {"sku": "b"}]), json!([{"sku": "b"}])] {
        call!(app, 1 POST "/stock/deduct", key "k1", {"lines": other} => 422 "idempotency-key-reused");
    }
    assert_eq!(on_hand(&app, "a").await, [8]);
    assert_eq!(on_hand(&app, "b").await, [0]);

    for path in [
        format!("/operations/{}", sold.id),
        "/operations?key=k1".to_owned(),
    ] {
        let found = app.get(&path).await;
        let expected = [
            json!([0, "b", -1, "k1"]),
            json!([1, "a", -2, null]),
            json!([2, "b", -2, null]),
        ];
        let fields = ["line", "sku", "delta", "idempotency_key"];
        assert_eq!(found.rows("movements", &fields), expected, "{path}");
    }
    for sku in ["a", "b"] {
        app.assert_consistent(sku).await;
    }
}

#[rstest]
#[tokio::test]
async fn refused_order_takes_nothing_and_names_each_line(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let app = shop(backend).await;
    let cart = json!([
        {"sku": "b", "quantity": 2}, {"sku": "a"}, {"sku": "b", "quantity": 2},
        {"sku": "a", "quantity": 10},
    ]);
    let short =
        call!(app, 1 POST "/stock/deduct", key "k1", {"lines": cart} => 409 "insufficient-stock");
    let fields = ["line", "sku", "warehouse", "requested", "available"];
    let expected = [
        json!([2, "b", "main", 2, 1]),
        json!([3, "a", "main", 10, 9]),
    ];
    assert_eq!(short.rows("lines", &fields), expected);

    let cart = json!([
        {"sku": "b", "quantity": 9}, {"sku": "x"}, {"sku": "a", "warehouse": "north"},
    ]);
    let unknown =
        call!(app, 1 POST "/stock/deduct", key "k1", {"lines": cart} => 404 "unknown-sku");
    let expected = [json!([1, "x", "main"]), json!([2, "a", "north"])];
    assert_eq!(unknown.rows("lines", &fields[..3]), expected);
    assert_eq!(on_hand(&app, "a").await, [10]);
    assert_eq!(on_hand(&app, "b").await, [3]);
    // A refusal is not recorded, so the key is free.
    call!(app, 1 POST "/stock/deduct", key "k1", {"lines": [{"sku": "a"}, {"sku": "b"}]} => 200);
}

/// One line is the same request in either form.
#[rstest]
#[tokio::test]
async fn order_of_one_line_is_a_deduction(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let app = shop(backend).await;
    let line = json!({"sku": "a", "quantity": 2});
    let sold = call!(app, 1 POST "/stock/deduct", key "k1", {"lines": [line]} => 200);
    let fields = ["line", "sku", "warehouse", "quantity", "remaining"];
    assert_eq!(sold.rows("lines", &fields), [json!([0, "a", "main", 2, 8])]);
    call!(app, 1 POST "/stock/deduct", key "k1", (line) => 200 replayed, {"id": sold.id, "remaining": 8});
    // Without a key: it is one line.
    call!(app, POST "/stock/deduct", {"lines": [{"sku": "a"}]} => 200, {"/lines/0/remaining": 7});
    call!(app, 1 POST "/stock/deduct", key "k2", {"lines": [{"sku": "a", "quantity": 9}]}
        => 409 "insufficient-stock", {"available": 7});
}

#[tokio::test]
async fn invalid_orders_are_refused() {
    let app = shop(Sqlite).await;
    let two = json!([{"sku": "a"}, {"sku": "b"}]);
    call!(app, POST "/stock/deduct", {"lines": two} => 400 "idempotency-key-required");
    let transfer = json!([{"sku": "a", "delta": -1}, {"sku": "b", "delta": 1}]);
    call!(app, POST "/adjustments", {"lines": transfer, "reason": "x"} => 400 "idempotency-key-required");
    let (deduct, adjust) = ("/stock/deduct", "/adjustments");
    let many: Vec<_> = (0..101).map(|_| json!({"sku": "a"})).collect();
    for (path, detail, body) in [
        (deduct, "not both", json!({"lines": two, "sku": "a"})),
        (deduct, "not both", json!({"lines": two, "quantity": 1})),
        (deduct, "1 to 100", json!({"lines": []})),
        (deduct, "1 to 100", json!({"lines": many})),
        (deduct, "lines", json!({"lines": null})),
        (deduct, "lines[0]", json!({"lines": [["a"]]})),
        (
            deduct,
            "lines[0].quantity",
            json!({"lines": [{"sku": "a", "quantity": 0}]}),
        ),
        (
            deduct,
            "lines[0].key",
            json!({"lines": [{"sku": "a", "key": "k"}]}),
        ),
        (
            deduct,
            "lines[0]",
            json!({"lines": [{"warehouse": "main"}]}),
        ),
        (adjust, "1 to 100", json!({"lines": [], "reason": "x"})),
        (
            adjust,
            "lines[0].delta",
            json!({"lines": [{"sku": "a", "delta": 0}], "reason": "x"}),
        ),
        (
            adjust,
            "reason",
            json!({"lines": [{"sku": "a", "delta": 1}]}),
        ),
    ] {
        let refused = call!(app, POST "{path}", key "k", (body) => 422 "invalid-request");
        assert!(refused.detail.contains(detail), "{body}: {refused:?}");
    }
    assert_eq!(on_hand(&app, "a").await, [10]);
}

/// The longest names, with letters of four bytes, in 100 lines.
#[tokio::test]
async fn largest_order_fits_into_a_body() {
    let app = shop(Sqlite).await;
    let warehouse = "\u{10400}".repeat(64);
    let line = |number| {
        let sku = format!("{}{number:02}", "\u{10400}".repeat(62));
        json!({"sku": sku, "warehouse": warehouse, "quantity": 10_000})
    };
    let many: Vec<_> = (0..100).map(line).collect();
    let unknown = call!(app, POST "/stock/deduct", key "k", {"lines": many} => 404 "unknown-sku");
    assert_eq!(unknown.rows("lines", &["line"]).len(), 100);
}

#[rstest]
#[tokio::test]
async fn transfer_moves_units_between_warehouses(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let app = shop(backend).await;
    call!(app, PUT "/stock/a", {"warehouse": "north", "on_hand": 1} => 201);
    let transfer = |units: i64| {
        json!({
            "lines": [
                {"sku": "a", "delta": -units},
                {"sku": "a", "warehouse": "north", "delta": units},
            ],
            "reason": "transfer", "reference": "TR-1",
        })
    };
    let moved = call!(app, 1 POST "/adjustments", key "t1", (transfer(4)) => 200);
    let expected = json!({
        "id": moved.id,
        "lines": [
            {"line": 0, "sku": "a", "warehouse": "main", "delta": -4, "remaining": 6},
            {"line": 1, "sku": "a", "warehouse": "north", "delta": 4, "remaining": 5},
        ],
    });
    assert_eq!(moved.body, expected);
    let retry = call!(app, 1 POST "/adjustments", key "t1", (transfer(4)) => 200 replayed);
    assert_eq!(retry.body, expected);
    call!(app, 1 POST "/adjustments", key "t1", (transfer(3)) => 422 "idempotency-key-reused");
    let short =
        call!(app, 1 POST "/adjustments", key "t2", (transfer(7)) => 409 "insufficient-stock");
    let fields = ["line", "warehouse", "requested", "available"];
    assert_eq!(short.rows("lines", &fields), [json!([0, "main", 7, 6])]);
    assert_eq!(on_hand(&app, "a").await, [6, 5]);
    let found = app.get("/operations?reference=TR-1").await;
    let expected = [
        json!([0, "adjusted", "transfer"]),
        json!([1, "received", "transfer"]),
    ];
    let found = found.rows("movements", &["line", "kind", "reason"]);
    assert_eq!(found, expected);
}

#[rstest]
#[tokio::test]
async fn units_of_an_order_come_back_by_line(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let app = shop(backend).await;
    let cart = json!([{"sku": "a", "quantity": 4}, {"sku": "b", "quantity": 2}, {"sku": "a"}]);
    let sale = call!(app, 1 POST "/stock/deduct", key "k1", {"lines": cart} => 200).id;
    let back = |lines: Value| json!({"lines": lines, "reason": "wrong size", "restock": true});
    // A single line needs no key.
    let one = back(json!([{"line": 1, "quantity": 1}]));
    let one = call!(app, POST "/operations/{sale}/reverse", (one) => 200);
    let expected = json!({
        "id": one.id, "reverses": sale, "restock": true,
        "lines": [{"line": 1, "sku": "b", "warehouse": "main", "quantity": 1, "remaining": 2}],
    });
    assert_eq!(one.body, expected);

    let fields = ["line", "sku", "quantity", "remaining"];
    let some = back(json!([{"line": 2}, {"line": 0, "quantity": 3}]));
    let two = call!(app, 1 POST "/operations/{sale}/reverse", key "r1", (some) => 200);
    let expected = [json!([0, "a", 3, 8]), json!([2, "a", 1, 9])];
    assert_eq!(two.rows("lines", &fields), expected, "{two:?}");
    let retry = call!(app, 1 POST "/operations/{sale}/reverse", key "r1", (some) => 200 replayed);
    assert_eq!(retry.body, two.body);

    let exceeding = back(json!([{"line": 0, "quantity": 2}, {"line": 1}]));
    let exceeds = call!(app, 1 POST "/operations/{sale}/reverse", key "r2", (exceeding) => 409 "exceeds-sale");
    let lines = exceeds.rows("lines", &["line", "requested", "left"]);
    assert_eq!(lines, [json!([0, 2, 1])]);
    assert_eq!(on_hand(&app, "b").await, [2]);
    let unknown = back(json!([{"line": 7}]));
    call!(app, 1 POST "/operations/{sale}/reverse", key "r2", (unknown) => 404 "unknown-line");
    let twice = back(json!([{"line": 0}, {"line": 0}]));
    call!(app, 1 POST "/operations/{sale}/reverse", key "r2", (twice) => 422 "invalid-request");

    let all = json!({"reason": "regret", "restock": true});
    call!(app, POST "/operations/{sale}/reverse", (all) => 400 "idempotency-key-required");
    let unclear = json!({"reason": "regret", "restock": true, "quantity": 1});
    call!(app, 1 POST "/operations/{sale}/reverse", key "r3", (unclear) => 422 "lines-required");
    // Nothing is left of line 2.
    let rest = call!(app, 1 POST "/operations/{sale}/reverse", key "r3", (all) => 200);
    let expected = [json!([0, "a", 1, 10]), json!([1, "b", 1, 3])];
    assert_eq!(rest.rows("lines", &fields), expected);
    let retry = call!(app, 1 POST "/operations/{sale}/reverse", key "r3", (all) => 200 replayed);
    assert_eq!(retry.body, rest.body);
    call!(app, 1 POST "/operations/{sale}/reverse", key "r4", (all) => 409 "exceeds-sale");
    for sku in ["a", "b"] {
        app.assert_consistent(sku).await;
    }
}

/// No page of operations ends between the lines of one.
#[rstest]
#[tokio::test]
async fn page_has_all_lines_of_its_last_operation(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let app = shop(backend).await;
    let mut sold = Vec::new();
    for key in ["k1", "k2"] {
        let body = json!({"lines": [{"sku": "b"}, {"sku": "a"}, {"sku": "a"}], "reference": "R"});
        sold.insert(
            0,
            call!(app, 1 POST "/stock/deduct", key key, (body) => 200).id,
        );
    }
    let pages = each_page(&app, "/operations?reference=R&limit=2").await;
    let pages = pages
        .iter()
        .map(|page| page.rows("movements", &["id", "line"]));
    let pages: Vec<_> = pages.filter(|page| !page.is_empty()).collect();
    let page = |id: &String| (0..3).map(|line| json!([id, line])).collect::<Vec<_>>();
    assert_eq!(pages, sold.iter().map(page).collect::<Vec<_>>());
}

#[rstest]
#[tokio::test]
async fn batch_takes_orders_as_lines(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let app = shop(backend).await;
    let batch = json!([
        {"lines": [{"sku": "a"}, {"sku": "b"}], "key": "k1", "reference": "R"},
        {"sku": "a", "key": "k2"},
        {"lines": [{"sku": "a"}, {"sku": "b", "quantity": 3}], "key": "k3"},
        {"lines": [{"sku": "a"}, {"sku": "b"}]},
    ]);
    let sold = call!(app, POST "/stock/deduct/batch", {"lines": batch} => 200, {
        "/results/0/lines/1/remaining": 2, "/results/2/lines/0/available": 2,
    });
    let expected = [
        json!([200, "deducted"]),
        json!([200, "deducted"]),
        json!([409, "insufficient-stock"]),
        json!([400, "idempotency-key-required"]),
    ];
    assert_eq!(sold.rows("results", &["status", "code"]), expected);
    assert_eq!(on_hand(&app, "a").await, [8]);
    let line = json!({"sku": "a"});
    let many = (0..11).map(|key| json!({"lines": vec![&line; 91], "key": format!("m{key}")}));
    let many: Vec<_> = many.collect();
    call!(app, POST "/stock/deduct/batch", {"lines": many} => 422 "invalid-request");
}
