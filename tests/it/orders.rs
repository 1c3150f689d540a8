//! Orders and adjustments of several lines: all of them, or nothing; and what comes back of each line.

use reqwest::{Method, RequestBuilder};
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::app::{Answer, TestApp, send};
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

mod contended;
mod sourced;

/// An order, ready to send.
fn order(app: &TestApp, replica: usize, lines: &Value) -> RequestBuilder {
    let request = app.request(replica, Method::POST, "/stock/deduct");
    request.json(&json!({ "lines": lines }))
}

/// A POST of `body` with a key.
async fn post(app: &TestApp, path: &str, body: &Value, key: &str) -> Answer {
    let request = app.request(1, Method::POST, path).json(body);
    send(request.header("Idempotency-Key", key)).await
}

async fn buy(app: &TestApp, key: &str, lines: Value) -> Answer {
    post(app, "/stock/deduct", &json!({ "lines": lines }), key).await
}

/// The lines of an answer or of a problem, each with these fields.
fn lines(answer: &Answer, fields: &[&str]) -> Vec<Value> {
    let lines = answer.body["lines"].as_array();
    let lines = lines.unwrap_or_else(|| panic!("{answer:?}")).iter();
    let line = |line: &Value| fields.iter().map(|field| line[field].clone()).collect();
    lines.map(line).collect()
}

/// Units on hand of a SKU, in the order of its warehouses.
async fn on_hand(app: &TestApp, sku: &str) -> Vec<Value> {
    let levels = app.get_json(&format!("/stock/{sku}")).await;
    let levels = levels["warehouses"].as_array().expect("levels").clone();
    levels
        .iter()
        .map(|level| level["on_hand"].clone())
        .collect()
}

/// Two replicas with ten units of `a`, and three of `b`.
async fn shop(backend: Backend) -> TestApp {
    let app = TestApp::with_stock(backend, 2, "a", 10).await;
    app.set_level("b", 3).await;
    app
}

