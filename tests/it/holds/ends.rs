//! Holds whose ends meet.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt as _};
use reqwest::Method;
use rstest::rstest;
use serde_json::json;
use stocklock_testkit::run::{number, rng};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{end, hold, is_consistent, level};
use crate::faults::{KEY, SOON, new_key};
use crate::support::app::{TestApp, send};
use crate::support::deadlocks::{DeadlockCounter, sku};
use crate::support::process::Process;
use crate::support::rival::Raw;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};
use crate::support::services::fresh_database;

/// How many holds end; `TEST_HOLDS` in `make verify`.
const DEFAULT_HOLDS: usize = 60;

/// How many of them at a time.
const AT_ONCE: usize = 100;

/// Goal: each hold ends once, in whatever order the requests come: it is sold, given back or expired. Both callers
/// are told which.
///
/// Method: a third caller needs more units than there are, so that due holds are ended for it.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_hold_ends_once(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let holds = number("TEST_HOLDS", DEFAULT_HOLDS);
    let stock = i64::try_from(holds).expect("few holds");
    let app = TestApp::with_stock(backend, 2, "a", stock).await;
    let app = Arc::new(app.patient());
    let (mut confirmed, mut released, mut late) = (0, 0, 0);
    for first in (0..holds).step_by(AT_ONCE) {
        let mut round = JoinSet::new();
        for number in first..holds.min(first + AT_ONCE) {
            let app = Arc::clone(&app);
            // Some end while they expire.
            let pause = rng().u64(0..1_200);
            round.spawn(async move {
                let held = hold(&app, &format!("h{number}"), json!([{"sku": "a"}]), 1).await;
                sleep(Duration::from_millis(pause)).await;
                let nothing = json!({});
                tokio::join!(
                    end(&app, 0, &held, "confirm", &nothing),
                    end(&app, 1, &held, "release", &nothing)
                )
            });
        }
        let greedy = Arc::clone(&app);
        let greedy = tokio::spawn(async move {
            let all = json!({"sku": "a", "quantity": 10_000});
            loop {
                call!(greedy, POST "/stock/deduct", key new_key(), {"lines": [all, all]}
                    => 409 "insufficient-stock");
                sleep(Duration::from_millis(50)).await;
            }
        });
        for (confirm, release) in round.join_all().await {
            let refused = match (confirm.status, release.status) {
                (200, _) => &release,
                // No other request buys, so units are left for it.
                _ => &confirm,
            };
            refused.assert_is(409, "hold-ended");
            confirmed += usize::from(confirm.status == 200);
            released += usize::from(release.status == 200);
            late += usize::from(confirm.body["late"] == true);
        }
        assert!(!greedy.is_finished(), "{:?}", greedy.await);
        greedy.abort();
    }
    println!(
        "figure: {backend:?}: {confirmed} confirmed, {late} of them late, {released} released"
    );
    assert_eq!(confirmed + released, holds);
    // Of few holds, perhaps none expires.
    assert!(late > 0 || holds == DEFAULT_HOLDS, "no hold has expired");
    let left = holds - confirmed;
    assert_eq!(level(&app, "a").await, json!([left, 0]));
    is_consistent(&app, "a").await;
}

/// Goal: a hold of several lines and a cart that names the same SKUs in the other order wait for each other at
/// most briefly, and nothing is half done.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holds_of_several_lines_meet_orders(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    const ROUNDS: i64 = 15;
    let app = TestApp::with_stock(backend, 2, "a", ROUNDS).await;
    let app = Arc::new(app.patient());
    app.set_level("b", ROUNDS).await;
    let mut rounds = JoinSet::new();
    for number in 0..ROUNDS {
        let app = Arc::clone(&app);
        rounds.spawn(async move {
            let post = |replica, path, key: String, body| {
                let request = app.request(replica, Method::POST, path);
                app.send(request.header(KEY, key).json(&body))
            };
            let held = json!({"lines": [{"sku": "a"}, {"sku": "b"}]});
            let held = post(0, "/holds", format!("h{number}"), held);
            let order = json!({"lines": [{"sku": "b"}, {"sku": "a"}]});
            let order = post(1, "/stock/deduct", format!("o{number}"), order);
            let (held, order) = tokio::join!(held, order);
            assert!([201, 409].contains(&held.status), "{held:?}");
            assert!([200, 409].contains(&order.status), "{order:?}");
            if held.status == 201 {
                end(&app, 1, &held.id, "confirm", &json!({})).await.ok();
            }
            i64::from(held.status == 201) + i64::from(order.status == 200)
        });
    }
    let sold: i64 = rounds.join_all().await.into_iter().sum();
    for sku in ["a", "b"] {
        assert_eq!(level(&app, sku).await, json!([ROUNDS - sold, 0]));
        is_consistent(&app, sku).await;
    }
}

