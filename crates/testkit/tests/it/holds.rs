//! Messages that the proxy holds on their way, or at which it cuts.

use sqlx::{Connection, MySqlConnection, PgConnection};
use stocklock_testkit::proxy::{Mode, Proxy};
use stocklock_testkit::servers::{Backend, fresh_database};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{is_silent, soon};

/// A proxy, and the listener behind it.
struct Ends {
    proxy: Proxy,
    listener: TcpListener,
}

impl Ends {
    async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Proxy::to(listener.local_addr().unwrap().to_string()).await;
        Self { proxy, listener }
    }

    /// The client and the server of a new connection.
    async fn connect(&self) -> (TcpStream, TcpStream) {
        let client = TcpStream::connect(self.proxy.address()).await.unwrap();
        let (server, _) = self.listener.accept().await.unwrap();
        (client, server)
    }
}

async fn sends(stream: &mut TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).await.unwrap();
}

/// Exactly these bytes arrive soon.
async fn reads(stream: &mut TcpStream, expected: &[u8]) {
    let mut read = vec![0; expected.len()];
    soon(stream.read_exact(&mut read)).await.unwrap();
    assert_eq!(read, expected);
}

/// Nothing arrives, not even the end of the connection.
async fn reads_nothing(stream: &mut TcpStream) {
    let mut byte = [0];
    is_silent(&mut Box::pin(stream.read(&mut byte))).await;
}

#[tokio::test]
async fn held_request_delays_what_follows_but_no_answers() {
    let ends = Ends::new().await;
    let (mut client, mut server) = ends.connect().await;
    let hold = ends.proxy.hold_request(b"STOP");
    sends(&mut client, b"before, ST").await;
    reads(&mut server, b"before, ST").await;
    sends(&mut client, b"OP here").await;
    hold.held().await;
    sends(&mut client, b", after").await;
    reads_nothing(&mut server).await;
    sends(&mut server, b"STOP").await;
    reads(&mut client, b"STOP").await;

    hold.let_go();
    reads(&mut server, b"OP here, after").await;
    sends(&mut client, b"STOP").await;
    reads(&mut server, b"STOP").await;
}

#[tokio::test]
async fn held_and_cut_request_arrives_after_its_client_is_gone() {
    let ends = Ends::new().await;
    let (mut client, mut server) = ends.connect().await;
    let hold = ends.proxy.hold_and_cut(b"STOP");
    sends(&mut client, b"STOP here").await;
    hold.held().await;
    let end = soon(client.read(&mut [0])).await;
    assert_eq!(end.unwrap(), 0, "the connection is closed");
    drop(client);
    reads_nothing(&mut server).await;

    let answer = async {
        reads(&mut server, b"STOP here").await;
        reads_nothing(&mut server).await;
        sends(&mut server, b"done").await;
    };
    tokio::join!(hold.deliver(), answer);
    let end = soon(server.read(&mut [0])).await;
    assert_eq!(end.unwrap(), 0, "the connection is closed");
}

#[tokio::test]
async fn held_answer_delays_what_follows_but_no_requests() {
    let ends = Ends::new().await;
    let (mut client, mut server) = ends.connect().await;
    let hold = ends.proxy.hold_answer(b"STOP");
    sends(&mut client, b"STOP").await;
    reads(&mut server, b"STOP").await;
    sends(&mut server, b"ST").await;
    reads(&mut client, b"ST").await;
    sends(&mut server, b"OP here").await;
    hold.held().await;
    sends(&mut server, b", after").await;
    reads_nothing(&mut client).await;
    sends(&mut client, b"more").await;
    reads(&mut server, b"more").await;

    hold.let_go();
    reads(&mut client, b"OP here, after").await;
}