#[rstest]
#[tokio::test]
async fn order_takes_all_lines_and_is_replayed(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let app = shop(backend).await;
    let cart = json!([{"sku": "b"}, {"sku": "a", "quantity": 2}, {"sku": "b", "quantity": 2}]);
    let sold = buy(&app, "k1", cart.clone()).await;
    let id = sold.ok()["id"].as_str().expect("an id");
    let expected = json!({
        "id": id,
        "lines": [
            {"line": 0, "sku": "b", "warehouse": "main", "quantity": 1, "remaining": 2},
            {"line": 1, "sku": "a", "warehouse": "main", "quantity": 2, "remaining": 8},
            {"line": 2, "sku": "b", "warehouse": "main", "quantity": 2, "remaining": 0},
        ],
        "strategy": "group-commit",
    });
    assert_eq!((&sold.body, sold.replayed), (&expected, false));

    let retry = order(&app, 0, &cart).header("Idempotency-Key", "k1");
    let retry = send(retry).await;
    assert_eq!((retry.ok(), retry.replayed), (&expected, true));
    for other in [json!([{"sku": "a"}, {"sku": "b"}]), json!([{"sku": "b"}])] {
        let reused = buy(&app, "k1", other).await;
        assert_eq!(reused.status_and_code(), (422, "idempotency-key-reused"));
    }
    assert_eq!(on_hand(&app, "a").await, [8]);
    assert_eq!(on_hand(&app, "b").await, [0]);

    for path in [format!("/operations/{id}"), "/operations?key=k1".to_owned()] {
        let found = app.get_json(&path).await;
        let movements = found["movements"].as_array().expect("movements").iter();
        let row = |it: &Value| json!([it["line"], it["sku"], it["delta"], it["idempotency_key"]]);
        let expected = [
            json!([0, "b", -1, "k1"]),
            json!([1, "a", -2, null]),
            json!([2, "b", -2, null]),
        ];
        assert_eq!(movements.map(row).collect::<Vec<_>>(), expected, "{path}");
    }
    for sku in ["a", "b"] {
        assert_eq!(app.audit(sku).await["consistent"], true);
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
    let short = buy(&app, "k1", cart).await;
    assert_eq!(short.status_and_code(), (409, "insufficient-stock"));
    let fields = ["line", "sku", "warehouse", "requested", "available"];
    let expected = [
        json!([2, "b", "main", 2, 1]),
        json!([3, "a", "main", 10, 9]),
    ];
    assert_eq!(lines(&short, &fields), expected);

    let cart = json!([
        {"sku": "b", "quantity": 9}, {"sku": "x"}, {"sku": "a", "warehouse": "north"},
    ]);
    let unknown = buy(&app, "k1", cart).await;
    assert_eq!(unknown.status_and_code(), (404, "unknown-sku"));
    let expected = [json!([1, "x", "main"]), json!([2, "a", "north"])];
    assert_eq!(lines(&unknown, &fields[..3]), expected);
    assert_eq!(on_hand(&app, "a").await, [10]);
    assert_eq!(on_hand(&app, "b").await, [3]);
    // A refusal is not recorded, so the key is free.
    buy(&app, "k1", json!([{"sku": "a"}, {"sku": "b"}]))
        .await
        .ok();
}

/// One line is the same request in either form.
#[rstest]
#[tokio::test]
async fn order_of_one_line_is_a_deduction(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let app = shop(backend).await;
    let sold = buy(&app, "k1", json!([{"sku": "a", "quantity": 2}])).await;
    let expected = [json!([0, "a", "main", 2, 8])];
    let fields = ["line", "sku", "warehouse", "quantity", "remaining"];
    assert_eq!(lines(&sold, &fields), expected);
    let flat = post(
        &app,
        "/stock/deduct",
        &json!({"sku": "a", "quantity": 2}),
        "k1",
    )
    .await;
    assert_eq!((&flat.ok()["id"], flat.replayed), (&json!(sold.id), true));
    assert_eq!(flat.body["remaining"], 8);
    // Without a key: it is one line.
    let keyless = send(order(&app, 0, &json!([{"sku": "a"}]))).await;
    assert_eq!(lines(&keyless, &["remaining"]), [json!([7])]);
    let short = buy(&app, "k2", json!([{"sku": "a", "quantity": 9}])).await;
    assert_eq!(short.status_and_code(), (409, "insufficient-stock"));
    assert_eq!(short.body["available"], 7);
}

#[tokio::test]
async fn invalid_orders_are_refused() {
    let app = shop(Sqlite).await;
    let two = json!([{"sku": "a"}, {"sku": "b"}]);
    let keyless = send(order(&app, 0, &two)).await;
    assert_eq!(keyless.status_and_code(), (400, "idempotency-key-required"));
    let transfer =
        json!({"lines": [{"sku": "a", "delta": -1}, {"sku": "b", "delta": 1}], "reason": "x"});
    let keyless = send(app.request(0, Method::POST, "/adjustments").json(&transfer)).await;
    assert_eq!(keyless.status_and_code(), (400, "idempotency-key-required"));
    let many: Vec<_> = (0..101).map(|_| json!({"sku": "a"})).collect();
    for (body, detail) in [
        (json!({"lines": two, "sku": "a"}), "not both"),
        (json!({"lines": two, "quantity": 1}), "not both"),
        (json!({"lines": []}), "1 to 100"),
        (json!({"lines": many}), "1 to 100"),
        (json!({"lines": null}), "lines"),
        (json!({"lines": [["a"]]}), "lines[0]"),
        (
            json!({"lines": [{"sku": "a", "quantity": 0}]}),
            "lines[0].quantity",
        ),
        (json!({"lines": [{"sku": "a", "key": "k"}]}), "lines[0].key"),
        (json!({"lines": [{"warehouse": "main"}]}), "lines[0]"),
    ] {
        let refused = post(&app, "/stock/deduct", &body, "k").await;
        assert_eq!(
            refused.status_and_code(),
            (422, "invalid-request"),
            "{body}"
        );
        assert!(refused.detail.contains(detail), "{body}: {refused:?}");
    }
    for (body, detail) in [
        (json!({"lines": [], "reason": "x"}), "1 to 100"),
        (
            json!({"lines": [{"sku": "a", "delta": 0}], "reason": "x"}),
            "lines[0].delta",
        ),
        (json!({"lines": [{"sku": "a", "delta": 1}]}), "reason"),
    ] {
        let refused = post(&app, "/adjustments", &body, "k").await;
        assert_eq!(
            refused.status_and_code(),
            (422, "invalid-request"),
            "{body}"
        );
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
    let unknown = buy(&app, "k", many.into()).await;
    assert_eq!(unknown.status_and_code(), (404, "unknown-sku"));
    assert_eq!(lines(&unknown, &["line"]).len(), 100);
}

#[rstest]
#[tokio::test]
async fn transfer_moves_units_between_warehouses(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let app = shop(backend).await;
    send(app.put(0, "a", &json!({"warehouse": "north", "on_hand": 1}))).await;
    let transfer = |units: i64| {
        json!({
            "lines": [
                {"sku": "a", "delta": -units},
                {"sku": "a", "warehouse": "north", "delta": units},
            ],
            "reason": "transfer", "reference": "TR-1",
        })
    };
    let moved = post(&app, "/adjustments", &transfer(4), "t1").await;
    let expected = json!({
        "id": moved.id,
        "lines": [
            {"line": 0, "sku": "a", "warehouse": "main", "delta": -4, "remaining": 6},
            {"line": 1, "sku": "a", "warehouse": "north", "delta": 4, "remaining": 5},
        ],
    });
    assert_eq!(moved.ok(), &expected);
    let retry = post(&app, "/adjustments", &transfer(4), "t1").await;
    assert_eq!((retry.ok(), retry.replayed), (&expected, true));
    let reused = post(&app, "/adjustments", &transfer(3), "t1").await;
    assert_eq!(reused.status_and_code(), (422, "idempotency-key-reused"));
    let short = post(&app, "/adjustments", &transfer(7), "t2").await;
    assert_eq!(short.status_and_code(), (409, "insufficient-stock"));
    let fields = ["line", "warehouse", "requested", "available"];
    assert_eq!(lines(&short, &fields), [json!([0, "main", 7, 6])]);
    assert_eq!(on_hand(&app, "a").await, [6, 5]);
    let found = app.get_json("/operations?reference=TR-1").await;
    let movements = found["movements"].as_array().expect("movements").iter();
    let row = |it: &Value| json!([it["line"], it["kind"], it["reason"]]);
    let expected = [
        json!([0, "adjusted", "transfer"]),
        json!([1, "received", "transfer"]),
    ];
    assert_eq!(movements.map(row).collect::<Vec<_>>(), expected);
}

#[rstest]
#[tokio::test]
async fn units_of_an_order_come_back_by_line(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let app = shop(backend).await;
    let cart = json!([{"sku": "a", "quantity": 4}, {"sku": "b", "quantity": 2}, {"sku": "a"}]);
    let sale = buy(&app, "k1", cart).await.id;
    let path = format!("/operations/{sale}/reverse");
    let give_back = async |lines: Value, key: &str| {
        let body = json!({"lines": lines, "reason": "wrong size", "restock": true});
        post(&app, &path, &body, key).await
    };
    // A single line needs no key.
    let body = json!({"lines": [{"line": 1, "quantity": 1}], "reason": "x", "restock": true});
    let one = send(app.request(0, Method::POST, &path).json(&body)).await;
    let expected = json!({
        "id": one.id, "reverses": sale, "restock": true,
        "lines": [{"line": 1, "sku": "b", "warehouse": "main", "quantity": 1, "remaining": 2}],
    });
    assert_eq!(one.ok(), &expected);

    let fields = ["line", "sku", "quantity", "remaining"];
    let two = give_back(json!([{"line": 2}, {"line": 0, "quantity": 3}]), "r1").await;
    let expected = [json!([0, "a", 3, 8]), json!([2, "a", 1, 9])];
    assert_eq!(lines(&two, &fields), expected, "{two:?}");
    let retry = give_back(json!([{"line": 2}, {"line": 0, "quantity": 3}]), "r1").await;
    assert_eq!((retry.ok(), retry.replayed), (&two.body, true));

    let exceeds = give_back(json!([{"line": 0, "quantity": 2}, {"line": 1}]), "r2").await;
    assert_eq!(exceeds.status_and_code(), (409, "exceeds-sale"));
    let fields_of_refusal = ["line", "requested", "left"];
    assert_eq!(lines(&exceeds, &fields_of_refusal), [json!([0, 2, 1])]);
    assert_eq!(on_hand(&app, "b").await, [2]);
    let unknown = give_back(json!([{"line": 7}]), "r2").await;
    assert_eq!(unknown.status_and_code(), (404, "unknown-line"));
    let twice = give_back(json!([{"line": 0}, {"line": 0}]), "r2").await;
    assert_eq!(twice.status_and_code(), (422, "invalid-request"));

    let all = json!({"reason": "regret", "restock": true});
    let keyless = send(app.request(0, Method::POST, &path).json(&all)).await;
    assert_eq!(keyless.status_and_code(), (400, "idempotency-key-required"));
    let mut units = all.clone();
    units["quantity"] = json!(1);
    let unclear = post(&app, &path, &units, "r3").await;
    assert_eq!(unclear.status_and_code(), (422, "lines-required"));
    // Nothing is left of line 2.
    let rest = post(&app, &path, &all, "r3").await;
    let expected = [json!([0, "a", 1, 10]), json!([1, "b", 1, 3])];
    assert_eq!(lines(&rest, &fields), expected);
    let retry = post(&app, &path, &all, "r3").await;
    assert_eq!((retry.ok(), retry.replayed), (&rest.body, true));
    let none = post(&app, &path, &all, "r4").await;
    assert_eq!(none.status_and_code(), (409, "exceeds-sale"));
    for sku in ["a", "b"] {
        assert_eq!(app.audit(sku).await["consistent"], true);
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
        sold.insert(0, post(&app, "/stock/deduct", &body, key).await.id);
    }
    let (mut path, mut pages) = ("/operations?reference=R&limit=2".to_owned(), Vec::new());
    loop {
        let page = app.get_json(&path).await;
        let movements = page["movements"].as_array().expect("movements").iter();
        let row = |it: &Value| json!([it["id"], it["line"]]);
        pages.push(movements.map(row).collect::<Vec<_>>());
        let Some(cursor) = page["next_cursor"].as_str() else {
            break;
        };
        path = format!("/operations?reference=R&limit=2&cursor={cursor}");
    }
    let page = |id: &String| (0..3).map(|line| json!([id, line])).collect::<Vec<_>>();
    pages.retain(|page| !page.is_empty());
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
    let results = app.deduct_all("group-commit", &batch).await;
    let outcome = |result: &Value| json!([result["status"], result["code"]]);
    let expected = [
        json!([200, "deducted"]),
        json!([200, "deducted"]),
        json!([409, "insufficient-stock"]),
        json!([400, "idempotency-key-required"]),
    ];
    assert_eq!(results.iter().map(outcome).collect::<Vec<_>>(), expected);
    assert_eq!(results[0]["lines"][1]["remaining"], 2, "{results:?}");
    assert_eq!(results[2]["lines"][0]["available"], 2, "{results:?}");
    assert_eq!(on_hand(&app, "a").await, [8]);
    let many: Vec<_> = (0..11)
        .map(|key| json!({"lines": vec![json!({"sku": "a"}); 91], "key": format!("m{key}")}))
        .collect();
    let refused = app.request(0, Method::POST, "/stock/deduct/batch");
    let refused = send(refused.json(&json!({ "lines": many }))).await;
    assert_eq!(refused.status_and_code(), (422, "invalid-request"));
}
