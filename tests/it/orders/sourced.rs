//! Lines that name several warehouses: where their units come from.

use std::sync::Arc;

use rstest::rstest;
use serde_json::{Value, json};
use stocklock_testkit::run::rng;
use tokio::task::JoinSet;

use super::{on_hand, order};
use crate::faults::{KEY, new_key};
use crate::support::app::TestApp;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

const FIELDS: [&str; 5] = ["line", "request_line", "sku", "warehouse", "quantity"];

/// Two replicas, and `a` in these warehouses with so many units.
async fn shop(backend: Backend, levels: &[(&str, i64)]) -> TestApp {
    let app = TestApp::with_flags(backend, 2, &[]).await;
    for (warehouse, units) in levels {
        call!(app, PUT "/stock/a", {"warehouse": warehouse, "on_hand": units} => 201);
    }
    app
}

/// The same units are sold again and again, and the choice changes with what is left. A retry does not choose
/// again.
#[rstest]
#[tokio::test]
async fn units_come_from_first_warehouse_with_all(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let app = shop(backend, &[("berlin", 1), ("main", 3)]).await;
    let line =
        |units: i64| json!([{"sku": "a", "quantity": units, "warehouses": ["berlin", "main"]}]);
    let sold = call!(app, 1 POST "/stock/deduct", key "k1", {"lines": line(2)} => 200);
    let expected = json!({
        "id": sold.id,
        "lines": [{
            "line": 0, "request_line": 0, "sku": "a", "warehouse": "main", "quantity": 2,
            "remaining": 1,
        }],
        "strategy": "group-commit",
    });
    assert_eq!(sold.body, expected);
    // Now Berlin would have them.
    let added = json!({"warehouse": "berlin", "delta": 4, "reason": "delivery"});
    call!(app, 1 POST "/stock/a/adjust", key "k2", (added) => 200);
    let retry = call!(app, POST "/stock/deduct", key "k1", {"lines": line(2)} => 200 replayed);
    assert_eq!(retry.body, expected);
    for other in [
        line(1),
        json!([{"sku": "a", "quantity": 2, "warehouses": ["main", "berlin"]}]),
        json!([{"sku": "a", "quantity": 2, "warehouses": ["berlin", "north"]}]),
        json!([{"sku": "a", "quantity": 2, "warehouses": ["berlin", "main"], "split": true}]),
        json!([{"sku": "a", "quantity": 2, "warehouse": "berlin"}]),
    ] {
        call!(app, 1 POST "/stock/deduct", key "k1", {"lines": other} => 422 "idempotency-key-reused");
    }
    // One line needs no key.
    let sold = call!(app, 1 POST "/stock/deduct", {"lines": line(5)} => 200);
    let expected = [json!([0, 0, "a", "berlin", 5])];
    assert_eq!(sold.rows("lines", &FIELDS), expected);
    assert_eq!(on_hand(&app, "a").await, [0, 1]);
    // The other lines first: they have no choice.
    let added = json!({"warehouse": "berlin", "delta": 2, "reason": "delivery"});
    call!(app, 1 POST "/stock/a/adjust", key "k3", (added) => 200);
    let both = json!([
        {"sku": "a", "warehouses": ["berlin", "main"]},
        {"sku": "a", "warehouse": "berlin", "quantity": 2},
    ]);
    let sold = call!(app, 1 POST "/stock/deduct", key "k4", {"lines": both} => 200);
    let expected = [
        json!([0, 0, "a", "main", 1]),
        json!([1, 1, "a", "berlin", 2]),
    ];
    assert_eq!(sold.rows("lines", &FIELDS), expected);
    app.assert_consistent("a").await;
}

