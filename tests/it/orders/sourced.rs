//! Lines that name several warehouses: where their units come from.

use std::sync::Arc;

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use stocklock_testkit::run::rng;
use tokio::task::JoinSet;

use super::{buy, lines, order, post};
use crate::faults::{KEY, new_key, send_until_final};
use crate::support::app::{TestApp, send};
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

const FIELDS: [&str; 5] = ["line", "request_line", "sku", "warehouse", "quantity"];

/// Two replicas, and `a` in these warehouses with so many units.
async fn shop(backend: Backend, levels: &[(&str, i64)]) -> TestApp {
    let app = TestApp::with_flags(backend, 2, &[]).await;
    for (warehouse, units) in levels {
        let level = json!({"warehouse": warehouse, "on_hand": units});
        assert_eq!(send(app.put(0, "a", &level)).await.status, 201);
    }
    app
}

/// Units on hand of `a`, in the order of its warehouses.
async fn on_hand(app: &TestApp) -> Vec<i64> {
    let levels = super::on_hand(app, "a").await;
    levels
        .iter()
        .map(|units| units.as_i64().expect("units"))
        .collect()
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
    let sold = buy(&app, "k1", line(2)).await;
    let expected = json!({
        "id": sold.id,
        "lines": [{
            "line": 0, "request_line": 0, "sku": "a", "warehouse": "main", "quantity": 2,
            "remaining": 1,
        }],
        "strategy": "group-commit",
    });
    assert_eq!(sold.ok(), &expected);
    // Now Berlin would have them.
    let added = json!({"warehouse": "berlin", "delta": 4, "reason": "delivery"});
    post(&app, "/stock/a/adjust", &added, "k2").await.ok();
    let retry = order(&app, 0, &line(2)).header(KEY, "k1");
    let retry = send(retry).await;
    assert_eq!((retry.ok(), retry.replayed), (&expected, true));
    for other in [
        line(1),
        json!([{"sku": "a", "quantity": 2, "warehouses": ["main", "berlin"]}]),
        json!([{"sku": "a", "quantity": 2, "warehouses": ["berlin", "north"]}]),
        json!([{"sku": "a", "quantity": 2, "warehouses": ["berlin", "main"], "split": true}]),
        json!([{"sku": "a", "quantity": 2, "warehouse": "berlin"}]),
    ] {
        let reused = buy(&app, "k1", other).await;
        assert_eq!(reused.status_and_code(), (422, "idempotency-key-reused"));
    }
    // One line needs no key.
    let sold = send(order(&app, 1, &line(5))).await;
    assert_eq!(lines(&sold, &FIELDS), [json!([0, 0, "a", "berlin", 5])]);
    assert_eq!(on_hand(&app).await, [0, 1]);
    // The other lines first: they have no choice.
    let added = json!({"warehouse": "berlin", "delta": 2, "reason": "delivery"});
    post(&app, "/stock/a/adjust", &added, "k3").await.ok();
    let both = json!([
        {"sku": "a", "warehouses": ["berlin", "main"]},
        {"sku": "a", "warehouse": "berlin", "quantity": 2},
    ]);
    let sold = buy(&app, "k4", both).await;
    let expected = [
        json!([0, 0, "a", "main", 1]),
        json!([1, 1, "a", "berlin", 2]),
    ];
    assert_eq!(lines(&sold, &FIELDS), expected);
    assert_eq!(app.audit("a").await["consistent"], true);
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
    let sold = buy(&app, "k1", cart.clone()).await;
    let expected = [
        json!([0, 0, "a", "north", 2]),
        json!([1, 0, "a", "berlin", 1]),
        json!([2, 0, "a", "main", 3]),
        json!([3, 1, "b", "main", 2]),
    ];
    assert_eq!(lines(&sold, &FIELDS), expected);
    let retry = buy(&app, "k1", cart).await;
    assert_eq!((retry.ok(), retry.replayed), (sold.ok(), true));
    assert_eq!(on_hand(&app).await, [0, 2, 0]);
    // If one has them all, nothing is split.
    let whole = json!([{"sku": "a", "warehouses": ["north", "main"], "split": true}]);
    let whole = buy(&app, "k2", whole).await;
    assert_eq!(lines(&whole, &FIELDS), [json!([0, 0, "a", "main", 1])]);

    let path = format!("/operations/{}/reverse", sold.id);
    let some =
        json!({"lines": [{"line": 2, "quantity": 2}, {"line": 0}], "reason": "x", "restock": true});
    let back = post(&app, &path, &some, "r1").await;
    let expected = [
        json!([0, null, "a", "north", 2]),
        json!([2, null, "a", "main", 2]),
    ];
    assert_eq!(lines(&back, &FIELDS), expected);
    assert_eq!(on_hand(&app).await, [0, 3, 2]);
    for sku in ["a", "b"] {
        assert_eq!(app.audit(sku).await["consistent"], true);
    }
}

