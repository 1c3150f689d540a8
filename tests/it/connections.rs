//! Connections: closed when their client says nothing for too long, and not before.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use crate::support::app::TestApp;
use crate::support::services::Backend;

/// How long a closing, or an answer, may take beyond its limit on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

const HEALTH: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n";

/// A client that speaks bytes.
struct Client(TcpStream);

impl Client {
    async fn connect(app: &TestApp) -> Self {
        let address = app.base(0).replace("http://", "");
        Self(TcpStream::connect(address).await.expect("it listens"))
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.expect("it reads");
    }

    /// The next answer: its head, and its body.
    async fn answer(&mut self) -> (String, String) {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let byte = timeout(PATIENCE, self.0.read_u8()).await;
            head.push(byte.expect("it answers").expect("it answers to the end"));
        }
        let head = String::from_utf8(head)
            .expect("a head is text")
            .to_lowercase();
        let length = head
            .split("content-length: ")
            .nth(1)
            .and_then(|rest| rest.lines().next()?.parse().ok());
        let mut body = vec![0; length.expect("its body has a length")];
        self.0.read_exact(&mut body).await.expect("it comes whole");
        (head, String::from_utf8(body).expect("a body is text"))
    }

    async fn is_served(&mut self, path: &str) {
        let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n");
        self.send(request.as_bytes()).await;
        let (head, _) = self.answer().await;
        assert!(head.starts_with("http/1.1 200"), "{head}");
    }

    /// Waits for the server to close, and tells how long it took. It says nothing before it does.
    async fn is_closed_after(&mut self) -> Duration {
        let begin = Instant::now();
        let read = timeout(PATIENCE, self.0.read_u8()).await;
        let read = read.expect("it closes").map_err(|error| error.kind());
        assert!(read.is_err(), "it says {read:?}");
        begin.elapsed()
    }
}

async fn app(flags: &[&str]) -> TestApp {
    TestApp::with_flags(Backend::Sqlite, 1, flags).await
}

const MS: Duration = Duration::from_millis(1);
/// Far away, for the limits that are not the subject.
const FAR: &str = "60000";

#[tokio::test]
async fn a_silent_connection_is_closed() {
    let limits = ["--first-byte-timeout-ms=300", "--header-timeout-ms", FAR];
    let app = app(&limits).await;
    let took = Client::connect(&app).await.is_closed_after().await;
    assert!(took >= 250 * MS, "after {took:?}");
    app.stop().await;
}

#[tokio::test]
async fn an_unfinished_header_is_closed_however_often_a_byte_comes() {
    let limits = ["--header-timeout-ms=500", "--first-byte-timeout-ms", FAR];
    let app = app(&limits).await;
    let mut client = Client::connect(&app).await;
    let begin = Instant::now();
    client
        .send(b"GET /healthz HTTP/1.1\r\nHost: test\r\nX-Slow: ")
        .await;
    while client.0.write_all(b"x").await.is_ok() {
        assert!(begin.elapsed() < PATIENCE, "it stays open");
        sleep(50 * MS).await;
    }
    assert!(begin.elapsed() >= 450 * MS, "after {:?}", begin.elapsed());
    app.stop().await;
}

#[tokio::test]
async fn a_second_request_may_not_leave_its_header_unfinished_either() {
    let app = app(&["--header-timeout-ms=300", "--idle-timeout-ms", FAR]).await;
    let mut client = Client::connect(&app).await;
    client.is_served("/healthz").await;
    client.send(b"GET /healthz HTT").await;
    let took = client.is_closed_after().await;
    assert!(took >= 250 * MS, "after {took:?}");
    app.stop().await;
}

/// The second header's beginning comes with the first request; until another byte comes it counts
/// as idle.
#[tokio::test]
async fn a_pipelined_header_may_not_stay_unfinished_either() {
    let app = app(&["--header-timeout-ms=300", "--idle-timeout-ms=600"]).await;
    let mut client = Client::connect(&app).await;
    client.send(&[HEALTH, b"GET /healthz HTT"].concat()).await;
    client.answer().await;
    client.is_closed_after().await;
    app.stop().await;
}

