//! A process that gets SIGTERM completes the requests that it has started, and then ends.

use std::time::Duration;

use reqwest::{Client, Method};
use rstest::rstest;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::faults::buyers::{Buyers, Keys, PLENTY};
use crate::faults::{Answer, Ledger, send, try_send, until};
use crate::support::client::client;
use crate::support::process::Process;
use crate::support::rival::Rival;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};
use crate::support::services::{TestDatabase, fresh_database};

const BUYERS: usize = 8;
const STRATEGIES: [&str; 4] = ["single-sql", "for-update", "optimistic", "group-commit"];
/// Minimum sales before the test stops the replicas.
const SALES: usize = 100;
const DRAIN_LIMIT_MS: (&str, &str) = ("DRAIN_LIMIT_MS", "60000");
/// Much shorter than that, and much longer than an idle process needs to stop.
const AT_ONCE: Duration = Duration::from_secs(20);
/// How long the stock stays locked after the process refuses new connections.
const LOCKED: Duration = Duration::from_millis(500);
/// The SKU that lab mode has in stock.
const SKU: &str = "1001";

async fn lab(backend: Backend, limits: &[(&str, &str)]) -> (Process, TestDatabase) {
    let database = fresh_database(backend).await;
    (Process::lab(&database.url, limits).await, database)
}

async fn connect(process: &Process, first_bytes: &[u8]) -> TcpStream {
    let stream = TcpStream::connect(process.address()).await;
    let mut stream = stream.expect("the process listens");
    stream.write_all(first_bytes).await.expect("it reads");
    stream
}

/// Sends SIGTERM, and returns the time until the process has ended. The exit code must be 0.
async fn time_to_stop(process: Process) -> Duration {
    process.terminate();
    let begin = Instant::now();
    let ended = process.ended().await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    begin.elapsed()
}

/// Returns when a process that was asked to stop refuses new connections.
pub(crate) async fn refuses_connections(process: &Process) {
    let holds = async || TcpStream::connect(process.address()).await.is_err();
    until("new connections are refused", holds).await;
}

/// Buys one unit. Retries after a 503, because the probe of [`is_full`] may have taken the last
/// slot of its SKU.
async fn buy(url: String) -> reqwest::Result<Answer> {
    let begin = Instant::now();
    loop {
        let answer = try_send(Client::new().post(&url)).await?;
        if answer.status != 503 || begin.elapsed() > AT_ONCE {
            return Ok(answer);
        }
    }
}

/// Returns when as many deductions of one SKU are in progress as `MAX_IN_FLIGHT` allows. The
/// replica then refuses every deduction of it, even one that does not use the database.
async fn is_full(process: &Process) {
    until("the replica is overloaded", || async {
        let path = format!("/stock/deduct?strategy=redis-lua&sku={SKU}");
        let probe = process.request(Method::POST, &path);
        send(probe).await.code == "overloaded"
    })
    .await;
}

/// Goal: after SIGTERM the process refuses new connections, but it completes and answers the
/// deductions that are waiting.
///
/// Method: the test locks the stock until the deductions wait for it, and unlocks it only some time
/// after the process has refused a connection.
#[rstest]
#[tokio::test]
async fn deductions_in_progress_are_answered(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let limits = [
        ("WAIT_LIMIT_MS", "20000"),
        ("REQUEST_DEADLINE_MS", "30000"),
        // One SKU gets half of it.
        ("MAX_IN_FLIGHT", "10"),
    ];
    let (mut process, database) = lab(backend, &limits).await;
    let rival = Rival::holding_stock(backend, &database.url).await;
    let url = process.url("/stock/deduct");
    let mut buyers: JoinSet<_> = (0..5).map(|_| buy(url.clone())).collect();
    // This request lacks the last line of its header. The test sends that line after SIGTERM.
    let mut half = connect(&process, b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n").await;
    is_full(&process).await;

    process.terminate();
    refuses_connections(&process).await;
    let mut answer = String::new();
    half.write_all(b"\r\n").await.expect("it still reads");
    half.read_to_string(&mut answer).await.expect("it answers");
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains("not-ready"), "{answer}");
    // A process that does not wait for its deductions would end within this time.
    sleep(LOCKED).await;
    assert!(process.is_running());
    assert!(buyers.try_join_next().is_none(), "a deduction did not wait");

    rival.let_go().await;
    let mut sold = Vec::new();
    for answer in buyers.join_all().await {
        let answer = answer.expect("an answer");
        assert_eq!(answer.status, 200, "{answer:?}");
        sold.push(answer.id);
    }
    let ended = process.ended().await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    Ledger::at(&database.url).assert_sold(SKU, &sold).await;
}

