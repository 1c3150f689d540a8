//! A process that gets SIGTERM completes the requests that it has begun, and waits for nothing else.

use std::time::Duration;

use reqwest::{Client, Method};
use rstest::rstest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::faults::{Answer, Ledger, send, try_send, until};
use crate::support::process::Process;
use crate::support::rival::Rival;
use crate::support::services::{Backend, TestDatabase, fresh_database};

/// Far less than the default drain limit of 10 s, and far more than an idle process needs.
const AT_ONCE: Duration = Duration::from_secs(5);
/// The SKU that a lab has in stock.
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

/// Asks the process to stop; returns how long that took. The exit code must be 0.
async fn time_to_stop(process: Process) -> Duration {
    process.terminate();
    let begin = Instant::now();
    let ended = process.ended().await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    begin.elapsed()
}

/// Buys one unit. Tries again while the probe of [`is_full`] has the only free place.
async fn buy(url: String) -> reqwest::Result<Answer> {
    let begin = Instant::now();
    loop {
        let answer = try_send(Client::new().post(&url)).await?;
        if answer.status != 503 || begin.elapsed() > AT_ONCE {
            return Ok(answer);
        }
    }
}

/// Returns when as many deductions are in progress as `MAX_IN_FLIGHT` allows. Then a deduction is
/// refused even if it does not use the database.
async fn is_full(process: &Process) {
    until("the replica is overloaded", || async {
        let probe = process.request(Method::POST, "/stock/deduct?strategy=redis-lua");
        send(probe).await.code == "overloaded"
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn deductions_in_progress_are_answered(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let limits = [
        ("WAIT_LIMIT_MS", "20000"),
        ("REQUEST_DEADLINE_MS", "30000"),
        ("MAX_IN_FLIGHT", "5"),
    ];
    let (process, database) = lab(backend, &limits).await;
    let rival = Rival::holding_stock(backend, &database.url).await;
    let url = process.url("/stock/deduct");
    let buyers: JoinSet<_> = (0..5).map(|_| buy(url.clone())).collect();
    // A request without the last line of its header, which follows while the process stops.
    let mut half = connect(&process, b"GET /readyz HTTP/1.1\r\nHost: test\r\n").await;
    is_full(&process).await;

    process.terminate();
    until("new connections are refused", || async {
        TcpStream::connect(process.address()).await.is_err()
    })
    .await;
    let mut answer = String::new();
    half.write_all(b"\r\n").await.expect("it still reads");
    half.read_to_string(&mut answer).await.expect("it answers");
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains("not-ready"), "{answer}");

    rival.let_go().await;
    for answer in buyers.join_all().await {
        let answer = answer.expect("an answer");
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    let ended = process.ended().await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_load_answers_and_sales_are_the_same() {
    let (process, database) = lab(Backend::Sqlite, &[]).await;
    let mut buyers = JoinSet::new();
    for _ in 0..16 {
        let url = process.url("/stock/deduct");
        buyers.spawn(async move {
            let client = Client::new();
            let mut sold = Vec::new();
            // Until a connection is refused, or an idle one was closed.
            while let Ok(answer) = try_send(client.post(&url)).await {
                assert_eq!(answer.status, 200, "{answer:?}");
                sold.push(answer.id);
            }
            sold
        });
    }
    sleep(Duration::from_millis(300)).await;
    time_to_stop(process).await;
    let sold = buyers.join_all().await.concat();
    assert!(!sold.is_empty(), "nothing was sold before the stop");
    let ledger = Ledger::at(&database.url);
    ledger.assert_sold(SKU, &sold).await;
    ledger.assert_consistent(SKU).await;
}

#[tokio::test]
async fn connections_without_a_request_do_not_delay_the_stop() {
    let (process, _database) = lab(Backend::Sqlite, &[]).await;
    let _silent = connect(&process, b"").await;
    let mut idle = connect(&process, b"GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n").await;
    idle.read_u8().await.expect("an answer");
    let took = time_to_stop(process).await;
    assert!(took < AT_ONCE, "{took:?}");
}

#[rstest]
#[tokio::test]
async fn requests_that_do_not_end_delay_the_stop_by_the_drain_limit(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
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
    assert!(Ledger::at(&database.url).sold(SKU).await.is_empty());
}
