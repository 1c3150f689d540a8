//! Replicas behind nginx, started by `scripts/replicas.sh`. One replica dies under load: no order is
//! lost, executed twice, or sent to two replicas. Also: what nginx itself refuses, and how.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use reqwest::{Client, Response};
use serde_json::{Value, json};
use stocklock_testkit::eventually;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::faults::buyers::{Buyers, Keys, PLENTY};
use crate::faults::{Ledger, SOON};
use crate::support::app::send;
use crate::support::client::client;
use crate::support::topology::Topology;

const ORDERS: usize = 2_500;
const BUYERS: usize = 64;

#[tokio::test(flavor = "multi_thread")]
async fn replica_killed_under_load_loses_and_doubles_no_order() {
    let topology = Topology::up(&[]).await;
    let client = client();
    let level = client.put(topology.url("/stock/hot"));
    let created = send(level.json(&json!({ "on_hand": PLENTY }))).await;
    assert_eq!(created.status, 201, "{created:?}");

    let orders = (0..BUYERS).map(|_| client.post(topology.url("/stock/deduct")));
    let buyers = Buyers::start("hot", Keys::All, orders, |_, _| ());
    buyers.sell(ORDERS / 2).await;
    buyers.replicas_are_killed();
    topology.kill9("replica-1");
    buyers.sell(ORDERS / 2).await;
    let purchases = buyers.stop().await;
    assert!(purchases.resolved() > 0, "the kill interrupted no exchange");
    assert_no_request_went_to_two_replicas(&topology, purchases.acknowledged()).await;
    let ledger = Ledger::at(&topology.database());
    purchases.assert_exact(&ledger).await;
    assert_no_warnings_about_settings(&topology);

    // `up` starts what does not run and leaves the rest alone.
    assert_eq!(topology.run("status").await.status.code(), Some(1));
    let again = topology.run("up").await;
    assert!(again.status.success(), "{again:?}");
    assert_eq!(topology.run("status").await.status.code(), Some(0));
    let level = send(client.get(topology.url("/stock/hot"))).await;
    let left = ledger.audit("hot").await.on_hand;
    assert_eq!(level.rows("warehouses", &["on_hand"]), [json!([left])]);
}

/// The upstream of an order in nginx's log is the address of a replica, several addresses if nginx sent the order
/// on, or the name of the group if nginx took all replicas for dead.
async fn assert_no_request_went_to_two_replicas(topology: &Topology, sold: usize) {
    let upstreams = || {
        let log = topology.access_log().into_iter();
        let orders = log.filter(|line| line["method"] == "POST");
        let upstreams = orders.map(|line| line["upstream"].as_str().expect("a text").to_owned());
        upstreams.collect::<Vec<_>>()
    };
    // A line is written after the answer is sent.
    let are_logged = async || upstreams().len() >= sold;
    eventually("all orders are logged", SOON, are_logged).await;
    let upstreams = BTreeSet::from_iter(upstreams());
    let sent_on = |name: &String| name.contains(',');
    assert!(!upstreams.iter().any(sent_on), "{upstreams:?}");
    assert!(upstreams.len() >= 2, "only {upstreams:?} served");
}

/// The shipped settings of MariaDB and Redis are safe. Otherwise a replica would warn before it
/// listens.
fn assert_no_warnings_about_settings(topology: &Topology) {
    for number in [1, 2] {
        let log = topology.replica_log(number);
        let (start, _) = log.split_once("listening").expect("it listened");
        // Drivers may warn about a server that has just started; these lines are not counted.
        let warnings = start.lines().filter(|line| line.contains("WARN stocklock"));
        let warnings: Vec<_> = warnings.collect();
        // This warning is always there, and shows that warnings are found.
        let expected = "AUTH=none";
        let found = matches!(warnings[..], [one] if one.contains(expected));
        assert!(found, "{warnings:#?}");
    }
}

/// Two replicas on one SQLite file without other servers, for tests of nginx.
async fn without_servers(directory: &TempDir) -> Topology {
    let database = format!("sqlite://{}/stock.db", directory.path().display());
    Topology::up(&[
        ("DATABASE_URL", &database),
        // Not connected to, because the configured strategy does not need them.
        ("REDIS_URL", "redis://127.0.0.1:1"),
        ("ZOOKEEPER_CONNECT", "127.0.0.1:1"),
    ])
    .await
}

