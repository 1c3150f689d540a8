//! `group-commit` refuses requests without a key from memory: only for a level that has just been
//! found sold out, and not after this replica has changed it.

use std::time::Duration;

use reqwest::header::IF_MATCH;
use rstest::rstest;
use serde_json::json;
use tokio::time::Instant;

use crate::faults::SOON;
use crate::support::app::{Answer, TestApp, send};
use crate::support::proxy::Mode;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

const SOLD_OUT: (u16, &str) = (409, "insufficient-stock");

/// How old a refusal may be.
const MAX_AGE: Duration = Duration::from_millis(500);

/// More cycles than a busy machine needs for one that is short enough.
const CYCLES: usize = 10;

async fn take(app: &TestApp, replica: usize) -> Answer {
    send(app.deduct(replica, "group-commit", &json!({"sku": "a"}))).await
}

async fn take_with_key(app: &TestApp, key: &str) -> Answer {
    let request = app.deduct(0, "group-commit", &json!({"sku": "a"}));
    send(request.header("Idempotency-Key", key)).await
}

async fn add(app: &TestApp, replica: usize, delta: i64) {
    let body = json!({"delta": delta, "reason": "count"});
    send(app.adjust(replica, "a", &body)).await.ok();
}

/// Waits until the replica refuses to sell `a`. Returns when it learned of that at the latest.
async fn refused(app: &TestApp) -> Instant {
    let started = Instant::now();
    loop {
        let answer = take(app, 0).await;
        if answer.status_and_code() == SOLD_OUT {
            return Instant::now();
        }
        assert!(needs_database(&answer), "{answer:?}");
        assert!(started.elapsed() < SOON, "still {answer:?}");
    }
}

/// Sells until the replica does not refuse any more. Returns how many refusals came from memory, and the
/// other answer.
async fn refusals(app: &TestApp, learned: Instant) -> (usize, Answer) {
    let mut count = 0;
    loop {
        let sent = Instant::now();
        let answer = take(app, 0).await;
        if answer.status_and_code() != SOLD_OUT {
            return (count, answer);
        }
        assert!(sent - learned <= MAX_AGE, "{answer:?}");
        assert_eq!(answer.body["requested"], 1);
        assert_eq!(answer.body["available"], 0);
        count += 1;
    }
}

/// Whether the database was asked, and did not answer.
fn needs_database(answer: &Answer) -> bool {
    matches!(answer.status, 503 | 504)
}

#[rstest]
#[tokio::test]
async fn sold_out_level_is_refused_without_the_database(
    #[values(Mysql, Postgres)] backend: Backend,
) {
    let (proxy, app) = TestApp::proxied(backend, &["--wait-limit-ms=1000"]).await;
    app.set_level("a", 0).await;
    for _ in 0..CYCLES {
        let learned = refused(&app).await;
        proxy.set(Mode::Refuse).await;
        let (from_memory, answer) = refusals(&app, learned).await;
        assert!(needs_database(&answer), "{answer:?}");
        proxy.set(Mode::Pass).await;
        if from_memory > 0 {
            return;
        }
    }
    panic!("nothing was refused from memory");
}

/// The other strategies, and requests with a key, ask the database.
#[rstest]
#[tokio::test]
async fn only_group_commit_without_a_key_uses_the_memory(#[values(Postgres)] backend: Backend) {
    let (proxy, app) = TestApp::proxied(backend, &["--wait-limit-ms=1000"]).await;
    app.set_level("a", 0).await;
    refused(&app).await;
    proxy.set(Mode::Refuse).await;
    let keyed = take_with_key(&app, "k-1").await;
    assert!(needs_database(&keyed), "{keyed:?}");
    proxy.set(Mode::Pass).await;
    refused(&app).await;
    proxy.set(Mode::Refuse).await;
    let other = send(app.deduct(0, "single-sql", &json!({"sku": "a"}))).await;
    assert!(needs_database(&other), "{other:?}");
    proxy.set(Mode::Pass).await;
}

