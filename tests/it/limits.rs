//! Limits: what is too much, or takes too long, is refused in time, and in the caller's terms.

use std::time::Duration;

use reqwest::RequestBuilder;
use reqwest::header::RETRY_AFTER;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::support::app::TestApp;
use crate::support::proxy::Proxy;
use crate::support::rival::Rival;
use crate::support::services::{Backend, fresh_database};

/// What a busy machine may add to a limit.
const SLACK: Duration = Duration::from_secs(5);

/// An answer, as far as it matters here.
#[derive(Debug)]
struct Answer {
    status: u16,
    code: Value,
    retry_after: bool,
    after: Duration,
}

async fn send(request: RequestBuilder) -> Answer {
    let begin = Instant::now();
    let response = request.send().await.expect("an answer");
    let retry_after = response.headers().contains_key(RETRY_AFTER);
    let status = response.status().as_u16();
    let mut body: Value = response.json().await.expect("a body");
    Answer {
        status,
        code: body["code"].take(),
        retry_after,
        after: begin.elapsed(),
    }
}

fn take(app: &TestApp, strategy: &str) -> RequestBuilder {
    app.deduct(0, strategy, &json!({"sku": "a"}))
}

async fn assert_taken_once(app: &TestApp) {
    let audit = app.audit("a").await;
    assert_eq!(
        (&audit["sold"], &audit["consistent"]),
        (&json!(1), &json!(true))
    );
}

/// A deduction that would not touch the database shows whether there is a place for one.
async fn is_full(app: &TestApp) -> Answer {
    let begin = Instant::now();
    loop {
        let answer = send(take(app, "redis-lua")).await;
        if answer.code == "overloaded" {
            return answer;
        }
        assert_eq!(answer.code, "strategy-unavailable");
        assert!(
            begin.elapsed() < SLACK,
            "the first deduction does not arrive"
        );
        sleep(Duration::from_millis(5)).await;
    }
}

#[rstest::rstest]
#[tokio::test]
async fn more_deductions_than_may_be_under_way_are_refused_at_once(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let flags = [
        "--max-in-flight=1",
        "--wait-limit-ms=20000",
        "--request-deadline-ms=30000",
    ];
    let app = TestApp::with_flags(backend, 1, &flags).await;
    app.set_level("a", 10).await;
    let rival = Rival::holding_stock(backend, &app.database_url).await;
    let first = tokio::spawn(send(take(&app, "single-sql")));
    let refused = is_full(&app).await;
    assert_eq!((refused.status, refused.retry_after), (503, true));
    let refused = send(take(&app, "single-sql")).await;
    assert_eq!((refused.status, &refused.code), (503, &json!("overloaded")));
    assert!(refused.after < SLACK, "{refused:?}");
    rival.let_go().await;
    assert_eq!(first.await.expect("no panic").status, 200);
    assert_taken_once(&app).await;
    app.stop().await;
}

/// The one connection is busy with waiting for a row; that is not the database being away.
#[rstest::rstest]
#[tokio::test]
async fn a_pool_that_is_used_up_is_overload_not_absence(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let flags = ["--database-pool-size=1", "--wait-limit-ms=1000"];
    let app = TestApp::with_flags(backend, 1, &flags).await;
    app.set_level("a", 10).await;
    let rival = Rival::holding_stock(backend, &app.database_url).await;
    let mut requests = JoinSet::new();
    for _ in 0..10 {
        requests.spawn(send(take(&app, "single-sql")));
    }
    let answers = requests.join_all().await;
    for answer in &answers {
        assert_eq!(
            (answer.status, answer.retry_after),
            (503, true),
            "{answer:?}"
        );
        assert!(answer.after < Duration::from_secs(2) + SLACK, "{answer:?}");
        // Whoever gets the connection is told of the row instead.
        assert!(["overloaded", "contended"].contains(&answer.code.as_str().unwrap_or_default()));
    }
    let overloaded = answers.iter().filter(|it| it.code == "overloaded");
    assert!(overloaded.count() >= 5, "{answers:?}");
    rival.let_go().await;
    assert_eq!(send(take(&app, "single-sql")).await.status, 200);
    assert_taken_once(&app).await;
    app.stop().await;
}

#[rstest::rstest]
#[tokio::test]
async fn a_row_held_past_the_wait_limit_is_contended(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
    #[values("no-lock", "local-mutex", "single-sql", "for-update", "optimistic")] strategy: &str,
) {
    let app = TestApp::with_flags(backend, 1, &["--wait-limit-ms=1000"]).await;
    app.set_level("a", 10).await;
    let rival = Rival::holding_stock(backend, &app.database_url).await;
    let refused = send(take(&app, strategy)).await;
    assert_eq!(
        (refused.status, refused.retry_after),
        (503, true),
        "{refused:?}"
    );
    assert_eq!(refused.code, "contended");
    let after = refused.after;
    assert!(after >= Duration::from_millis(900), "{after:?}");
    assert!(after < Duration::from_secs(2) + SLACK, "{after:?}");
    rival.let_go().await;
    assert_eq!(send(take(&app, strategy)).await.status, 200);
    assert_taken_once(&app).await;
    app.stop().await;
}

#[rstest::rstest]
#[tokio::test]
async fn levels_and_adjustments_wait_no_longer_either(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::with_flags(backend, 1, &["--wait-limit-ms=1000"]).await;
    app.set_level("a", 10).await;
    let rival = Rival::holding_stock(backend, &app.database_url).await;
    let put = app.request(0, reqwest::Method::PUT, "/stock/a");
    let put = put.json(&json!({"on_hand": 1}));
    let adjust = app.request(0, reqwest::Method::POST, "/stock/a/adjust");
    let adjust = adjust.json(&json!({"delta": 1, "reason": "x"}));
    for request in [put, adjust] {
        let refused = send(request).await;
        assert_eq!((refused.status, &refused.code), (503, &json!("contended")));
        assert!(
            refused.after < Duration::from_secs(2) + SLACK,
            "{refused:?}"
        );
    }
    // Reading waits for nobody.
    assert_eq!(app.audit("a").await["on_hand"], 10);
    rival.let_go().await;
    app.stop().await;
}

/// The movement is held up on its way; nobody knows, and the caller is told so in time.
#[rstest::rstest]
#[tokio::test]
async fn a_deadline_that_passes_leaves_the_outcome_open_and_a_repeat_settles_it(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let database = fresh_database(backend).await;
    let (proxy, url) = Proxy::before(&database.url).await;
    let flags = ["--wait-limit-ms=500", "--request-deadline-ms=1000"];
    let app = TestApp::on(&url, 1, &flags).await;
    app.set_level("a", 10).await;
    let keyed = || take(&app, "single-sql").header("Idempotency-Key", "held-up");
    // The movement, on whichever connection: a proxy that holds everything up might meet none that
    // is open, and then nothing is in doubt.
    let hold = proxy.hold_request(b"held-up");
    let unknown = send(keyed()).await;
    assert_eq!(
        (unknown.status, &unknown.code),
        (504, &json!("outcome-unknown"))
    );
    assert!(
        unknown.after < Duration::from_secs(1) + SLACK,
        "{unknown:?}"
    );
    hold.let_go();
    let begin = Instant::now();
    while send(keyed()).await.status != 200 {
        assert!(begin.elapsed() < 4 * SLACK, "it does not come back");
    }
    assert_taken_once(&app).await;
    app.stop().await;
}
