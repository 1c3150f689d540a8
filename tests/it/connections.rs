//! Connections: the server closes one when its client sends nothing for too long, and not earlier.

use std::time::Duration;

use rstest::rstest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use crate::support::app::TestApp;
use crate::support::rival::Rival;
use crate::support::services::Backend::Sqlite;

/// How much longer than its limit an answer or the end of a connection may take.
const PATIENCE: Duration = Duration::from_secs(20);
const MS: Duration = Duration::from_millis(1);
/// A limit that no test reaches.
const FAR: &str = "60000";

const HEALTH: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
const BODY: &[u8] = br#"{"sku": "real"}"#;
/// A deduction waits for a locked row for much longer than any test.
const LONG_WAITS: [&str; 2] = ["--wait-limit-ms=50000", "--request-deadline-ms=60000"];

fn deduct_header(content_length: usize) -> Vec<u8> {
    format!(
        "POST /stock/deduct HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {content_length}\r\n\r\n"
    )
    .into_bytes()
}

struct Client(TcpStream);

impl Client {
    async fn connect(app: &TestApp) -> Self {
        let address = app.base(0).replace("http://", "");
        Self(TcpStream::connect(address).await.expect("it listens"))
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.expect("it reads");
    }

    /// The header of the next answer, in lower case, and its body.
    async fn answer(&mut self) -> (String, String) {
        let mut header = Vec::new();
        while !header.ends_with(b"\r\n\r\n") {
            let byte = timeout(PATIENCE, self.0.read_u8()).await;
            header.push(byte.expect("it answers").expect("a complete header"));
        }
        let header = String::from_utf8(header).expect("a header is text");
        let header = header.to_lowercase();
        let length = header.split("content-length: ").nth(1);
        let length = length.and_then(|rest| rest.lines().next()?.parse().ok());
        let mut body = vec![0; length.expect("a content length")];
        let read = self.0.read_exact(&mut body).await;
        read.expect("a complete body");
        (header, String::from_utf8(body).expect("a body is text"))
    }

    async fn deduct(&mut self) {
        self.send(&[&deduct_header(BODY.len()), BODY].concat())
            .await;
    }

    async fn answer_is_200(&mut self) {
        let (header, _) = self.answer().await;
        assert!(header.starts_with("http/1.1 200"), "{header}");
    }

    async fn get(&mut self, path: &str) {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        self.send(request.as_bytes()).await;
        self.answer_is_200().await;
    }

    /// How long the server takes to close the connection. It must not send anything first.
    async fn closed_after(&mut self) -> Duration {
        let start = Instant::now();
        let read = timeout(PATIENCE, self.0.read_u8()).await;
        let read = read.expect("it closes").map_err(|error| error.kind());
        assert!(read.is_err(), "it sends {read:?}");
        start.elapsed()
    }
}

/// A replica with one SKU.
async fn app(flags: &[&str]) -> TestApp {
    let app = TestApp::with_flags(Sqlite, 1, flags).await;
    app.set_level("real", 10).await;
    app
}

#[tokio::test]
async fn unfinished_header_is_closed_although_bytes_keep_arriving() {
    let limits = ["--header-timeout-ms=500", "--first-byte-timeout-ms", FAR];
    let app = app(&limits).await;
    let mut client = Client::connect(&app).await;
    let start = Instant::now();
    let begin = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ";
    client.send(begin).await;
    while client.0.write_all(b"x").await.is_ok() {
        assert!(start.elapsed() < PATIENCE, "it stays open");
        sleep(50 * MS).await;
    }
    assert!(start.elapsed() >= 450 * MS, "after {:?}", start.elapsed());
}

/// Before its first byte, and in its second header.
#[rstest]
#[case(["--first-byte-timeout-ms=300", "--header-timeout-ms"], false)]
#[case(["--header-timeout-ms=300", "--idle-timeout-ms"], true)]
#[tokio::test]
async fn silent_connection_is_closed(#[case] limits: [&str; 2], #[case] second: bool) {
    let app = app(&[limits[0], limits[1], FAR]).await;
    let mut client = Client::connect(&app).await;
    if second {
        client.get("/healthz").await;
        client.send(b"GET /healthz HTT").await;
    }
    let closed_after = client.closed_after().await;
    assert!(closed_after >= 250 * MS, "after {closed_after:?}");
}