/// No connection is open, so only the deduction itself keeps the process from ending.
#[rstest]
#[tokio::test]
async fn deduction_whose_client_has_left_is_completed(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let limits = [("WAIT_LIMIT_MS", "20000"), ("MAX_IN_FLIGHT", "1")];
    let limits = [&limits[..], &[("REQUEST_DEADLINE_MS", "30000")]].concat();
    let (mut process, database) = lab(backend, &limits).await;
    let rival = Rival::holding_stock(backend, &database.url).await;
    let buyer = tokio::spawn(buy(process.url("/stock/deduct")));
    is_full(&process).await;
    buyer.abort();
    let left = buyer.await.expect_err("it waits for the stock");
    assert!(left.is_cancelled());

    process.terminate();
    refuses_connections(&process).await;
    // A process that does not wait for its deduction would end within this time.
    sleep(LOCKED).await;
    assert!(process.is_running());
    rival.let_go().await;
    let ended = process.ended().await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let sold = Ledger::at(&database.url).sold(SKU).await;
    assert_eq!(sold.len(), 1);
}

/// Goal: a request without an answer has no effect, so even a client without a key knows the
/// outcome.
///
/// Method: two replicas are stopped under load. A request whose connection was closed or refused
/// must not be in the ledger.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopping_replica_answers_every_request_it_has_started(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let (first, database) = lab(backend, &[DRAIN_LIMIT_MS]).await;
    let second = Process::lab(&database.url, &[DRAIN_LIMIT_MS]).await;
    // The client keeps its connections open, so some of them are idle when the replicas stop.
    let client = client();
    let mut buyers = Vec::new();
    for strategy in STRATEGIES {
        first.set_level(strategy, PLENTY).await;
        let path = format!("/stock/deduct?strategy={strategy}");
        let orders = (0..BUYERS).map(|number| {
            let order = client.post([&first, &second][number % 2].url(&path));
            order.json(&json!({ "sku": strategy }))
        });
        // 503 is the answer of `optimistic` after too many conflicts.
        buyers.push(Buyers::start(strategy, Keys::Half, orders, |answer, _| {
            assert_eq!(answer.status, 503, "{answer:?}");
        }));
    }
    until("sales", async || {
        buyers.iter().map(Buyers::sales).sum::<usize>() >= SALES
    })
    .await;
    buyers.iter().for_each(Buyers::replicas_stop);
    let (one, other) = tokio::join!(time_to_stop(first), time_to_stop(second));
    assert!(one.max(other) < AT_ONCE, "{one:?}, {other:?}");

    let ledger = Ledger::at(&database.url);
    for buyers in buyers {
        buyers.stop().await.assert_exact(&ledger).await;
    }
}

#[tokio::test]
async fn connections_without_a_request_do_not_delay_the_stop() {
    let (process, _database) = lab(Sqlite, &[DRAIN_LIMIT_MS]).await;
    let _silent = connect(&process, b"").await;
    let mut idle = connect(
        &process,
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    )
    .await;
    idle.read_u8().await.expect("an answer");
    let took = time_to_stop(process).await;
    assert!(took < AT_ONCE, "{took:?}");
}

#[rstest]
#[tokio::test]
async fn requests_that_do_not_end_delay_the_stop_by_the_drain_limit(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let limits = [
        ("WAIT_LIMIT_MS", "30000"),
        ("REQUEST_DEADLINE_MS", "40000"),
        ("DRAIN_LIMIT_MS", "1000"),
        ("MAX_IN_FLIGHT", "1"),
    ];
    let (process, database) = lab(backend, &limits).await;
    let rival = Rival::holding_stock(backend, &database.url).await;
    let buyer = tokio::spawn(buy(process.url("/stock/deduct")));
    let _half = connect(&process, b"GET /readyz HTTP/1.1\r\n").await;
    is_full(&process).await;
    let took = time_to_stop(process).await;
    assert!(took >= Duration::from_millis(900), "{took:?}");
    assert!(took < AT_ONCE, "{took:?}");
    let answer = buyer.await.expect("no panic");
    answer.expect_err("the connection is closed without an answer");
    rival.let_go().await;
    // A database server may still execute the statement and commit it after the process has ended.
    // The client got no answer, so for the client the outcome is unknown.
    let sold = Ledger::at(&database.url).sold(SKU).await;
    assert!(sold.len() <= usize::from(backend != Sqlite), "{sold:?}");
}