#[tokio::test]
async fn a_body_that_stalls_is_answered_408_and_the_connection_closed() {
    let app = app(&["--body-timeout-ms=300", "--idle-timeout-ms", FAR]).await;
    app.set_level("real", 10).await;
    let mut client = Client::connect(&app).await;
    client
        .send(
            b"POST /stock/deduct HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n\
              Content-Length: 15\r\n\r\n{\"sku\": \"re",
        )
        .await;
    let (head, body) = client.answer().await;
    assert!(head.starts_with("http/1.1 408"), "{head}");
    assert!(head.contains("application/problem+json"), "{head}");
    assert!(body.contains(r#""code":"request-timeout""#), "{body}");
    client.is_closed_after().await;
    assert_eq!(app.audit("real").await["sold"], 0);
    app.stop().await;
}

#[tokio::test]
async fn a_body_that_ends_early_takes_nothing() {
    let app = app(&[]).await;
    app.set_level("real", 10).await;
    let mut client = Client::connect(&app).await;
    client
        .send(
            b"POST /stock/deduct HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n\
              Content-Length: 99\r\n\r\n{\"sku\": \"real\"}",
        )
        .await;
    client.0.shutdown().await.expect("it is open");
    // Whether it is still told why is up to the server.
    let mut rest = Vec::new();
    let _ = timeout(PATIENCE, client.0.read_to_end(&mut rest)).await;
    assert_eq!(app.audit("real").await["sold"], 0);
    app.stop().await;
}

/// By hyper, before any route: without a body, as the API's description says.
#[tokio::test]
async fn what_is_not_http_is_refused_without_a_body() {
    let app = app(&[]).await;
    let too_large = format!(
        "GET /healthz HTTP/1.1\r\n{}\r\n",
        "X-Many: 1\r\n".repeat(200)
    );
    for (request, status) in [("no request\r\n\r\n", "400"), (&too_large, "431")] {
        let mut client = Client::connect(&app).await;
        client.send(request.as_bytes()).await;
        let (head, body) = client.answer().await;
        assert!(head.starts_with(&format!("http/1.1 {status}")), "{head}");
        assert_eq!(body, "");
    }
    app.stop().await;
}

#[rstest::rstest]
#[case("/healthz")]
#[case("/readyz")] // It waits for the database, and so for more than one turn of the connection.
#[tokio::test]
async fn an_idle_connection_outlives_the_header_limit_and_ends_at_its_own(#[case] path: &str) {
    let limits = [
        "--first-byte-timeout-ms=200",
        "--header-timeout-ms=200",
        "--idle-timeout-ms=1500",
    ];
    let app = app(&limits).await;
    let mut client = Client::connect(&app).await;
    client.is_served(path).await;
    sleep(600 * MS).await;
    client.is_served(path).await;
    let took = client.is_closed_after().await;
    assert!(took >= 1_400 * MS, "after {took:?}");
    app.stop().await;
}

#[tokio::test]
async fn a_connection_in_use_outlives_the_idle_limit() {
    let app = app(&["--idle-timeout-ms=1000", "--header-timeout-ms=1000"]).await;
    let mut client = Client::connect(&app).await;
    let begin = Instant::now();
    while begin.elapsed() < 3_000 * MS {
        client.is_served("/healthz").await;
        sleep(20 * MS).await;
    }
    app.stop().await;
}

/// Serving is not idleness, however long the body takes.
#[tokio::test]
async fn a_long_request_outlives_the_idle_and_the_header_limit() {
    let app = app(&["--idle-timeout-ms=200", "--header-timeout-ms=200"]).await;
    app.set_level("real", 10).await;
    let mut client = Client::connect(&app).await;
    client
        .send(
            b"POST /stock/deduct HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n\
              Content-Length: 15\r\n\r\n",
        )
        .await;
    sleep(1_000 * MS).await;
    client.send(br#"{"sku": "real"}"#).await;
    let (head, _) = client.answer().await;
    assert!(head.starts_with("http/1.1 200"), "{head}");
    app.stop().await;
}

#[tokio::test]
async fn a_connection_above_the_cap_waits_and_is_then_served() {
    let app = app(&["--max-connections=1", "--first-byte-timeout-ms", FAR]).await;
    let first = Client::connect(&app).await;
    let mut second = Client::connect(&app).await;
    second.send(HEALTH).await;
    let early = timeout(300 * MS, second.0.readable()).await;
    assert!(early.is_err(), "it was served beside the first");
    drop(first);
    let (head, _) = second.answer().await;
    assert!(head.starts_with("http/1.1 200"), "{head}");
    app.stop().await;
}

#[tokio::test]
async fn a_probe_is_served_however_many_keep_their_connections() {
    let app = app(&["--max-connections=20", "--idle-timeout-ms", FAR]).await;
    let mut keeping = Vec::new();
    for number in 1..=60 {
        let mut client = Client::connect(&app).await;
        client.send(HEALTH).await;
        let (head, _) = client.answer().await;
        let is_closed = head.contains("connection: close");
        // Nine tenths may stay; from there on one goes for each that comes.
        assert!(number > 18 || !is_closed, "{number}: {head}");
        keeping.push(client);
    }
    // For the last that were closed to be seen as such.
    sleep(500 * MS).await;
    let mut kept = 0;
    for client in &mut keeping {
        // Nothing to read yet means that it is open.
        kept += usize::from(timeout(20 * MS, client.0.read_u8()).await.is_err());
    }
    assert!((10..=18).contains(&kept), "{kept} were kept");
    app.stop().await;
}

/// A connection that is called upon to go while it is in use finishes what it does.
#[tokio::test]
async fn a_connection_in_use_is_not_closed_to_make_room() {
    let app = app(&["--max-connections=3"]).await;
    // By a client that keeps its connection.
    app.set_level("real", 10).await;
    let mut busy = Client::connect(&app).await;
    busy.is_served("/healthz").await;
    busy.send(
        b"POST /stock/deduct HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n\
          Content-Length: 15\r\n\r\n",
    )
    .await;
    sleep(100 * MS).await;
    for _ in 0..3 {
        Client::connect(&app).await.is_served("/healthz").await;
    }
    busy.send(br#"{"sku": "real"}"#).await;
    let (head, _) = busy.answer().await;
    assert!(head.starts_with("http/1.1 200"), "{head}");
    app.stop().await;
}