#[tokio::test]
async fn one_hold_holds_one_message_on_one_connection() {
    let ends = Ends::new().await;
    let (mut one, mut server_of_one) = ends.connect().await;
    let (mut other, mut server_of_other) = ends.connect().await;
    let hold = ends.proxy.hold_request(b"STOP");
    sends(&mut one, b"STOP").await;
    hold.held().await;
    sends(&mut other, b"STOP").await;
    reads(&mut server_of_other, b"STOP").await;
    reads_nothing(&mut server_of_one).await;
}

#[tokio::test]
async fn held_request_arrives_after_its_client_disconnects() {
    let ends = Ends::new().await;
    let (mut client, mut server) = ends.connect().await;
    let hold = ends.proxy.hold_request(b"STOP");
    sends(&mut client, b"STOP").await;
    hold.held().await;
    drop(client);
    reads_nothing(&mut server).await;
    hold.let_go();
    reads(&mut server, b"STOP").await;
    assert_eq!(soon(server.read(&mut [0])).await.unwrap(), 0);
}

#[tokio::test]
async fn message_released_into_a_blackhole_arrives_after_it() {
    let ends = Ends::new().await;
    let (mut client, mut server) = ends.connect().await;
    let hold = ends.proxy.hold_answer(b"STOP");
    sends(&mut server, b"STOP").await;
    hold.held().await;
    ends.proxy.set(Mode::Blackhole).await;
    hold.let_go();
    reads_nothing(&mut client).await;
    ends.proxy.set(Mode::Pass).await;
    reads(&mut client, b"STOP").await;
}

#[tokio::test]
async fn dropped_hold_holds_nothing() {
    let ends = Ends::new().await;
    let (mut client, mut server) = ends.connect().await;
    let held = ends.proxy.hold_request(b"STOP");
    let waiting = ends.proxy.hold_request(b"HALT");
    sends(&mut client, b"STOP").await;
    held.held().await;
    drop((held, waiting));
    reads(&mut server, b"STOP").await;
    sends(&mut client, b"HALT").await;
    reads(&mut server, b"HALT").await;
}

#[tokio::test]
async fn pattern_is_found_across_reads_and_only_while_armed() {
    let ends = Ends::new().await;
    let (mut client, mut server) = ends.connect().await;
    sends(&mut client, b"STOP").await;
    reads(&mut server, b"STOP").await;
    let trigger = ends.proxy.cut_before(b"STOP", 1);
    sends(&mut client, b"...ST").await;
    reads(&mut server, b"...ST").await;
    sends(&mut client, b"OP").await;
    assert_eq!(soon(server.read(&mut [0])).await.unwrap(), 0);
    let (mut client, mut server) = ends.connect().await;
    sends(&mut client, b"STOP").await;
    reads(&mut server, b"STOP").await;
    assert_eq!(trigger.fired(), 1);
}

async fn select(backend: Backend, url: &str, value: &str) -> sqlx::Result<String> {
    if backend == Backend::Mysql {
        let mut connection = MySqlConnection::connect(url).await?;
        let query = sqlx::query_scalar("SELECT ?").bind(value);
        query.fetch_one(&mut connection).await
    } else {
        let mut connection = PgConnection::connect(url).await?;
        let query = sqlx::query_scalar("SELECT $1::text").bind(value);
        query.fetch_one(&mut connection).await
    }
}

#[tokio::test]
async fn row_is_held_while_its_client_waits() {
    for backend in Backend::SERVERS {
        let database = fresh_database(backend).await;
        let (proxy, url) = Proxy::before(&database.url).await;
        let hold = proxy.hold_answer(b"sku-of-this-test");
        let mut row = Box::pin(select(backend, &url, "sku-of-this-test"));
        tokio::select! {
            row = &mut row => panic!("{row:?} was not held"),
            () = hold.held() => {}
        }
        is_silent(&mut row).await;
        let other = select(backend, &url, "another").await;
        assert_eq!(other.unwrap(), "another");
        hold.let_go();
        assert_eq!(row.await.unwrap(), "sku-of-this-test");
    }
}