/// Goal: the ends of a hold's lines and its extensions change its rows in the same order, so none of them is in a
/// deadlock.
///
/// Method: of a hold of six lines, half of the lines are confirmed at each replica, while it is extended at both.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ends_and_extensions_of_a_hold_never_deadlock(#[values(Mysql, Postgres)] backend: Backend) {
    let holds = number("TEST_HOLDS", DEFAULT_HOLDS);
    let mut shop = DeadlockCounter::start(backend, 6).await;
    let app = Arc::clone(&shop.app);
    let round = |number: usize| {
        let app = Arc::clone(&app);
        async move {
            let mut lines: Vec<_> = (0..6).collect();
            rng().shuffle(&mut lines);
            let skus = lines.iter().map(|line| json!({ "sku": sku(*line) }));
            let skus = json!(skus.collect::<Vec<_>>());
            let held = hold(&app, &format!("h{number}"), skus, 600).await;
            rng().shuffle(&mut lines);
            let named = |line: &usize| json!({ "line": line });
            let named: Vec<_> = lines.iter().map(named).collect();
            let confirm = |half: usize| json!({"lines": named[3 * half..3 * half + 3]});
            let halves = [confirm(0), confirm(1)];
            let longer = json!({"expires_in_s": 900});
            let ends = [0, 1].map(|replica| end(&app, replica, &held, "confirm", &halves[replica]));
            let extensions = [0, 1].map(|replica| end(&app, replica, &held, "extend", &longer));
            let (ends, extensions) = tokio::join!(join_all(ends), join_all(extensions));
            for end in &ends {
                end.ok();
            }
            // It may have ended before.
            for answer in extensions {
                assert!([200, 409].contains(&answer.status), "{answer:?}");
            }
        }
    };
    let rounds = stream::iter((0..holds).map(round));
    rounds.for_each_concurrent(16, |round| round).await;
    shop.is_zero().await;
    for number in 0..6 {
        let audit = app.assert_consistent(&sku(number)).await;
        assert_eq!((&audit["sold"], &audit["held"]), (&json!(holds), &json!(0)));
    }
}

/// They share a statement, which may read the hold for several of them.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_for_one_hold_see_each_line_once(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let app = TestApp::with_stock(backend, 1, "a", 10).await.patient();
    let lines = json!([{"sku": "a"}, {"sku": "a", "quantity": 2}]);
    let held = hold(&app, "h", lines, 600).await;
    let path = format!("/operations/{held}");
    let seen = join_all((0..32).map(|_| app.get_json(&path))).await;
    let expected = json!([
        {"line": 0, "state": "held", "open": 1}, {"line": 1, "state": "held", "open": 2},
    ]);
    for operation in seen {
        assert_eq!(operation["hold"]["lines"], expected);
    }
    let nothing = json!({});
    let confirms = (0..32).map(|_| end(&app, 0, &held, "confirm", &nothing));
    let confirmed = join_all(confirms).await;
    assert_eq!(confirmed.iter().filter(|one| !one.replayed).count(), 1);
    for one in &confirmed {
        assert_eq!(one.ok(), confirmed[0].ok());
    }
    assert_eq!(level(&app, "a").await, json!([7, 0]));
    is_consistent(&app, "a").await;
}

/// Another program keeps the row of a hold, and removes that of another.
#[tokio::test]
async fn line_of_a_hold_ends_with_its_row() {
    let app = TestApp::with_stock(Postgres, 1, "a", 10).await;
    let held = hold(&app, "h", json!([{"sku": "a"}]), 600).await;
    let mut raw = Raw::connect(Postgres, &app.database_url).await;
    let trigger =
        "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
        CREATE TRIGGER keep BEFORE DELETE ON hold FOR EACH ROW EXECUTE FUNCTION keep()";
    raw.run(trigger).await.expect("a trigger");
    call!(app, POST "/operations/{held}/confirm", {} => 503 "contended" retry_after);
    assert_eq!(level(&app, "a").await, json!([10, 1]));
    let dropped = raw.run("DROP TRIGGER keep ON hold").await;
    dropped.expect("no trigger");
    call!(app, POST "/operations/{held}/confirm", {} => 200);
    assert_eq!(level(&app, "a").await, json!([9, 0]));
    is_consistent(&app, "a").await;

    let held = hold(&app, "lost", json!([{"sku": "a"}]), 600).await;
    raw.run("DELETE FROM hold").await.expect("no hold");
    call!(app, POST "/operations/{held}/confirm", {} => 503 "contended" retry_after);
    assert_eq!(level(&app, "a").await, json!([9, 1]));
}

/// The clock of one of the replicas is two hours ahead.
#[tokio::test]
async fn hold_ends_by_the_clock_of_the_database() {
    let database = fresh_database(Mysql).await;
    let ahead = [
        ("LD_PRELOAD", "/usr/$LIB/faketime/libfaketimeMT.so.1"),
        ("FAKETIME", "+2h"),
        ("DONT_FAKE_MONOTONIC", "1"),
    ];
    let right = Process::lab(&database.url, &[]).await;
    let ahead = Process::lab(&database.url, &ahead).await;
    right.set_level("a", 2).await;
    let hold = async |replica: &Process, key: &str| {
        let body = json!({"lines": [{"sku": "a"}], "expires_in_s": 600});
        let request = replica.request(Method::POST, "/holds").json(&body);
        let held = send(request.header(KEY, key)).await;
        assert_eq!(held.status, 201, "{held:?}");
        let end = held.body["expires_at"].as_str().expect("a time");
        (held.id, humantime::parse_rfc3339(end).expect("RFC 3339"))
    };
    let (first, first_end) = hold(&right, "1").await;
    let (_, second_end) = hold(&ahead, "2").await;
    let later = second_end.duration_since(first_end).expect("a later hold");
    assert!(later < SOON, "{later:?}");
    // Neither is due for the other one.
    let sale = ahead.request(Method::POST, "/stock/deduct");
    let sale = send(sale.json(&json!({"sku": "a"}))).await;
    assert_eq!(sale.status_and_code(), (409, "insufficient-stock"));
    let confirm = format!("/operations/{first}/confirm");
    let confirmed = ahead.request(Method::POST, &confirm);
    let confirmed = send(confirmed.json(&json!({"late": false}))).await;
    assert_eq!(confirmed.ok()["late"], false);
}
