//! Replicas that are asked to stop while they are busy.

use std::time::Duration;

use reqwest::Method;
use rstest::rstest;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::buyers::{Buyers, Keys, PLENTY};
use super::session::{Session, lock_is_waited_for};
use super::{Ledger, send, until};
use crate::support::app::TestApp;
use crate::support::process::Process;
use crate::support::services::{Backend, fresh_database};

/// How many buy at once, for each strategy.
const BUYERS: usize = 8;
const STRATEGIES: [&str; 3] = ["single-sql", "for-update", "optimistic"];
/// What must be sold before the replicas are stopped.
const SALES: usize = 100;
/// The default drain limit of the service.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);
/// How long the test keeps a deduction from ending after the process was asked to stop.
const LOCKED: Duration = Duration::from_millis(500);

/// Returns when a process that was asked to stop refuses new connections.
pub(super) async fn refuses_connections(process: &Process) {
    until("new connections are refused", || async {
        let answer = process.request(Method::GET, "/healthz").send().await;
        answer.is_err_and(|error| error.is_connect())
    })
    .await;
}

/// Goal: a request is either answered or has no effect, so that a client without a key knows, too.
///
/// Method: two replicas are stopped under load. A request whose connection was closed or refused
/// must not be in the ledger.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopping_replica_answers_every_request_it_has_begun(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let database = fresh_database(backend).await;
    let app = TestApp::on(&database.url, 2, &[]).await;
    let mut buyers = Vec::new();
    for strategy in STRATEGIES {
        app.set_level(strategy, PLENTY).await;
        let order = |number| app.deduct(number, strategy, &json!({ "sku": strategy }));
        let orders = (0..BUYERS).map(order);
        // 503 is the answer of `optimistic` after too many conflicts.
        buyers.push(Buyers::start(strategy, Keys::Half, orders, |answer, _| {
            assert_eq!(answer.status, 503, "{answer:?}");
        }));
    }
    until("sales", || async {
        buyers.iter().map(Buyers::sales).sum::<usize>() >= SALES
    })
    .await;
    buyers.iter().for_each(Buyers::replicas_stop);
    let stopping = Instant::now();
    app.stop().await;
    assert!(stopping.elapsed() < DRAIN_LIMIT, "{:?}", stopping.elapsed());

    let ledger = Ledger::at(&database.url);
    for buyers in buyers {
        buyers.stop().await.assert_exact(&ledger).await;
    }
}

/// Goal: a deduction that waits when the process is asked to stop completes and is answered, while
/// new connections are refused.
///
/// Method: the test locks the row until the deduction waits for it, and unlocks it only some time
/// after the process has refused a connection.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_deduction_is_answered_before_the_process_ends(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let database = fresh_database(backend).await;
    let settings = [("WAIT_LIMIT_MS", "15000"), ("REQUEST_DEADLINE_MS", "20000")];
    let mut lab = Process::lab(&database.url, &settings).await;
    lab.set_level("hot", PLENTY).await;
    let mut holder = Session::open(backend, &database.url).await;
    assert!(holder.try_lock_hot().await, "the row is free");
    let order = lab.request(Method::POST, "/stock/deduct?sku=hot");
    let waiting = tokio::spawn(send(order));
    lock_is_waited_for(backend, &database.url).await;

    lab.terminate();
    refuses_connections(&lab).await;
    // A process that does not wait would end in this time.
    sleep(LOCKED).await;
    assert!(lab.is_running());
    assert!(!waiting.is_finished());
    holder.unlock().await;
    let answer = waiting.await.unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    let ended = lab.ended().await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let ledger = Ledger::at(&database.url);
    assert_eq!(ledger.sold("hot").await, [answer.id]);
}