#[rstest]
#[tokio::test]
async fn refusal_lists_what_each_warehouse_has(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let app = shop(backend, &[("berlin", 1), ("main", 2)]).await;
    app.set_level("b", 9).await;
    let fields = ["line", "warehouse", "requested", "available"];
    let cart = |units: i64, split: bool| {
        json!([
            {"sku": "b"},
            {"sku": "a", "quantity": units, "warehouses": ["berlin", "x", "main"], "split": split},
        ])
    };
    for (units, split) in [(3, false), (4, true)] {
        let short = buy(&app, "k1", cart(units, split)).await;
        assert_eq!(short.status_and_code(), (409, "insufficient-stock"));
        let expected = [
            json!([1, "berlin", units, 1]),
            json!([1, "x", units, 0]),
            json!([1, "main", units, 2]),
        ];
        assert_eq!(lines(&short, &fields), expected);
    }
    // An order of this line alone, too.
    let alone = json!([{"sku": "a", "quantity": 3, "warehouses": ["main", "berlin"]}]);
    let short = buy(&app, "k1", alone).await;
    assert_eq!(short.status_and_code(), (409, "insufficient-stock"));
    let expected = [json!([0, "main", 3, 2]), json!([0, "berlin", 3, 1])];
    assert_eq!(lines(&short, &fields), expected);
    let unknown = json!([{"sku": "a", "warehouses": ["x", "y"]}, {"sku": "z"}]);
    let unknown = buy(&app, "k1", unknown).await;
    assert_eq!(unknown.status_and_code(), (404, "unknown-sku"));
    let expected = [json!([0, "x"]), json!([0, "y"]), json!([1, "main"])];
    assert_eq!(lines(&unknown, &fields[..2]), expected);
    assert_eq!(on_hand(&app).await, [1, 2]);
    // The key is free.
    buy(&app, "k1", cart(3, true)).await.ok();
    assert_eq!(on_hand(&app).await, [0, 0]);
}

/// Units of due holds count, in any of the warehouses.
#[rstest]
#[tokio::test]
async fn held_units_are_chosen_like_others(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let app = shop(backend, &[("berlin", 1), ("main", 2)]).await;
    let body = json!({
        "lines": [{"sku": "a", "quantity": 3, "warehouses": ["berlin", "main"], "split": true}],
        "expires_in_s": 1,
    });
    let held = post(&app, "/holds", &body, "h1").await;
    assert_eq!(held.status, 201, "{held:?}");
    let expected = [
        json!([0, 0, "a", "berlin", 1]),
        json!([1, 0, "a", "main", 2]),
    ];
    assert_eq!(lines(&held, &FIELDS), expected);
    let again = post(&app, "/holds", &body, "h1").await;
    assert_eq!(
        (lines(&again, &FIELDS), again.replayed),
        (expected.to_vec(), true)
    );
    // It is repeated until the hold is due, at most until the test ends.
    let cart =
        json!([{"sku": "a", "quantity": 3, "warehouses": ["main", "berlin"], "split": true}]);
    let sold = loop {
        let sold = buy(&app, "k1", cart.clone()).await;
        if sold.status != 409 {
            break sold;
        }
    };
    let expected = [
        json!([0, 0, "a", "main", 2]),
        json!([1, 0, "a", "berlin", 1]),
    ];
    assert_eq!(lines(&sold, &FIELDS), expected);
    assert_eq!(on_hand(&app).await, [0, 0]);
    let audit = app.audit("a").await;
    assert_eq!(
        (&audit["consistent"], &audit["held"]),
        (&json!(true), &json!(0))
    );
}