/// Status and code of a problem.
async fn problem(answer: Response) -> (u16, String) {
    let status = answer.status().as_u16();
    let content_type = &answer.headers()["content-type"];
    assert_eq!(content_type, "application/problem+json", "{status}");
    let id = answer.headers()["x-request-id"].clone();
    let body: Value = answer.json().await.expect("a problem is JSON");
    assert_eq!(body["status"], status);
    assert_eq!(body["request_id"].as_str(), id.to_str().ok());
    (status, body["code"].as_str().expect("a code").to_owned())
}

#[tokio::test]
async fn nginx_refuses_requests_in_the_format_of_a_replica() {
    let directory = TempDir::new().expect("a directory");
    let topology = without_servers(&directory).await;
    let client = Client::new();
    let send = async |request: reqwest::RequestBuilder| {
        let answer = request.send().await;
        answer.expect("an answer")
    };

    let metrics = send(client.get(topology.url("/metrics"))).await;
    let expected = (404, "no-such-route".to_owned());
    assert_eq!(problem(metrics).await, expected);

    let deduct = topology.url("/stock/deduct?sku=none");
    let large = send(client.post(&deduct).body("x".repeat(65 * 1024))).await;
    let expected = (413, "body-too-large".to_owned());
    assert_eq!(problem(large).await, expected);

    // A thousand levels are more than other bodies may have.
    let level = |number| json!({"sku": format!("{number:060}")});
    let levels: Vec<_> = (0..1_000).map(level).collect();
    let query = client.post(topology.url("/levels/query"));
    let levels = send(query.json(&json!({ "levels": levels }))).await;
    assert_eq!(levels.status(), 200);

    // A client's request id is kept, unless it could break a log line or a JSON text.
    for (given, kept) in [("my-id:1", true), (r#"a","b":"c"#, false)] {
        let answer = send(client.post(&deduct).header("X-Request-Id", given)).await;
        let id = &answer.headers()["x-request-id"];
        assert_eq!(id == given, kept, "{id:?}");
    }

    // nginx lets no header through that a replica would refuse.
    for (lines, status) in [(2, 200), (3, 400)] {
        let request = client.get(topology.url("/healthz"));
        let add = |request: reqwest::RequestBuilder, line| {
            request.header(format!("X-{line}"), "x".repeat(6_800))
        };
        let answer = send((0..lines).fold(request, add)).await;
        assert_eq!(answer.status(), status);
    }

    // A request of HTTP/1.0 needs no Host.
    let mut old = TcpStream::connect(topology.address()).await;
    let old = old.as_mut().expect("nginx listens");
    let request = b"GET /healthz HTTP/1.0\r\n\r\n";
    old.write_all(request).await.expect("nginx reads");
    let mut answer = vec![0; 12];
    old.read_exact(&mut answer).await.expect("an answer");
    assert_eq!(String::from_utf8_lossy(&answer), "HTTP/1.1 200");

    for name in ["replica-1", "replica-2"] {
        topology.kill9(name);
    }
    let unknown = send(client.post(&deduct)).await;
    let expected = (502, "outcome-unknown".to_owned());
    assert_eq!(problem(unknown).await, expected);
}

#[tokio::test]
async fn nginx_limits_the_connections_of_one_client() {
    let directory = TempDir::new().expect("a directory");
    let topology = without_servers(&directory).await;
    let nginx: SocketAddr = topology.address().parse().expect("an address");

    // Not 127.0.0.1, which has no limit, because the load of the first test comes from there.
    let client = Ipv4Addr::new(127, 0, 0, 2);
    let mut connections = JoinSet::new();
    for _ in 0..51 {
        let mut stream = send_incomplete(client, nginx).await;
        connections.spawn(async move {
            let mut answer = vec![0; 12];
            stream.read_exact(&mut answer).await.map(|_| answer)
        });
    }
    // nginx waits longer than this for the bodies of fifty requests, and refuses one.
    let first = timeout(Duration::from_secs(8), connections.join_next()).await;
    let first = first.expect("one is refused at once");
    let answer = first
        .expect("51 connections")
        .expect("no panic")
        .expect("an answer");
    assert_eq!(String::from_utf8_lossy(&answer), "HTTP/1.1 429");
    assert_eq!(connections.len(), 50);
    let second = connections.try_join_next();
    assert!(second.is_none(), "a second one is answered");
    // Open requests would delay the stop of the replicas.
    connections.shutdown().await;
}

/// A connection from a local address, with a request whose body is never sent.
async fn send_incomplete(from: Ipv4Addr, nginx: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind((from, 0).into()).expect("a local address");
    let mut stream = socket.connect(nginx).await.expect("nginx listens");
    let head = "POST /stock/deduct HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n";
    stream
        .write_all(head.as_bytes())
        .await
        .expect("nginx reads");
    stream
}
