//! Replicas that are asked to stop while they are busy.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use reqwest::{Method, RequestBuilder};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::session::{self, Session};
use super::{Ledger, SOON, send, until};
use crate::support::app::TestApp;
use crate::support::process::Process;
use crate::support::services::{Backend, fresh_database};

/// How many buy at once, for each strategy.
const BUYERS: usize = 8;
const STRATEGIES: [&str; 3] = ["single-sql", "for-update", "optimistic"];
const STOCK: i64 = 100_000;
/// What must be sold before the replicas are stopped.
const SALES: usize = 100;
/// The service's own default for the end of all that is under way.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

/// How long a deduction keeps a process that was told to end.
const HELD: Duration = Duration::from_millis(500);

/// Buys until the replica does not answer any more. Answers what was acknowledged.
async fn buyer(order: RequestBuilder, sold: Arc<AtomicUsize>) -> Vec<String> {
    let mut acknowledged = Vec::new();
    loop {
        let copy = order.try_clone().expect("the body is in memory");
        let Ok(answer) = send(copy).await else {
            return acknowledged;
        };
        match answer.status {
            200 => acknowledged.push(answer.id),
            // The optimistic one on a hot row: nothing was taken.
            503 => {}
            _ => panic!("{answer:?}"),
        }
        sold.fetch_add(1, Ordering::SeqCst);
    }
}

/// Goal: a request is answered, or else it did nothing; even without a key the client knows.
///
/// Method: two replicas are stopped under load. Requests that get no answer at all, because their
/// connection was closed or refused, must not be in the ledger: it holds what was acknowledged.
#[rstest::rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_stops_answers_what_it_has_begun(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let database = fresh_database(backend).await;
    let app = TestApp::on(&database.url, 2, &[]).await;
    let sold = Arc::new(AtomicUsize::new(0));
    let mut buyers: Vec<JoinSet<Vec<String>>> = Vec::new();
    for strategy in STRATEGIES {
        app.set_level(strategy, STOCK).await;
        let order = json!({ "sku": strategy });
        let buying = |number| buyer(app.deduct(number, strategy, &order), Arc::clone(&sold));
        buyers.push((0..BUYERS).map(buying).collect());
    }
    until("buyers buy", SOON, || async {
        sold.load(Ordering::SeqCst) >= SALES
    })
    .await;
    let stopping = Instant::now();
    app.stop().await;
    assert!(stopping.elapsed() < DRAIN_LIMIT, "{:?}", stopping.elapsed());

    let ledger = Ledger::at(&database.url);
    for (strategy, buyers) in STRATEGIES.into_iter().zip(buyers) {
        let acknowledged: BTreeSet<_> = buyers.join_all().await.concat().into_iter().collect();
        let recorded: BTreeSet<_> = ledger.sales(strategy).await.into_iter().collect();
        assert_eq!(recorded, acknowledged, "{strategy}");
        let audit = ledger.audit(strategy).await;
        assert!(audit.consistent(), "{strategy}: {audit:?}");
    }
}

/// Goal: what waits when the process is told to terminate is finished and answered, while nobody
/// new is let in.
///
/// Method: the row is locked by the test until the deduction waits for it, and let go only when
/// the process has refused a new connection, and some time after that.
#[rstest::rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deduction_that_waits_is_answered_before_the_process_ends(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let database = fresh_database(backend).await;
    let settings = [("WAIT_LIMIT_MS", "15000"), ("REQUEST_DEADLINE_MS", "20000")];
    let mut lab = Process::lab(&database.url, &settings).await;
    lab.set_level("hot", STOCK).await;
    let mut holder = Session::open(backend, &database.url).await;
    assert!(holder.try_lock_hot().await, "the row is free");
    let order = lab.request(Method::POST, "/stock/deduct?sku=hot");
    let waiting = tokio::spawn(send(order));
    session::somebody_waits(backend, &database.url).await;

    lab.terminate();
    until("new connections are refused", SOON, || async {
        let newcomer = lab.request(Method::GET, "/healthz").send().await;
        newcomer.is_err_and(|error| error.is_connect())
    })
    .await;
    // Time enough to end for a process that does not wait.
    sleep(HELD).await;
    assert!(lab.is_running());
    assert!(!waiting.is_finished());
    holder.unlock().await;
    let answer = waiting.await.unwrap().expect("it is answered");
    assert_eq!(answer.status, 200, "{answer:?}");
    let ended = lab.ended().await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let ledger = Ledger::at(&database.url);
    assert_eq!(ledger.sales("hot").await, [answer.id]);
}