/// Goal: buyers who prefer different warehouses empty all of them, to the unit, and none is refused while
/// units are left that the line could take.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sourced_buyers_sell_out_to_the_unit(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    const BUYERS: usize = 12;
    let units = [("berlin", 17), ("main", 23), ("north", 5)];
    let app = Arc::new(shop(backend, &units).await);
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
                let answer = send_until_final(request).await;
                if answer.status == 200 {
                    sold.extend(lines(&answer, &["warehouse", "quantity"]));
                    continue;
                }
                assert_eq!(answer.code, "insufficient-stock", "{answer:?}");
                let left = lines(&answer, &["available"]);
                let left: i64 = left.iter().map(|it| it[0].as_i64().expect("units")).sum();
                assert!(left < wanted, "{answer:?}");
                if left == 0 {
                    return sold;
                }
            }
        });
    }
    let sold = buyers.join_all().await.concat();
    assert_eq!(on_hand(&app).await, [0, 0, 0]);
    for (warehouse, units) in units {
        let of_warehouse = sold.iter().filter(|line| line[0] == warehouse);
        let sum: i64 = of_warehouse
            .map(|line| line[1].as_i64().expect("units"))
            .sum();
        assert_eq!(sum, units, "{warehouse}");
    }
    let audit = app.audit("a").await;
    assert_eq!(audit["consistent"], true, "{audit}");
}

#[tokio::test]
async fn invalid_sourcing_is_refused() {
    let app = shop(Sqlite, &[("main", 1)]).await;
    let many: Vec<_> = (0..10).map(|number| format!("w{number}")).collect();
    let eleven = [&many[..], &["main".to_owned()]].concat();
    for (line, detail) in [
        (json!({"warehouses": ["main"]}), "2 to 10"),
        (json!({"warehouses": eleven}), "2 to 10"),
        (json!({"warehouses": ["x", "main", "x"]}), "twice"),
        (
            json!({"warehouses": ["x", "main"], "warehouse": "main"}),
            "not both",
        ),
        (json!({"split": true}), "split"),
        (json!({"warehouses": ["x", "a/b"]}), "lines[0].warehouses"),
        (json!({"warehouses": null}), "lines[0].warehouses"),
    ] {
        let mut line = line;
        line["sku"] = json!("a");
        for path in ["/stock/deduct", "/holds"] {
            let refused = post(&app, path, &json!({"lines": [line]}), "k").await;
            assert_eq!(
                refused.status_and_code(),
                (422, "invalid-request"),
                "{line}"
            );
            assert!(refused.detail.contains(detail), "{line}: {refused:?}");
        }
    }
    let line = json!({"sku": "a", "warehouses": many});
    let lines = vec![line; 11];
    let refused = buy(&app, "k", json!(lines)).await;
    assert_eq!(refused.status_and_code(), (422, "too-many-lines"));
    // They are of lines only.
    let body = json!({"sku": "a", "warehouses": ["x", "main"]});
    let flat = send(app.request(0, Method::POST, "/stock/deduct").json(&body)).await;
    assert_eq!(flat.status_and_code(), (422, "invalid-request"));
}
