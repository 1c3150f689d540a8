//! Holds: units that are set aside, and what becomes of them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use stocklock_testkit::run::number;
use tokio::time::{sleep, timeout};

use crate::faults::{SOON, send_until_final};
use crate::support::app::{Answer, TestApp, send};
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

mod ends;
mod many;
mod refusals;
mod replaced;

/// How many holds expire together, an even number; `TEST_EXPIRED_HOLDS` in `make verify`.
const DEFAULT_EXPIRED: usize = 20;

/// A POST of `body` to a replica, with a key, until the answer is definite.
async fn post(app: &TestApp, replica: usize, path: &str, body: &Value, key: &str) -> Answer {
    let request = app.request(replica, Method::POST, path).json(body);
    send_until_final(request.header("Idempotency-Key", key)).await
}

/// The same without a key: to end a hold twice is harmless.
async fn post_plain(app: &TestApp, replica: usize, path: &str, body: &Value) -> Answer {
    let definite = async {
        loop {
            let answer = send(app.request(replica, Method::POST, path).json(body)).await;
            if !answer.asks_for_retry() {
                return answer;
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, definite).await.expect("a definite answer")
}

/// Holds lines for some seconds; `null`: they do not expire.
async fn hold(app: &TestApp, key: &str, lines: Value, seconds: Value) -> Answer {
    let body = json!({"lines": lines, "expires_in_s": seconds, "reference": "cart-9"});
    post(app, 0, "/holds", &body, key).await
}

fn id(answer: &Answer) -> String {
    answer.body["id"]
        .as_str()
        .unwrap_or_else(|| panic!("{answer:?}"))
        .to_owned()
}

/// Units on hand and units that are held of a SKU in its default warehouse.
async fn level(app: &TestApp, sku: &str) -> (i64, i64) {
    let level = app.get_json(&format!("/stock/{sku}")).await["warehouses"][0].clone();
    let units = |name: &str| level[name].as_i64().expect("units");
    (units("on_hand"), units("held"))
}

/// The states of the open lines of a SKU.
async fn open(app: &TestApp, sku: &str) -> Vec<String> {
    let page = app.get_json(&format!("/holds?sku={sku}&limit=1000")).await;
    let holds = page["holds"].as_array().expect("holds").iter();
    holds
        .map(|one| one["state"].as_str().expect("a state").to_owned())
        .collect()
}

/// Waits until a hold of the SKU has no time left; `all`: until none has.
async fn until_expired(app: &TestApp, sku: &str, all: bool) {
    let expired = async {
        loop {
            let states = open(app, sku).await;
            let mut states = states.iter().map(|state| state == "expired");
            if (all && states.all(|is| is)) || (!all && states.any(|is| is)) {
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(SOON, expired).await.expect("holds expire");
}

/// Counter, ledger and open holds agree.
async fn is_consistent(app: &TestApp, sku: &str) {
    let audit = app.audit(sku).await;
    assert_eq!(audit["consistent"], true, "{audit}");
    let page = app.get_json(&format!("/holds?sku={sku}&limit=1000")).await;
    let holds = page["holds"].as_array().expect("holds").iter();
    let open: i64 = holds
        .map(|one| one["quantity"].as_i64().expect("units"))
        .sum();
    assert_eq!(audit["held"], open, "{page}");
}

/// Two replicas with ten units of `a`, and three of `b`.
async fn shop(backend: Backend) -> TestApp {
    let app = TestApp::with_stock(backend, 2, "a", 10).await;
    app.set_level("b", 3).await;
    app
}

#[rstest]
#[tokio::test]
async fn hold_keeps_units_and_is_confirmed_by_line(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let app = shop(backend).await;
    let lines = json!([{"sku": "a", "quantity": 8}, {"sku": "b"}, {"sku": "b", "quantity": 2}]);
    let held = hold(&app, "h1", lines.clone(), json!(600)).await;
    let hold_id = id(&held);
    assert_eq!(held.status, 201, "{held:?}");
    assert_eq!(held.header("location"), format!("/operations/{hold_id}"));
    let expected = json!([
        {"line": 0, "sku": "a", "warehouse": "main", "quantity": 8, "remaining": 2},
        {"line": 1, "sku": "b", "warehouse": "main", "quantity": 1, "remaining": 2},
        {"line": 2, "sku": "b", "warehouse": "main", "quantity": 2, "remaining": 0},
    ]);
    assert_eq!(
        (&held.body["lines"], &held.body["state"]),
        (&expected, &json!("held"))
    );
    assert!(held.body["expires_at"].is_string(), "{held:?}");
    let again = hold(&app, "h1", lines, json!(600)).await;
    assert_eq!(
        (again.status, again.replayed, id(&again)),
        (201, true, hold_id.clone())
    );
    assert_eq!(again.body["lines"], expected);
    assert_eq!(
        (level(&app, "a").await, level(&app, "b").await),
        ((10, 8), (3, 3))
    );

    // Others cannot have the units.
    let short = send(app.deduct(1, "single-sql", &json!({"sku": "a", "quantity": 3}))).await;
    assert_eq!(short.status_and_code(), (409, "insufficient-stock"));
    assert_eq!(short.body["available"], 2);
    let short = hold(&app, "h2", json!([{"sku": "a"}, {"sku": "b"}]), json!(null)).await;
    assert_eq!(short.status_and_code(), (409, "insufficient-stock"));
    assert_eq!(short.body["lines"][0]["sku"], "b");

    let confirm = format!("/operations/{hold_id}/confirm");
    let some = json!({"lines": [{"line": 0, "quantity": 5}]});
    let sold = post_plain(&app, 1, &confirm, &some).await;
    let expected = json!([
        {"line": 0, "sku": "a", "warehouse": "main", "quantity": 5, "released": 3, "remaining": 5},
    ]);
    assert_eq!(sold.ok()["lines"], expected);
    assert_eq!(
        (&sold.body["state"], &sold.body["late"]),
        (&json!("confirmed"), &json!(false))
    );
    let again = post(&app, 0, &confirm, &some, "another").await;
    assert_eq!((again.ok(), again.replayed), (sold.ok(), true));
    for (path, body) in [
        ("confirm", json!({"lines": [{"line": 0}]})),
        ("release", json!({"lines": [{"line": 0}]})),
        (
            "confirm",
            json!({"lines": [{"line": 0, "quantity": 5}, {"line": 1}]}),
        ),
    ] {
        let ended = post_plain(&app, 0, &format!("/operations/{hold_id}/{path}"), &body).await;
        assert_eq!(
            ended.status_and_code(),
            (409, "hold-ended"),
            "{path} {body}"
        );
        assert_eq!(
            (&ended.body["state"], &ended.body["by"]),
            (&json!("confirmed"), &sold.body["id"])
        );
    }
    let found = app.get_json(&format!("/operations/{hold_id}")).await;
    assert_eq!(found["hold"]["state"], "held");
    assert_eq!(
        found["hold"]["lines"],
        json!([{"line": 1, "open": 1}, {"line": 2, "open": 2}])
    );
    assert_eq!(found["movements"][2]["held_delta"], 2);

    let released = post_plain(
        &app,
        0,
        &format!("/operations/{hold_id}/release"),
        &json!({}),
    )
    .await;
    assert_eq!(released.ok()["state"], "released");
    assert_eq!(
        (level(&app, "a").await, level(&app, "b").await),
        ((5, 0), (3, 0))
    );
    let found = app.get_json(&format!("/operations/{hold_id}")).await;
    assert_eq!(
        found["hold"],
        json!({"state": "ended", "expires_at": null, "lines": []})
    );
    // The sale can be reversed like any other.
    let reverse = format!("/operations/{}/reverse", id(&sold));
    let back = json!({"reason": "wrong size", "restock": true});
    post_plain(&app, 0, &reverse, &back).await.ok();
    assert_eq!(level(&app, "a").await, (10, 0));
    for sku in ["a", "b"] {
        is_consistent(&app, sku).await;
    }
}

/// Goal: no sale depends on a background task, whatever protects it.
#[rstest]
#[tokio::test]
async fn units_of_expired_holds_are_sold(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
    #[values("group-commit", "single-sql", "for-update", "optimistic")] strategy: &str,
) {
    // More buyers at the same time would only wait for each other.
    let units = number("TEST_EXPIRED_HOLDS", DEFAULT_EXPIRED).min(100);
    let stock = i64::try_from(units).expect("few units");
    let app = TestApp::with_stock(backend, 2, "a", stock).await;
    let held = (0..units).map(|number| {
        let key = format!("h{number}");
        let app = &app;
        async move {
            hold(app, &key, json!([{"sku": "a"}]), json!(1))
                .await
                .status
        }
    });
    assert_eq!(join_all(held).await, vec![201; units]);
    until_expired(&app, "a", true).await;
    let sold = (0..units).map(|number| {
        let request = app.deduct(number, strategy, &json!({"sku": "a"}));
        async move {
            send_until_final(request.header("Idempotency-Key", format!("d{number}")))
                .await
                .status
        }
    });
    assert_eq!(join_all(sold).await, vec![200; units]);
    assert_eq!(level(&app, "a").await, (0, 0));
    is_consistent(&app, "a").await;
}

#[rstest]
#[tokio::test]
async fn expired_hold_is_sold_late_if_units_are_left(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let holds = number("TEST_EXPIRED_HOLDS", DEFAULT_EXPIRED);
    let half = i64::try_from(holds / 2).expect("few units");
    let app = Arc::new(TestApp::with_stock(backend, 2, "a", 2 * half).await);
    let held = (0..2 * half).map(|number| {
        let app = Arc::clone(&app);
        async move { id(&hold(&app, &format!("h{number}"), json!([{"sku": "a"}]), json!(1)).await) }
    });
    let ids = join_all(held).await;
    until_expired(&app, "a", true).await;
    let path = format!("/operations/{}/confirm", ids[0]);
    let refused = post_plain(&app, 0, &path, &json!({"late": false})).await;
    assert_eq!(refused.status_and_code(), (409, "hold-expired"));
    let sold = send(app.deduct(0, "single-sql", &json!({"sku": "a", "quantity": half}))).await;
    assert_eq!(sold.ok()["remaining"], half);
    // Each hold is confirmed by two callers.
    let confirms = ids
        .iter()
        .flat_map(|id| [(id, 0), (id, 1)])
        .map(|(id, replica)| {
            let app = Arc::clone(&app);
            let path = format!("/operations/{id}/confirm");
            async move { post_plain(&app, replica, &path, &json!({})).await }
        });
    let answers = join_all(confirms).await;
    let mut confirmed = 0;
    for pair in answers.chunks(2) {
        let [one, other] = pair else {
            unreachable!("two callers")
        };
        assert_eq!(
            (one.status, &one.body["id"]),
            (other.status, &other.body["id"]),
            "{pair:?}"
        );
        if one.status == 200 {
            confirmed += 1;
            assert!(one.replayed || other.replayed, "{pair:?}");
        } else {
            assert_eq!(one.status_and_code(), (409, "hold-expired"), "{pair:?}");
        }
    }
    assert_eq!((confirmed, level(&app, "a").await), (half, (0, 0)));
    is_consistent(&app, "a").await;
}

#[rstest]
#[tokio::test]
async fn released_hold_cannot_be_confirmed_late(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let app = shop(backend).await;
    let held = id(&hold(&app, "h1", json!([{"sku": "a"}]), json!(1)).await);
    until_expired(&app, "a", true).await;
    let path = |end: &str| format!("/operations/{held}/{end}");
    let released = post_plain(&app, 0, &path("release"), &json!({})).await;
    assert_eq!(released.ok()["state"], "released");
    let again = post_plain(&app, 1, &path("release"), &json!({})).await;
    assert_eq!((again.ok(), again.replayed), (released.ok(), true));
    let late = post_plain(&app, 1, &path("confirm"), &json!({})).await;
    assert_eq!(late.status_and_code(), (409, "hold-ended"));
    assert_eq!(late.body["state"], "released");
    is_consistent(&app, "a").await;
}

#[rstest]
#[tokio::test]
async fn hold_is_extended_and_never_shortened(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let app = shop(backend).await;
    let held = hold(&app, "h1", json!([{"sku": "a"}, {"sku": "b"}]), json!(2)).await;
    let extend = format!("/operations/{}/extend", id(&held));
    let end = |answer: &Answer| answer.ok()["expires_at"].clone();
    let longer = end(&post_plain(&app, 0, &extend, &json!({"expires_in_s": 900})).await);
    assert!(
        longer.as_str() > held.body["expires_at"].as_str(),
        "{longer} {held:?}"
    );
    let shorter = post_plain(&app, 1, &extend, &json!({"expires_in_s": 60})).await;
    assert_eq!(end(&shorter), longer);
    let forever = post_plain(&app, 1, &extend, &json!({"expires_in_s": null})).await;
    assert_eq!(end(&forever), Value::Null);
    let late = post_plain(&app, 1, &extend, &json!({"expires_in_s": 60})).await;
    assert_eq!(end(&late), Value::Null);
    let page = app.get_json("/holds?limit=1").await;
    assert_eq!(page["holds"][0]["expires_at"], Value::Null);
    let cursor = page["next_cursor"]
        .as_str()
        .expect("another page")
        .to_owned();
    let page = app
        .get_json(&format!("/holds?limit=1&cursor={cursor}"))
        .await;
    assert_eq!(
        (&page["holds"][0]["line"], &page["next_cursor"]),
        (&json!(1), &Value::Null)
    );

    let short = id(&hold(&app, "h2", json!([{"sku": "a"}]), json!(1)).await);
    until_expired(&app, "a", false).await;
    let path = format!("/operations/{short}/extend");
    let expired = post_plain(&app, 0, &path, &json!({"expires_in_s": 60})).await;
    assert_eq!(expired.status_and_code(), (409, "hold-ended"));
    assert_eq!(expired.body["state"], "expired");
}