#[rstest]
#[tokio::test]
async fn restock_by_another_replica_is_sold_in_time(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let app = TestApp::with_stock(backend, 2, "a", 0).await;
    for _ in 0..CYCLES {
        let learned = refused(&app).await;
        add(&app, 1, 1).await;
        let (from_memory, answer) = refusals(&app, learned).await;
        answer.ok();
        if from_memory > 0 {
            return;
        }
    }
    panic!("nothing was refused from memory");
}

#[rstest]
#[tokio::test]
async fn restock_by_the_same_replica_is_sold_at_once(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let app = TestApp::with_stock(backend, 1, "a", 1).await;
    let sale = take(&app, 0).await.id;
    refused(&app).await;
    app.set_level("a", 1).await;
    take(&app, 0).await.ok();
    refused(&app).await;
    add(&app, 0, 1).await;
    take(&app, 0).await.ok();
    refused(&app).await;
    let back = json!({"reason": "returned", "restock": true});
    call!(app, POST "/operations/{sale}/reverse", (back) => 200);
    take(&app, 0).await.ok();
    refused(&app).await;
    let put = app.put(0, "a", &json!({"backorder_limit": 1}));
    send(put.header(IF_MATCH, "*")).await.ok();
    take(&app, 0).await.ok();
    refused(&app).await;
    app.assert_consistent("a").await;
}

/// The answer that finds the level sold out is late. The unit that is added meanwhile waits for it, and is sold:
/// to the same request, if that looks for holds that are due and tries again.
#[rstest]
#[tokio::test]
async fn late_answer_hides_no_restock(#[values(Mysql, Postgres)] backend: Backend) {
    let (proxy, app) = TestApp::proxied(backend, &[]).await;
    app.set_level("a", 0).await;
    app.set_level("late-answer", 0).await;
    let body = json!({"sku": "late-answer"});
    let take = || send(app.deduct(0, "group-commit", &body));
    let hold = proxy.hold_answer(b"late-answer");
    let restocked = async {
        hold.held().await;
        let added = json!({"delta": 1, "reason": "count"});
        let let_go = async { drop(hold) };
        let (added, ()) = tokio::join!(send(app.adjust(0, "late-answer", &added)), let_go);
        added.ok();
    };
    let (first, ()) = tokio::join!(take(), restocked);
    if first.status_and_code() == SOLD_OUT {
        take().await.ok();
    } else {
        first.ok();
    }
}

/// Neither a level with fewer units than requested, nor one that can be sold beyond zero.
#[rstest]
#[tokio::test]
async fn level_with_units_is_not_refused_from_memory(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let app = TestApp::with_flags(backend, 1, &[]).await;
    for (sku, level) in [
        ("short", json!({"on_hand": 1})),
        ("beyond", json!({"on_hand": 0, "backorder_limit": 1})),
    ] {
        send(app.put(0, sku, &level)).await;
        let take = |quantity: i64| {
            let body = json!({"sku": sku, "quantity": quantity});
            send(app.deduct(0, "group-commit", &body))
        };
        assert_eq!(take(2).await.status_and_code(), SOLD_OUT, "{sku}");
        take(1).await.ok();
        assert_eq!(take(1).await.status_and_code(), SOLD_OUT, "{sku}");
    }
}

#[rstest]
#[tokio::test]
async fn retry_of_a_sale_is_answered_although_sold_out(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let app = TestApp::with_stock(backend, 1, "a", 1).await;
    let first = take_with_key(&app, "k-1").await;
    refused(&app).await;
    let again = take_with_key(&app, "k-1").await;
    assert_eq!((again.ok(), again.replayed), (first.ok(), true));
    // The same in a batch, among lines that are refused from memory.
    refused(&app).await;
    let lines = json!([{"sku": "a"}, {"sku": "a", "key": "k-1"}, {"sku": "a", "key": "k-2"}]);
    let results = app.deduct_all("group-commit", &lines).await;
    let codes: Vec<_> = results.iter().map(|line| &line["code"]).collect();
    let expected = ["insufficient-stock", "replayed", "insufficient-stock"];
    assert_eq!(codes, expected);
}

full! { only_group_commit_without_a_key_uses_the_memory(backend: Backend [Mysql]); }
