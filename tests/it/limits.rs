//! Limits: a request that is too much or takes too long is refused in time, with the right code.

use std::time::Duration;

use futures_util::future::join_all;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Method, RequestBuilder};
use rstest::rstest;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::faults::until;
use crate::support::app::{TestApp, send, try_send};
use crate::support::distant::distant;
use crate::support::rival::{Raw, Rival};
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};
use crate::support::services::fresh_database;

/// How much longer than a limit an answer may take on a busy machine.
const SLACK: Duration = Duration::from_secs(10);
/// Most time that an answer may take with `--wait-limit-ms=1000`.
const WAITED: Duration = Duration::from_secs(2).saturating_add(SLACK);

/// A replica with one SKU, whose row another transaction has locked.
async fn with_locked_stock(backend: Backend, flags: &[&str]) -> (TestApp, Rival) {
    let app = TestApp::with_flags(backend, 1, flags).await;
    app.set_level("a", 10).await;
    let rival = Rival::holding_stock(backend, &app.database_url).await;
    (app, rival)
}

fn take(app: &TestApp, strategy: &str) -> RequestBuilder {
    app.deduct(0, strategy, &json!({"sku": "a"}))
}

/// Takes one unit, which must be the only one sold.
async fn takes_one(app: &TestApp, strategy: &str) {
    send(take(app, strategy)).await.ok();
    let audit = app.assert_consistent("a").await;
    assert_eq!(audit["sold"], 1);
}

/// The call in flight waits for the row until the wait limit. Another one could not end before the deadline
/// of the deduction behind it.
#[rstest]
#[tokio::test]
async fn deduction_behind_a_locked_row_is_overloaded_in_time(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let flags = ["--wait-limit-ms=4000", "--request-deadline-ms=6000"];
    let (app, rival) = with_locked_stock(backend, &flags).await;
    let first = tokio::spawn(send(take(&app, "group-commit")));
    sleep(Duration::from_millis(600)).await;
    let behind = send(take(&app, "group-commit")).await;
    behind.assert_refused_for_now("overloaded");
    assert_eq!(first.await.expect("no panic").status, 503);
    rival.let_go().await;
    assert_eq!(app.audit("a").await["sold"], 0);
}

/// The database is not down, so its answer has another code.
#[rstest]
#[tokio::test]
async fn statement_at_its_time_limit_is_too_slow(#[values(Mysql, Postgres)] backend: Backend) {
    let app = TestApp::with_flags(backend, 1, &["--wait-limit-ms=1000"]).await;
    app.set_level("a", 10).await;
    let mut raw = Raw::connect(backend, &app.database_url).await;
    raw.slow_down_stock().await;
    let read = app.request(0, Method::GET, "/stock/a");
    let write = app.adjust(0, "a", &json!({"delta": 1, "reason": "delivery"}));
    for request in [read, write] {
        send(request).await.assert_refused_for_now("too-slow");
    }
}

/// The only connection waits for a row. The other requests must not report the database as down.
#[rstest]
#[tokio::test]
async fn exhausted_pool_is_overloaded_not_unavailable(#[values(Mysql, Postgres)] backend: Backend) {
    let flags = ["--database-pool-size=1", "--wait-limit-ms=4000"];
    let (app, rival) = with_locked_stock(backend, &flags).await;
    let mut requests = JoinSet::new();
    for _ in 0..10 {
        requests.spawn(send(take(&app, "single-sql")));
    }
    let answers = requests.join_all().await;
    for answer in &answers {
        // A request that gets the connection waits for the row instead.
        let is_overloaded = answer.code == "overloaded";
        answer.assert_refused_for_now(if is_overloaded {
            "overloaded"
        } else {
            "contended"
        });
        assert!(answer.after < WAITED, "{answer:?}");
    }
    let overloaded = answers.iter().filter(|it| it.code == "overloaded");
    assert!(overloaded.count() >= 5, "{answers:?}");
    rival.let_go().await;
    takes_one(&app, "single-sql").await;
}

#[rstest]
#[tokio::test]
async fn row_locked_past_the_wait_limit_is_contended(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let all = "no-lock local-mutex single-sql for-update optimistic group-commit put adjust";
    let refuses = async |what: &str| {
        // A busy machine may need a second for a connection.
        let (app, rival) = with_locked_stock(backend, &["--wait-limit-ms=3000"]).await;
        let (strategy, request) = match what {
            "put" => ("group-commit", app.put(0, "a", &json!({"on_hand": 1}))),
            "adjust" => {
                let more = json!({"delta": 1, "reason": "x"});
                ("group-commit", app.adjust(0, "a", &more))
            }
            strategy => (strategy, take(&app, strategy)),
        };
        let refused = send(request).await;
        refused.assert_refused_for_now("contended");
        let waited = Duration::from_millis(2900)..Duration::from_secs(4) + SLACK;
        assert!(waited.contains(&refused.after), "{what}: {refused:?}");
        // A read does not wait for the lock.
        assert_eq!(app.audit("a").await["on_hand"], 10);
        rival.let_go().await;
        takes_one(&app, strategy).await;
    };
    join_all(all.split(' ').map(refuses)).await;
}

/// Sends a batch of 1 MiB, except its last byte. Returns what is answered.
pub(crate) async fn send_incomplete_batch(address: String) -> String {
    let size = 1024 * 1024;
    let header = format!(
        "POST /stock/deduct/batch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {size}\r\n\r\n"
    );
    let mut request = header.into_bytes();
    request.resize(request.len() + size - 1, b' ');
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    // A replica that refuses the body may close the connection before it has arrived.
    let _ = stream.write_all(&request).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

/// 64 of these bodies use up the memory for large ones. Small ones do not need it.
#[tokio::test]
async fn large_bodies_that_do_not_end_are_bounded() {
    let app = TestApp::with_flags(Sqlite, 1, &["--body-timeout-ms=60000"]).await;
    app.set_level("a", 10).await;
    let address = app.base(0).replace("http://", "");
    let send_incomplete = |_| send_incomplete_batch(address.clone());
    let mut bodies: JoinSet<_> = (0..80).map(send_incomplete).collect();
    let refused = async {
        while let Some(answer) = bodies.join_next().await {
            // The answer of a connection that is closed early may be lost.
            if answer.expect("no panic").contains(r#""code":"overloaded""#) {
                return;
            }
        }
        panic!("none is refused");
    };
    let refused = timeout(2 * SLACK, refused).await;
    refused.expect("some are refused");
    takes_one(&app, "single-sql").await;

    // The others send nothing more, which takes their memory away.
    let batch = " ".repeat(1_000_000) + r#"{"lines": [{"sku": "a"}]}"#;
    until("large bodies are accepted", async || {
        let request = app.request(0, Method::POST, "/stock/deduct/batch");
        let request = request.header(CONTENT_TYPE, "application/json");
        let answer = try_send(request.body(batch.clone())).await;
        answer.is_ok_and(|answer| answer.status == 200)
    })
    .await;
    bodies.shutdown().await;
}

/// With one connection for readiness, and 40 ms for a round trip, twelve questions end within the limit.
#[tokio::test]
async fn concurrent_probes_of_readiness_are_answered_together() {
    let database = fresh_database(Postgres).await;
    let (_proxy, url) = distant(&database.url, Duration::from_millis(40)).await;
    let app = TestApp::on(&url, 1, &[]).await;
    until("all probes are ready", async || {
        let probes = (0..30).map(|_| send(app.request(0, Method::GET, "/readyz")));
        let answers = join_all(probes).await;
        answers.iter().all(|answer| answer.status == 200)
    })
    .await;
}
