//! A synchronous standby of PostgreSQL that is away, while an operator ends the waits of commits for it.
//!
//! `TEST_CANCELS` is how often each kind of sale is made.

use reqwest::{Method, RequestBuilder};
use serde_json::json;
use stocklock_testkit::eventually;
use stocklock_testkit::process::Process as Program;
use stocklock_testkit::run::number;
use tokio::time::Instant;

use super::{SOON, send};
use crate::support::process::Process;
use crate::support::rival::{Raw, until_found};
use crate::support::services::Backend::Postgres;
use crate::support::services::{PrivateServer, find};

/// Strategies, and an order of two lines.
const SALES: [&str; 4] = ["single-sql", "for-update", "group-commit", "order"];

const WAITING: [&str; SALES.len()] = [
    "SELECT 'yes' FROM pg_stat_activity WHERE wait_event = 'SyncRep' HAVING count(*) = 1",
    "SELECT 'yes' FROM pg_stat_activity WHERE wait_event = 'SyncRep' HAVING count(*) = 2",
    "SELECT 'yes' FROM pg_stat_activity WHERE wait_event = 'SyncRep' HAVING count(*) = 3",
    "SELECT 'yes' FROM pg_stat_activity WHERE wait_event = 'SyncRep' HAVING count(*) = 4",
];

/// A commit waits that began after the others were cancelled.
const DECIDING: &str = "SELECT 'yes' FROM pg_stat_activity WHERE wait_event = 'SyncRep'
    AND query_start > current_setting('test.cancelled')::timestamptz HAVING count(*) > 0";

/// Starts a standby that has all commits on disk before the server acknowledges them.
async fn standby(server: &PrivateServer, raw: &mut Raw) -> Program {
    let path = find("pg_receivewal").expect("it comes with PostgreSQL");
    let url = format!("{}?application_name=standby", server.url());
    let standby = Program::start(path, &["--synchronous", "-D", ".", "-d", &url], &[]);
    until_found(
        raw,
        "SELECT 'yes' FROM pg_stat_replication WHERE sync_state = 'sync'",
    )
    .await;
    standby
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

/// Goal: a sale that a failover would lose is not acknowledged.
///
/// Method: the standby is stopped, so each commit waits for it, until its wait is cancelled. PostgreSQL then reports
/// success, with a warning. The replica makes another commit, which waits for the standby. There is no answer yet,
/// and a repeat of a sale is refused. Everybody gets an answer when the standby goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sale_without_its_standby_is_not_acknowledged() {
    let server = PrivateServer::start(Postgres).await;
    let mut raw = Raw::connect(Postgres, server.url()).await;
    let configure = "ALTER SYSTEM SET synchronous_standby_names = 'standby'";
    raw.run(configure).await.expect("a superuser may");
    server.kill9();
    server.restart().await;
    let mut raw = Raw::connect(Postgres, server.url()).await;
    let standby = standby(&server, &mut raw).await;
    let patient = [("WAIT_LIMIT_MS", "500"), ("REQUEST_DEADLINE_MS", "30000")];
    let replica = Process::lab(server.url(), &patient).await;
    let rounds = number("TEST_CANCELS", 2);
    for sku in SALES.into_iter().chain(["other"]) {
        replica.set_level(sku, i64::from(rounds)).await;
    }
    let begin = Instant::now();
    for round in 0..rounds {
        standby.stop().await;
        let mut sales = Vec::new();
        for (sale, is_waiting) in SALES.into_iter().zip(WAITING) {
            sales.push(tokio::spawn(send(request(&replica, sale, round))));
            until_found(&mut raw, is_waiting).await;
        }
        let now = "SELECT set_config('test.cancelled', clock_timestamp()::text, false)";
        raw.run(now).await.expect("a setting of the session");
        let cancel =
            "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
        raw.run(cancel).await.expect("a superuser may");
        eventually("another commit waits for the standby", SOON, async || {
            for (sale, answer) in SALES.iter().zip(&sales) {
                assert!(
                    !answer.is_finished(),
                    "{sale}: acknowledged without its standby"
                );
            }
            raw.text(DECIDING).await.is_some()
        })
        .await;
        for sale in SALES {
            let repeated = send(request(&replica, sale, round)).await;
            repeated.assert_is(503, "unavailable");
        }
        standby.resume();
        for (sale, answer) in SALES.iter().zip(sales) {
            let answer = answer.await.expect("it does not panic");
            assert_eq!(answer.status, 200, "{sale}: {answer:?}");
        }
    }
    let cancelled = rounds * 4;
    println!(
        "figure: {cancelled} waits cancelled in {:.0?}",
        begin.elapsed()
    );
    for sku in SALES.into_iter().chain(["other"]) {
        let audit = replica.get(&format!("/stock/{sku}/audit")).await;
        let sums = audit.rows("warehouses", &["on_hand", "drift"]);
        assert_eq!(json!(sums), json!([[0, 0]]), "{sku}: {audit:?}");
    }
}
