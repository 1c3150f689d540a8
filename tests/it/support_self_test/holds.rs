//! Messages that the proxy holds on their way.

use sqlx::{Connection, MySqlConnection, PgConnection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::{SOON, is_silent};
use crate::support::proxy::{Mode, Proxy};
use crate::support::services::{Backend, mysql, postgres};

/// Both ends of connections through a proxy.
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

    /// A connection's client and server.
    async fn connect(&self) -> (TcpStream, TcpStream) {
        let client = TcpStream::connect(self.proxy.address()).await.unwrap();
        let (server, _) = self.listener.accept().await.unwrap();
        (client, server)
    }
}

/// Reads just this from a stream, soon.
async fn reads(stream: &mut TcpStream, expected: &[u8]) {
    let mut read = vec![0; expected.len()];
    let arrived = timeout(SOON, stream.read_exact(&mut read)).await;
    arrived.expect("it arrives").unwrap();
    assert_eq!(read, expected);
}

/// Reads nothing from a stream, not even its end.
async fn reads_nothing(stream: &mut TcpStream) {
    let mut byte = [0];
    is_silent(&mut Box::pin(stream.read(&mut byte))).await;
}

#[tokio::test]
async fn a_held_request_waits_with_what_follows_it_and_answers_pass() {
    let ends = Ends::new().await;
    let (mut client, mut server) = ends.connect().await;
    let hold = ends.proxy.hold_request(b"STOP");
    client.write_all(b"before, ST").await.unwrap();
    reads(&mut server, b"before, ST").await;
    client.write_all(b"OP here").await.unwrap();
    hold.held().await;
    client.write_all(b", after").await.unwrap();
    reads_nothing(&mut server).await;
    server.write_all(b"STOP").await.unwrap();
    reads(&mut client, b"STOP").await;

    hold.let_go();
    reads(&mut server, b"OP here, after").await;
    client.write_all(b"STOP").await.unwrap();
    reads(&mut server, b"STOP").await;
}

#[tokio::test]
async fn a_held_answer_waits_with_what_follows_it_and_requests_pass() {
    let ends = Ends::new().await;
    let (mut client, mut server) = ends.connect().await;
    let hold = ends.proxy.hold_answer(b"STOP");
    client.write_all(b"STOP").await.unwrap();
    reads(&mut server, b"STOP").await;
    server.write_all(b"ST").await.unwrap();
    reads(&mut client, b"ST").await;
    server.write_all(b"OP here").await.unwrap();
    hold.held().await;
    server.write_all(b", after").await.unwrap();
    reads_nothing(&mut client).await;
    client.write_all(b"more").await.unwrap();
    reads(&mut server, b"more").await;

    hold.let_go();
    reads(&mut client, b"OP here, after").await;
}

#[tokio::test]
async fn one_message_on_one_connection_is_held_for_one_hold() {
    let ends = Ends::new().await;
    let (mut one, mut its_server) = ends.connect().await;
    let (mut other, mut others_server) = ends.connect().await;
    let hold = ends.proxy.hold_request(b"STOP");
    one.write_all(b"STOP").await.unwrap();
    hold.held().await;
    other.write_all(b"STOP").await.unwrap();
    reads(&mut others_server, b"STOP").await;
    reads_nothing(&mut its_server).await;
}

#[tokio::test]
async fn a_held_request_arrives_after_its_client_has_gone() {
    let ends = Ends::new().await;
    let (mut client, mut server) = ends.connect().await;
    let hold = ends.proxy.hold_request(b"STOP");
    client.write_all(b"STOP").await.unwrap();
    hold.held().await;
    drop(client);
    reads_nothing(&mut server).await;
    hold.let_go();
    reads(&mut server, b"STOP").await;
    let end = timeout(SOON, server.read(&mut [0])).await;
    assert_eq!(end.expect("the server learns of it").unwrap(), 0);
}

#[tokio::test]
async fn what_is_let_go_into_a_blackhole_arrives_when_that_ends() {
    let ends = Ends::new().await;
    let (mut client, mut server) = ends.connect().await;
    let hold = ends.proxy.hold_answer(b"STOP");
    server.write_all(b"STOP").await.unwrap();
    hold.held().await;
    ends.proxy.set(Mode::Blackhole).await;
    hold.let_go();
    reads_nothing(&mut client).await;
    ends.proxy.set(Mode::Pass).await;
    reads(&mut client, b"STOP").await;
}

#[tokio::test]
async fn a_hold_that_is_dropped_holds_nothing_any_more() {
    let ends = Ends::new().await;
    let (mut client, mut server) = ends.connect().await;
    let held = ends.proxy.hold_request(b"STOP");
    let waiting = ends.proxy.hold_request(b"HALT");
    client.write_all(b"STOP").await.unwrap();
    held.held().await;
    drop((held, waiting));
    reads(&mut server, b"STOP").await;
    client.write_all(b"HALT").await.unwrap();
    reads(&mut server, b"HALT").await;
}

async fn select(backend: Backend, url: &str, value: &str) -> Result<String, sqlx::Error> {
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
async fn a_row_is_held_while_its_client_waits() {
    for (backend, server) in [
        (Backend::Mysql, mysql().await),
        (Backend::Postgres, postgres().await),
    ] {
        let (proxy, url) = Proxy::before(&server.url("")).await;
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
