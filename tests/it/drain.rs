//! Being asked to stop: what is under way is finished, what is not does not keep the process.

use std::time::Duration;

use reqwest::Client;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::support::process::Process;
use crate::support::rival::Rival;
use crate::support::services::{Backend, TestDatabase, fresh_database};

/// Far less than the default drain limit of 10 s, and far more than an idle process needs.
const AT_ONCE: Duration = Duration::from_secs(5);

async fn lab(backend: Backend, limits: &[(&str, &str)]) -> (Process, TestDatabase) {
    let database = fresh_database(backend).await;
    (Process::lab(&database.url, limits).await, database)
}

/// Waits until nobody is let in any more.
async fn refuses_connections(process: &Process) {
    let begin = Instant::now();
    while TcpStream::connect(process.address()).await.is_ok() {
        assert!(begin.elapsed() < AT_ONCE, "it still listens");
        sleep(Duration::from_millis(5)).await;
    }
}

async fn connect(process: &Process, first_bytes: &[u8]) -> TcpStream {
    let stream = TcpStream::connect(process.address()).await;
    let mut stream = stream.expect("it listens");
    stream.write_all(first_bytes).await.expect("it reads");
    stream
}

/// Asks it to stop, and tells how long it took; it must end well.
async fn stops_within(process: Process) -> Duration {
    process.terminate();
    let begin = Instant::now();
    let ended = process.ended().await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    begin.elapsed()
}

#[rstest::rstest]
#[tokio::test]
async fn deductions_under_way_are_answered(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let limits = [
        ("WAIT_LIMIT_MS", "20000"),
        ("REQUEST_DEADLINE_MS", "30000"),
        ("MAX_IN_FLIGHT", "5"),
    ];
    let (process, database) = lab(backend, &limits).await;
    let rival = Rival::holding_stock(backend, &database.url).await;
    let mut buyers = JoinSet::new();
    for _ in 0..5 {
        buyers.spawn(buy(process.url("/stock/deduct")));
    }
    // Half a header: the rest of it is to come once the process is stopping.
    let mut half = connect(&process, b"GET /readyz HTTP/1.1\r\nHost: test\r\n").await;
    is_full(&process).await;

    process.terminate();
    refuses_connections(&process).await;
    let mut answer = String::new();
    half.write_all(b"\r\n").await.expect("it still reads");
    half.read_to_string(&mut answer).await.expect("it answers");
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains("not-ready"), "{answer}");

    rival.let_go().await;
    for answer in buyers.join_all().await {
        let body: Value = answer.expect("an answer").json().await.expect("a body");
        assert_eq!(body["durability"], "committed", "{body}");
    }
    let ended = process.ended().await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

/// Buys, again while the only place that is free is taken by the probe of [`is_full`].
async fn buy(url: String) -> reqwest::Result<reqwest::Response> {
    let begin = Instant::now();
    loop {
        let answer = Client::new().post(&url).send().await?;
        if answer.status() != 503 || begin.elapsed() > AT_ONCE {
            return Ok(answer);
        }
    }
}

/// Waits until as many deductions are under way as `MAX_IN_FLIGHT` allows: then one that would not
/// even touch the database finds no place.
async fn is_full(process: &Process) {
    let probe = process.url("/stock/deduct?strategy=redis-lua");
    let begin = Instant::now();
    loop {
        let answer = Client::new().post(&probe).send().await.expect("an answer");
        let problem: Value = answer.json().await.expect("a problem");
        if problem["code"] == "overloaded" {
            return;
        }
        assert!(begin.elapsed() < AT_ONCE, "{problem}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// Whatever was answered 200 is in the ledger, and nothing else is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_load_every_sale_is_answered_and_every_answer_is_a_sale() {
    let (process, database) = lab(Backend::Sqlite, &[]).await;
    let mut buyers = JoinSet::new();
    for _ in 0..16 {
        let url = process.url("/stock/deduct");
        buyers.spawn(async move {
            let client = Client::new();
            let mut sold = 0;
            // Until it is refused, or its idle connection was closed.
            while let Ok(answer) = client.post(&url).send().await {
                assert_eq!(answer.status(), 200, "{:?}", answer.text().await);
                sold += 1;
            }
            sold
        });
    }
    sleep(Duration::from_millis(300)).await;
    stops_within(process).await;
    let sold: i64 = buyers.join_all().await.into_iter().sum();

    let process = Process::lab(&database.url, &[]).await;
    let audit = reqwest::get(process.url("/stock/1001/audit")).await;
    let audit: Value = audit.expect("an answer").json().await.expect("an audit");
    assert_eq!(audit["warehouses"][0]["sold"], sold, "{audit}");
    assert_eq!(audit["warehouses"][0]["consistent"], true, "{audit}");
    assert!(sold > 0, "nothing was sold before it was asked to stop");
}

#[tokio::test]
async fn connections_without_a_request_do_not_keep_it() {
    let (process, _database) = lab(Backend::Sqlite, &[]).await;
    let _silent = connect(&process, b"").await;
    let mut idle = connect(&process, b"GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n").await;
    let answered = idle.read_u8().await;
    answered.expect("an answer");
    let took = stops_within(process).await;
    assert!(took < AT_ONCE, "{took:?}");
}

#[rstest::rstest]
#[tokio::test]
async fn what_does_not_end_keeps_it_to_the_drain_limit_only(
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
    let took = stops_within(process).await;
    assert!(took >= Duration::from_millis(900), "{took:?}");
    assert!(took < AT_ONCE, "{took:?}");
    let answer = buyer.await.expect("no panic");
    assert!(answer.is_err() || answer.is_ok_and(|answer| answer.status() != 200));
    rival.let_go().await;
}
