//! Holds that replace others, in one operation.

use rstest::rstest;
use serde_json::{Value, json};

use super::{hold, id, is_consistent, level, post, post_plain, shop, until_expired};
use crate::support::app::{Answer, TestApp, send};
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

/// Replaces a hold by these lines.
async fn replace(app: &TestApp, replica: usize, old: &str, lines: Value, key: &str) -> Answer {
    let body = json!({"lines": lines, "replaces": old});
    post(app, replica, "/holds", &body, key).await
}

/// A cart that grows is not in its own way.
#[rstest]
#[tokio::test]
async fn cart_grows_by_what_it_holds_itself(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let app = shop(backend).await;
    let two = json!([{"sku": "a"}, {"sku": "b", "quantity": 2}]);
    let old = id(&hold(&app, "h1", two, json!(600)).await);
    let three = json!([{"sku": "b", "quantity": 3}]);
    let held = replace(&app, 0, &old, three.clone(), "h2").await;
    assert_eq!(held.status, 201, "{held:?}");
    // Lines 0 and 1 of this operation are the ends of those of the other hold.
    let expected = json!([
        {"line": 2, "request_line": 0, "sku": "b", "warehouse": "main", "quantity": 3, "remaining": 0},
    ]);
    assert_eq!(held.body["lines"], expected);
    assert!(held.body["expires_at"].is_string(), "{held:?}");
    let new = id(&held);
    let levels = async || (level(&app, "a").await, level(&app, "b").await);
    assert_eq!(levels().await, ((10, 0), (3, 3)));

    let again = replace(&app, 1, &old, three.clone(), "h2").await;
    assert_eq!((again.status, again.replayed), (201, true), "{again:?}");
    assert_eq!((id(&again), &again.body["lines"]), (new.clone(), &expected));
    for (replaces, lines) in [(&old, json!([{"sku": "b"}])), (&new, three.clone())] {
        let reused = replace(&app, 0, replaces, lines, "h2").await;
        assert_eq!(reused.status_and_code(), (422, "idempotency-key-reused"));
    }
    let alone = post(&app, 0, "/holds", &json!({"lines": three}), "h2").await;
    assert_eq!(alone.status_and_code(), (422, "idempotency-key-reused"));

    let found = app.get_json(&format!("/operations/{new}")).await;
    let movements = found["movements"].as_array().expect("movements").iter();
    let row = |it: &Value| json!([it["line"], it["kind"], it["held_delta"], it["reverses"]]);
    let expected = [
        json!([0, "released", -1, old]),
        json!([1, "released", -2, old]),
        json!([2, "held", 3, null]),
    ];
    assert_eq!(movements.map(row).collect::<Vec<_>>(), expected);
    assert_eq!(found["hold"]["lines"], json!([{"line": 2, "open": 3}]));

    let ended = post_plain(&app, 0, &format!("/operations/{old}/confirm"), &json!({})).await;
    assert_eq!(ended.status_and_code(), (409, "hold-ended"));
    assert_eq!(
        (&ended.body["state"], &ended.body["by"]),
        (&json!("released"), &json!(new))
    );
    let sold = post_plain(&app, 1, &format!("/operations/{new}/confirm"), &json!({})).await;
    assert_eq!(sold.ok()["lines"][0]["quantity"], 3);
    assert_eq!(levels().await, ((10, 0), (0, 0)));
    is_consistent(&app, "b").await;
}

#[rstest]
#[tokio::test]
async fn short_replacement_leaves_the_old_hold(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let app = shop(backend).await;
    let old = id(&hold(&app, "h1", json!([{"sku": "b", "quantity": 2}]), json!(600)).await);
    hold(&app, "h2", json!([{"sku": "b"}]), json!(600)).await;
    let more = json!([{"sku": "a"}, {"sku": "b", "quantity": 3}]);
    let short = replace(&app, 1, &old, more, "h3").await;
    assert_eq!(short.status_and_code(), (409, "insufficient-stock"));
    let expected = json!([
        {"line": 1, "sku": "b", "warehouse": "main", "requested": 3, "available": 2},
    ]);
    assert_eq!(short.body["lines"], expected);
    let unknown = replace(&app, 1, &old, json!([{"sku": "x"}]), "h3").await;
    assert_eq!(unknown.status_and_code(), (404, "unknown-sku"));
    assert_eq!(
        (level(&app, "a").await, level(&app, "b").await),
        ((10, 0), (3, 3))
    );
    let sold = post_plain(&app, 0, &format!("/operations/{old}/confirm"), &json!({})).await;
    assert_eq!(sold.ok()["lines"][0]["quantity"], 2);
    is_consistent(&app, "b").await;
}