/// The first bytes of the second header arrive with the first request. The connection counts as
/// idle until the next byte.
#[tokio::test]
async fn unfinished_pipelined_header_is_closed() {
    let app = app(&["--header-timeout-ms=300", "--idle-timeout-ms=600"]).await;
    let mut client = Client::connect(&app).await;
    client.send(&[HEALTH, b"GET /healthz HTT"].concat()).await;
    client.answer().await;
    client.closed_after().await;
}

/// The answers fill the buffers of both sides, and then the server waits for its client.
#[tokio::test]
async fn connection_whose_client_reads_no_answer_is_closed() {
    let limits = ["--header-timeout-ms=300", "--idle-timeout-ms", FAR];
    let app = app(&[&limits[..], &["--first-byte-timeout-ms", FAR]].concat()).await;
    let mut client = Client::connect(&app).await;
    let request = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let flood = async { while client.0.write_all(request).await.is_ok() {} };
    timeout(PATIENCE, flood).await.expect("it is closed");
}

#[tokio::test]
async fn stalled_body_is_answered_408_and_the_connection_closed() {
    let app = app(&["--body-timeout-ms=300", "--idle-timeout-ms", FAR]).await;
    let mut client = Client::connect(&app).await;
    let header = deduct_header(BODY.len());
    client.send(&[&header, &BODY[..11]].concat()).await;
    let (header, body) = client.answer().await;
    assert!(header.starts_with("http/1.1 408"), "{header}");
    assert!(header.contains("application/problem+json"), "{header}");
    assert!(body.contains(r#""code":"request-timeout""#), "{body}");
    client.closed_after().await;
    assert_eq!(app.audit("real").await["sold"], 0);
}

#[tokio::test]
async fn body_that_ends_early_takes_nothing() {
    let app = app(&[]).await;
    let mut client = Client::connect(&app).await;
    client.send(&[&deduct_header(99), BODY].concat()).await;
    client.0.shutdown().await.expect("it is open");
    // The server may answer or only close the connection.
    let mut rest = Vec::new();
    let _ = timeout(PATIENCE, client.0.read_to_end(&mut rest)).await;
    assert_eq!(app.audit("real").await["sold"], 0);
}

/// hyper refuses these requests before any route, without a body, as the OpenAPI document says.
#[tokio::test]
async fn request_that_is_not_http_is_refused_without_a_body() {
    let app = app(&[]).await;
    let headers = "X-Many: 1\r\n".repeat(200);
    let too_many = format!("GET /healthz HTTP/1.1\r\n{headers}\r\n");
    // It has no end: the server refuses it when the buffer for a header is full.
    let mut too_large = "GET /healthz HTTP/1.1\r\nX-Large: ".to_owned();
    too_large.extend(std::iter::repeat_n('x', 16 * 1024 - too_large.len()));
    let refused = [
        ("no request\r\n\r\n", "400"),
        (&too_many, "431"),
        (&too_large, "431"),
    ];
    for (request, status) in refused {
        let mut client = Client::connect(&app).await;
        client.send(request.as_bytes()).await;
        let (header, body) = client.answer().await;
        let expected = format!("http/1.1 {status}");
        assert!(header.starts_with(&expected), "{header}");
        assert_eq!(body, "");
    }
}

/// HTTP/1.0 had no such header.
#[rstest]
#[case("HTTP/1.1\r\n", "400")]
#[case("HTTP/1.1\r\nHost: one\r\nHost: two\r\n", "400")]
#[case("HTTP/1.1\r\nHost: localhost\r\n", "200")]
#[case("HTTP/1.0\r\n", "200")]
#[tokio::test]
async fn request_without_one_host_is_refused(#[case] rest: &str, #[case] status: &str) {
    let app = app(&[]).await;
    let mut client = Client::connect(&app).await;
    let request = format!("GET /healthz {rest}\r\n");
    client.send(request.as_bytes()).await;
    let (header, body) = client.answer().await;
    assert_eq!(header.split(' ').nth(1), Some(status), "{header}");
    assert_eq!(body.contains("bad-request"), status == "400", "{body}");
}

#[rstest]
#[case("/healthz")]
#[case("/readyz")] // Waits for the database, so the connection's task runs more than once.
#[tokio::test]
async fn idle_connection_is_closed_by_the_idle_limit_only(#[case] path: &str) {
    let limits = [
        "--first-byte-timeout-ms=200",
        "--header-timeout-ms=200",
        "--idle-timeout-ms=1500",
    ];
    let app = app(&limits).await;
    let mut client = Client::connect(&app).await;
    client.get(path).await;
    sleep(600 * MS).await;
    client.get(path).await;
    let closed_after = client.closed_after().await;
    assert!(closed_after >= 1_400 * MS, "after {closed_after:?}");
}

/// A connection that waits for the rest of a body is not idle.
#[tokio::test]
async fn slow_body_outlives_the_idle_and_the_header_limit() {
    let app = app(&["--idle-timeout-ms=200", "--header-timeout-ms=200"]).await;
    let mut client = Client::connect(&app).await;
    client.send(&deduct_header(BODY.len())).await;
    sleep(1_000 * MS).await;
    client.send(BODY).await;
    client.answer_is_200().await;
}

#[tokio::test]
async fn connection_above_max_connections_waits_and_is_then_served() {
    let app = app(&[&LONG_WAITS[..], &["--max-connections=1"]].concat()).await;
    let rival = Rival::holding_stock(Sqlite, &app.database_url).await;
    let mut first = Client::connect(&app).await;
    first.deduct().await;
    let mut second = Client::connect(&app).await;
    second.send(HEALTH).await;
    let early = timeout(300 * MS, second.0.readable()).await;
    assert!(early.is_err(), "it was served while the first one was open");
    rival.let_go().await;
    first.answer_is_200().await;
    second.answer_is_200().await;
}

/// Without more clients, these would stay for a minute.
#[rstest]
#[case::no_byte("")]
#[case::half_a_header("GET /healthz HTTP/1.1\r\nHost: te")]
#[case::half_a_body(
    "POST /stock/deduct HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
     Content-Length: 9\r\n\r\n{"
)]
#[tokio::test]
async fn silent_clients_make_room_for_others(#[case] first_bytes: &str) {
    let limits = ["--first-byte-timeout-ms", FAR, "--header-timeout-ms", FAR];
    let limits = [&limits[..], &["--body-timeout-ms", FAR]].concat();
    let app = app(&[&limits[..], &["--max-connections=10"]].concat()).await;
    let mut silent = Vec::new();
    for _ in 0..10 {
        let mut client = Client::connect(&app).await;
        client.send(first_bytes.as_bytes()).await;
        silent.push(client);
    }
    Client::connect(&app).await.get("/healthz").await;
}

#[tokio::test]
async fn probe_is_served_although_many_connections_stay_open() {
    let flags = ["--max-connections=20", "--idle-timeout-ms", FAR];
    let app = TestApp::with_flags(Sqlite, 1, &flags).await;
    let mut clients = Vec::new();
    for number in 1..=60 {
        let mut client = Client::connect(&app).await;
        client.send(HEALTH).await;
        let (header, _) = client.answer().await;
        let is_closed = header.contains("connection: close");
        // Above nine tenths of the limit, each new connection closes an idle one.
        assert!(number > 18 || !is_closed, "{number}: {header}");
        clients.push(client);
    }
    // The client needs a moment to see the last connections close.
    sleep(500 * MS).await;
    let mut open = 0;
    for client in &mut clients {
        // A closed connection can be read at once.
        open += usize::from(timeout(20 * MS, client.0.read_u8()).await.is_err());
    }
    assert!((10..=18).contains(&open), "{open} are open");
}

/// The server asks the connection to close while it is in use: it finishes its request first.
#[tokio::test]
async fn connection_in_use_is_not_closed_to_make_room() {
    let app = app(&[&LONG_WAITS[..], &["--max-connections=3"]].concat()).await;
    let rival = Rival::holding_stock(Sqlite, &app.database_url).await;
    let mut busy = Client::connect(&app).await;
    busy.get("/healthz").await;
    busy.deduct().await;
    sleep(100 * MS).await;
    for _ in 0..3 {
        Client::connect(&app).await.get("/healthz").await;
    }
    rival.let_go().await;
    busy.answer_is_200().await;
}
