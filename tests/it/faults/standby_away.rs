//! A synchronous standby of PostgreSQL that is away, while the waits of commits for it end early.
//!
//! `TEST_CANCELS` is how often each kind of sale is made.

use futures_util::future::join_all;
use reqwest::{Method, RequestBuilder};
use serde_json::json;
use stocklock_testkit::eventually;
use stocklock_testkit::process::Process as Program;
use stocklock_testkit::run::number;
use tokio::time::Instant;

use super::{SOON, send};
use crate::support::app::Answer;
use crate::support::process::Process;
use crate::support::rival::{Raw, until_found};
use crate::support::services::Backend::Postgres;
use crate::support::services::{PrivateServer, find};

/// Strategies, and an order of two lines.
const SALES: [&str; 4] = ["single-sql", "for-update", "group-commit", "order"];

/// The number of sessions that wait for the standby.
const WAITING: &str = "SELECT count(*)::text FROM pg_stat_activity WHERE wait_event = 'SyncRep'";

/// The same, of those whose statement began after [`NOW`].
const WAITING_SINCE: &str =
    "SELECT count(*)::text FROM pg_stat_activity WHERE wait_event = 'SyncRep'
    AND query_start > current_setting('test.ended')::timestamptz";

const NOW: &str = "SELECT set_config('test.ended', clock_timestamp()::text, false)";

/// End the waits. The commits are visible then.
const ENDS: [&str; 2] = [
    "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'",
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'",
];

/// Starts a server, and a standby that has all commits on disk before the server acknowledges them.
async fn with_standby() -> (PrivateServer, Raw, Program) {
    let server = PrivateServer::start(Postgres).await;
    let mut raw = Raw::connect(Postgres, server.url()).await;
    let configure = "ALTER SYSTEM SET synchronous_standby_names = 'standby'";
    raw.run(configure).await.expect("a superuser may");
    // So that it is in force for every commit from now on.
    server.kill9();
    server.restart().await;
    let mut raw = Raw::connect(Postgres, server.url()).await;
    let path = find("pg_receivewal").expect("it comes with PostgreSQL");
    let url = format!("{}?application_name=standby", server.url());
    let standby = Program::start(path, &["--synchronous", "-D", ".", "-d", &url], &[]);
    until_found(
        &mut raw,
        "SELECT 'yes' FROM pg_stat_replication WHERE sync_state = 'sync'",
    )
    .await;
    (server, raw, standby)
}

/// The sale of a round.
fn request(replica: &Process, sale: &str, round: u32) -> RequestBuilder {
    let (strategy, order) = match sale {
        "order" => (
            "group-commit",
            json!({"lines": [{"sku": "order"}, {"sku": "other"}]}),
        ),
        strategy => (strategy, json!({ "sku": strategy })),
    };
    let path = format!("/stock/deduct?strategy={strategy}");
    let request = replica.request(Method::POST, &path).json(&order);
    request.header("Idempotency-Key", format!("{sale}-{round}"))
}

async fn count(raw: &mut Raw, query: &'static str) -> usize {
    let count = raw.text(query).await.expect("a row");
    count.parse().expect("a number")
}

/// Goal: a sale that a failover would lose is not acknowledged, also not as the repeat of another replica.
///
/// Method: the standby is stopped, so each commit waits for it, until its wait is cancelled or its session ended. Then
/// the sales are visible. The replicas make other commits, which wait for the standby; there is no answer meanwhile.
/// Everybody gets one when the standby goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sale_without_its_standby_is_not_acknowledged() {
    let (server, mut raw, standby) = with_standby().await;
    let patient = [("WAIT_LIMIT_MS", "2000"), ("REQUEST_DEADLINE_MS", "60000")];
    let replicas = [
        Process::lab(server.url(), &patient).await,
        Process::lab(server.url(), &patient).await,
    ];
    let rounds = number("TEST_CANCELS", 2);
    for sku in SALES.into_iter().chain(["other"]) {
        replicas[0].set_level(sku, i64::from(rounds)).await;
    }
    let begin = Instant::now();
    for round in 0..rounds {
        standby.stop().await;
        let mut answers = Vec::new();
        for sale in SALES {
            answers.push(tokio::spawn(send(request(&replicas[0], sale, round))));
            eventually("the commit waits for the standby", SOON, async || {
                count(&mut raw, WAITING).await >= answers.len()
            })
            .await;
        }
        raw.run(NOW).await.expect("a setting of the session");
        let end = ENDS[round as usize % ENDS.len()];
        raw.run(end).await.expect("a superuser may");
        let repeats = SALES.map(|sale| tokio::spawn(send(request(&replicas[1], sale, round))));
        answers.extend(repeats);
        eventually("other commits wait for the standby", SOON, async || {
            for (number, answer) in answers.iter().enumerate() {
                assert!(!answer.is_finished(), "{number}: an answer to {end}");
            }
            count(&mut raw, WAITING_SINCE).await >= answers.len()
        })
        .await;
        standby.resume();
        for answer in join_all(answers).await {
            let answer = answer.expect("it does not panic");
            assert_eq!(answer.status, 200, "{answer:?}");
        }
    }
    let ended = rounds * 4;
    println!("figure: {ended} waits ended in {:.0?}", begin.elapsed());
    for sku in SALES.into_iter().chain(["other"]) {
        let audit = replicas[0].get(&format!("/stock/{sku}/audit")).await;
        let sums = audit.rows("warehouses", &["on_hand", "drift"]);
        assert_eq!(json!(sums), json!([[0, 0]]), "{sku}: {audit:?}");
    }
}

/// Goal: no replica sends an event that a failover would lose.
///
/// Method: the standby is stopped. All waits for it are cancelled until a sale is visible as an event.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn event_is_not_sent_before_the_standby_has_it() {
    let (server, mut raw, standby) = with_standby().await;
    let variables = [
        ("EVENTS", "on"),
        ("WAIT_LIMIT_MS", "1000"),
        ("REQUEST_DEADLINE_MS", "60000"),
    ];
    let mut replicas = [
        Process::lab(server.url(), &variables).await,
        Process::lab(server.url(), &variables).await,
    ];
    replicas[0].answers("/events").await;
    replicas[0].set_level("order", 9).await;
    replicas[0].set_level("other", 9).await;
    let events = async |replica: &Process| replica.get("/events?sku=order").await;
    let has = |page: &Answer, number| {
        let events = page.body["events"].as_array();
        events.is_some_and(|events| events.len() == number)
    };
    let is_published = async || has(&events(&replicas[1]).await, 1);
    eventually("the level is an event", SOON, is_published).await;

    standby.stop().await;
    let sale = tokio::spawn(send(request(&replicas[0], "order", 1)));
    eventually("the sale is an event", SOON, async || {
        raw.run(ENDS[0]).await.expect("a superuser may");
        let event = "SELECT 'yes' FROM feed WHERE sku = 'order' AND last_version = 2";
        raw.text(event).await.is_some()
    })
    .await;
    for replica in &replicas {
        let refused = events(replica).await;
        assert_eq!(refused.status_and_code(), (503, "unavailable"));
    }
    standby.resume();
    for replica in &replicas {
        let is_sent = async || has(&events(replica).await, 2);
        eventually("the event is sent", SOON, is_sent).await;
    }
    // So many waits were cancelled that its attempts may be over.
    let sale = sale.await.expect("it does not panic");
    assert!([200, 504].contains(&sale.status), "{sale:?}");
}