/// What was sold stays sold, and what has expired can be replaced, but not sold afterwards.
#[rstest]
#[tokio::test]
async fn what_is_left_of_a_hold_is_replaced(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let app = shop(backend).await;
    let old = id(&hold(&app, "h1", json!([{"sku": "a"}, {"sku": "b"}]), json!(600)).await);
    let confirm = format!("/operations/{old}/confirm");
    let one = json!({"lines": [{"line": 0}]});
    post_plain(&app, 0, &confirm, &one).await.ok();
    let new = replace(&app, 0, &old, json!([{"sku": "a", "quantity": 9}]), "h2").await;
    assert_eq!(new.body["lines"][0]["line"], 0, "{new:?}");
    assert_eq!(
        (level(&app, "a").await, level(&app, "b").await),
        ((9, 9), (3, 0))
    );
    let again = replace(&app, 0, &old, json!([{"sku": "b"}]), "h3").await;
    assert_eq!(again.status_and_code(), (409, "hold-ended"));

    let short = id(&hold(&app, "h4", json!([{"sku": "b", "quantity": 3}]), json!(1)).await);
    until_expired(&app, "b", true).await;
    let new = replace(&app, 1, &short, json!([{"sku": "b", "quantity": 3}]), "h5").await;
    assert_eq!(new.status, 201, "{new:?}");
    let late = post_plain(&app, 0, &format!("/operations/{short}/confirm"), &json!({})).await;
    assert_eq!(late.status_and_code(), (409, "hold-ended"));
    assert_eq!(level(&app, "b").await, (3, 3));
    for sku in ["a", "b"] {
        is_consistent(&app, sku).await;
    }
}

/// Two replacements of one hold: one is made, and the other learns of it.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_is_replaced_once(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    const ROUNDS: i64 = 10;
    let app = TestApp::with_stock(backend, 2, "a", 10 * ROUNDS).await;
    for round in 0..ROUNDS {
        let old = id(&hold(
            &app,
            &format!("h{round}"),
            json!([{"sku": "a"}]),
            json!(600),
        )
        .await);
        let lines = || json!([{"sku": "a", "quantity": 2}]);
        let (one, other) = (format!("a{round}"), format!("b{round}"));
        let (one, other) = tokio::join!(
            replace(&app, 0, &old, lines(), &one),
            replace(&app, 1, &old, lines(), &other)
        );
        let (made, refused) = if one.status == 201 {
            (one, other)
        } else {
            (other, one)
        };
        assert_eq!(made.status, 201, "{made:?} {refused:?}");
        assert_eq!(refused.status_and_code(), (409, "hold-ended"));
        assert_eq!(refused.body["by"], id(&made), "{refused:?}");
    }
    assert_eq!(level(&app, "a").await, (10 * ROUNDS, 2 * ROUNDS));
    is_consistent(&app, "a").await;
}

#[tokio::test]
async fn bad_replacements_are_refused() {
    let app = shop(Sqlite).await;
    let sale = id(&send(app.deduct(0, "single-sql", &json!({"sku": "a"}))).await);
    let old = id(&hold(&app, "h1", json!([{"sku": "b"}]), json!(600)).await);
    let ended = id(&hold(&app, "h2", json!([{"sku": "b"}]), json!(600)).await);
    let release = format!("/operations/{ended}/release");
    let released = post_plain(&app, 0, &release, &json!({})).await;
    let nobody = "018f0000-0000-7000-8000-000000000000";
    let line = || json!([{"sku": "a"}]);
    let many: Vec<_> = (0..100).map(|n| json!({"sku": format!("x{n}")})).collect();
    for (replaced, lines, expected) in [
        (&*sale, line(), (409, "not-a-hold")),
        (nobody, line(), (404, "unknown-operation")),
        ("h1", line(), (422, "invalid-request")),
        (&old, json!(many), (422, "too-many-lines")),
        (&ended, line(), (409, "hold-ended")),
    ] {
        let refused = replace(&app, 0, replaced, lines, "k").await;
        assert_eq!(
            (refused.status, refused.code.as_str()),
            expected,
            "{replaced}"
        );
        if replaced == ended {
            assert_eq!(
                (&refused.body["state"], &refused.body["by"]),
                (&json!("released"), &released.body["id"])
            );
        }
    }
}