#[rstest]
#[tokio::test]
async fn split_line_takes_the_rest_from_the_next(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let app = shop(backend, &[("berlin", 1), ("main", 5), ("north", 2)]).await;
    app.set_level("b", 3).await;
    let cart = json!([
        {"sku": "a", "quantity": 6, "warehouses": ["north", "x", "berlin", "main"], "split": true},
        {"sku": "b", "quantity": 2},
    ]);
    let sold = call!(app, 1 POST "/stock/deduct", key "k1", {"lines": cart} => 200);
    let expected = [
        json!([0, 0, "a", "north", 2]),
        json!([1, 0, "a", "berlin", 1]),
        json!([2, 0, "a", "main", 3]),
        json!([3, 1, "b", "main", 2]),
    ];
    assert_eq!(sold.rows("lines", &FIELDS), expected);
    let retry = call!(app, 1 POST "/stock/deduct", key "k1", {"lines": cart} => 200 replayed);
    assert_eq!(retry.body, sold.body);
    assert_eq!(on_hand(&app, "a").await, [0, 2, 0]);
    // If one has them all, nothing is split.
    let whole = json!([{"sku": "a", "warehouses": ["north", "main"], "split": true}]);
    let whole = call!(app, 1 POST "/stock/deduct", key "k2", {"lines": whole} => 200);
    let expected = [json!([0, 0, "a", "main", 1])];
    assert_eq!(whole.rows("lines", &FIELDS), expected);

    let (sale, some) = (sold.id, json!([{"line": 2, "quantity": 2}, {"line": 0}]));
    let some = json!({"lines": some, "reason": "x", "restock": true});
    let back = call!(app, 1 POST "/operations/{sale}/reverse", key "r1", (some) => 200);
    let expected = [
        json!([0, null, "a", "north", 2]),
        json!([2, null, "a", "main", 2]),
    ];
    assert_eq!(back.rows("lines", &FIELDS), expected);
    assert_eq!(on_hand(&app, "a").await, [0, 3, 2]);
    for sku in ["a", "b"] {
        app.assert_consistent(sku).await;
    }
}

#[rstest]
#[tokio::test]
async fn refusal_lists_what_each_warehouse_has(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let app = shop(backend, &[("berlin", 1), ("main", 2)]).await;
    app.set_level("b", 9).await;
    let cart = |units: i64, split: bool| {
        json!([
            {"sku": "b"},
            {"sku": "a", "quantity": units, "warehouses": ["berlin", "x", "main"], "split": split},
        ])
    };
    // An order of this line alone, too.
    let alone = json!([{"sku": "a", "quantity": 3, "warehouses": ["main", "berlin"]}]);
    let short = |line, units, of: &[(&str, i64)]| {
        let row = |(warehouse, left): &(&str, i64)| json!([line, warehouse, units, left]);
        of.iter().map(row).collect::<Vec<_>>()
    };
    let all = [("berlin", 1), ("x", 0), ("main", 2)];
    for (lines, expected) in [
        (cart(3, false), short(1, 3, &all)),
        (cart(4, true), short(1, 4, &all)),
        (alone, short(0, 3, &[("main", 2), ("berlin", 1)])),
    ] {
        let refused = call!(app, 1 POST "/stock/deduct", key "k1", {"lines": lines} => 409 "insufficient-stock");
        let fields = ["line", "warehouse", "requested", "available"];
        assert_eq!(refused.rows("lines", &fields), expected);
    }
    let unknown = json!([{"sku": "a", "warehouses": ["x", "y"]}, {"sku": "z"}]);
    let unknown =
        call!(app, 1 POST "/stock/deduct", key "k1", {"lines": unknown} => 404 "unknown-sku");
    let expected = [json!([0, "x"]), json!([0, "y"]), json!([1, "main"])];
    assert_eq!(unknown.rows("lines", &["line", "warehouse"]), expected);
    assert_eq!(on_hand(&app, "a").await, [1, 2]);
    // The key is free.
    call!(app, 1 POST "/stock/deduct", key "k1", {"lines": cart(3, true)} => 200);
    assert_eq!(on_hand(&app, "a").await, [0, 0]);
}

/// Units of due holds count, in any of the warehouses.
#[rstest]
#[tokio::test]
async fn held_units_are_chosen_like_others(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let app = shop(backend, &[("berlin", 1), ("main", 2)]).await;
    let line = |warehouses: [&str; 2]| json!([{"sku": "a", "quantity": 3, "warehouses": warehouses, "split": true}]);
    let body = json!({"lines": line(["berlin", "main"]), "expires_in_s": 1});
    let expected = [
        json!([0, 0, "a", "berlin", 1]),
        json!([1, 0, "a", "main", 2]),
    ];
    let held = call!(app, 1 POST "/holds", key "h1", (body) => 201);
    assert_eq!(held.rows("lines", &FIELDS), expected);
    let again = call!(app, 1 POST "/holds", key "h1", (body) => 201 replayed);
    assert_eq!(again.rows("lines", &FIELDS), expected);
    // It is repeated until the hold is due, at most until the test ends.
    let sold = loop {
        let cart = order(&app, 1, &line(["main", "berlin"]));
        let sold = app.send(cart.header(KEY, "k1")).await;
        if sold.status != 409 {
            break sold;
        }
    };
    let expected = [
        json!([0, 0, "a", "main", 2]),
        json!([1, 0, "a", "berlin", 1]),
    ];
    assert_eq!(sold.rows("lines", &FIELDS), expected);
    assert_eq!(on_hand(&app, "a").await, [0, 0]);
    assert_eq!(app.assert_consistent("a").await["held"], 0);
}

/// Goal: buyers who prefer different warehouses empty all of them, to the unit, and none is refused while
/// units are left that the line could take.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sourced_buyers_sell_out_to_the_unit(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    const BUYERS: usize = 12;
    let units = [("berlin", 17), ("main", 23), ("north", 5)];
    let app = Arc::new(shop(backend, &units).await.patient());
    let mut buyers = JoinSet::new();
    for buyer in 0..BUYERS {
        let app = Arc::clone(&app);
        buyers.spawn(async move {
            let mut sold = Vec::<Value>::new();
            loop {
                let mut warehouses = ["berlin", "main", "north"];
                rng().shuffle(&mut warehouses);
                let wanted = rng().i64(1..=4);
                let line = json!({
                    "sku": "a", "quantity": wanted, "warehouses": warehouses, "split": true,
                });
                let request = order(&app, buyer, &json!([line])).header(KEY, new_key());
                let answer = app.send(request).await;
                if answer.status == 200 {
                    sold.extend(answer.rows("lines", &["warehouse", "quantity"]));
                    continue;
                }
                assert_eq!(answer.code, "insufficient-stock", "{answer:?}");
                let left = answer.rows("lines", &["available"]);
                let left: i64 = left.iter().map(|it| it[0].as_i64().expect("units")).sum();
                assert!(left < wanted, "{answer:?}");
                if left == 0 {
                    return sold;
                }
            }
        });
    }
    let sold = buyers.join_all().await.concat();
    assert_eq!(on_hand(&app, "a").await, [0, 0, 0]);
    for (warehouse, units) in units {
        let of_warehouse = sold.iter().filter(|line| line[0] == warehouse);
        let sum: i64 = of_warehouse
            .map(|line| line[1].as_i64().expect("units"))
            .sum();
        assert_eq!(sum, units, "{warehouse}");
    }
    app.assert_consistent("a").await;
}

#[tokio::test]
async fn invalid_sourcing_is_refused() {
    let app = shop(Sqlite, &[("main", 1)]).await;
    let many: Vec<_> = (0..10).map(|number| format!("w{number}")).collect();
    let eleven = [&many[..], &["main".to_owned()]].concat();
    for (detail, mut line) in [
        ("2 to 10", json!({"warehouses": ["main"]})),
        ("2 to 10", json!({"warehouses": eleven})),
        ("twice", json!({"warehouses": ["x", "main", "x"]})),
        (
            "not both",
            json!({"warehouses": ["x", "main"], "warehouse": "main"}),
        ),
        ("split", json!({"split": true})),
        ("lines[0].warehouses", json!({"warehouses": ["x", "a/b"]})),
        ("lines[0].warehouses", json!({"warehouses": null})),
    ] {
        line["sku"] = json!("a");
        for path in ["/stock/deduct", "/holds"] {
            let refused =
                call!(app, POST "{path}", key "k", {"lines": [line]} => 422 "invalid-request");
            assert!(refused.detail.contains(detail), "{line}: {refused:?}");
        }
    }
    let lines = vec![json!({"sku": "a", "warehouses": many}); 11];
    call!(app, POST "/stock/deduct", key "k", {"lines": lines} => 422 "too-many-lines");
    // They are of lines only.
    call!(app, POST "/stock/deduct", {"sku": "a", "warehouses": ["x", "main"]} => 422 "invalid-request");
}
