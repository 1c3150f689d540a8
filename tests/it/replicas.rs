//! Replicas behind nginx, started by `scripts/replicas.sh`: one dies under load, and no order is
//! lost, executed twice, or sent to two replicas; and what nginx itself refuses, and how.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use reqwest::{Client, Response};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::support::topology::Topology;

const ORDERS: usize = 5_000;
const BUYERS: usize = 64;
const STOCK: i64 = 6_000;
/// How long a buyer repeats an order; nginx tries a dead replica every two seconds at most.
const PATIENCE: Duration = Duration::from_mins(1);

/// What the buyers were told.
#[derive(Debug, Default)]
struct Outcome {
    /// The operations of the orders that were sold.
    sold: BTreeSet<String>,
    /// How often an exchange was cut, or answered 502, 503 or 504, and repeated.
    repeated: BTreeMap<String, usize>,
}

/// Places one order, under one key until it is answered; returns its operation, and what the
/// exchanges before the answer came to.
async fn order(client: &Client, url: &str, key: &str) -> (String, Vec<String>) {
    let begin = Instant::now();
    let mut before = Vec::new();
    loop {
        let request = client.post(url).header("Idempotency-Key", key);
        let outcome = match request.json(&json!({"sku": "hot"})).send().await {
            Err(_) => "cut".to_owned(),
            Ok(answer) if answer.status() == 200 => match answer.json::<Value>().await {
                Ok(sale) => return (sale["id"].as_str().expect("an id").to_owned(), before),
                Err(_) => "cut".to_owned(),
            },
            Ok(answer) => refusal(answer).await,
        };
        before.push(outcome);
        assert!(begin.elapsed() < PATIENCE, "not answered: {before:?}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// The status of an answer after which the same key is to be sent again.
async fn refusal(answer: Response) -> String {
    let status = answer.status().as_u16();
    let body = answer.text().await.unwrap_or_default();
    let in_flight = status == 409 && body.contains("request-in-flight");
    assert!(
        in_flight || [502, 503, 504].contains(&status),
        "{status} {body}"
    );
    status.to_string()
}

/// All orders, each by one of the buyers; `half` is told when half of them are answered.
async fn sell(url: String, half: watch::Sender<bool>) -> Outcome {
    let client = Client::builder().no_proxy().retry(reqwest::retry::never());
    let client = client.build().expect("a client without TLS can be built");
    let (next, answered) = (Arc::new(AtomicUsize::new(0)), AtomicUsize::new(0));
    let shared = Arc::new((half, answered));
    let mut buyers = JoinSet::new();
    for _ in 0..BUYERS {
        let (client, url) = (client.clone(), url.clone());
        let (next, shared) = (Arc::clone(&next), Arc::clone(&shared));
        buyers.spawn(async move {
            let mut answers = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= ORDERS {
                    return answers;
                }
                answers.push(order(&client, &url, &format!("order-{number}")).await);
                if shared.1.fetch_add(1, Ordering::Relaxed) + 1 == ORDERS / 2 {
                    shared.0.send_replace(true);
                }
            }
        });
    }
    let mut outcome = Outcome::default();
    for (operation, before) in buyers.join_all().await.into_iter().flatten() {
        outcome.sold.insert(operation);
        for exchange in before {
            *outcome.repeated.entry(exchange).or_default() += 1;
        }
    }
    outcome
}

async fn get(topology: &Topology, path: &str) -> Value {
    // nginx may still have to find out that a replica is dead.
    let begin = Instant::now();
    loop {
        let answer = reqwest::get(topology.url(path)).await.expect("an answer");
        if answer.status() == 200 {
            return answer.json().await.expect("JSON");
        }
        assert!(begin.elapsed() < PATIENCE, "{path}: {}", answer.status());
        sleep(Duration::from_millis(20)).await;
    }
}

/// The operations of all sales in the ledger, as often as they stand there.
async fn ledger(topology: &Topology) -> Vec<String> {
    let mut sales = Vec::new();
    let mut page = "/stock/hot/movements?kind=deducted".to_owned();
    loop {
        let body = get(topology, &page).await;
        let movements = body["movements"].as_array().expect("movements");
        sales.extend(movements.iter().map(|movement| {
            assert_eq!(movement["delta"], -1);
            movement["id"].as_str().expect("an id").to_owned()
        }));
        match body["next_cursor"].as_str() {
            Some(cursor) => page = format!("/stock/hot/movements?kind=deducted&cursor={cursor}"),
            None => return sales,
        }
    }
}

async fn set_level(topology: &Topology) {
    let request = Client::new().put(topology.url("/stock/hot"));
    let answer = request.json(&json!({ "on_hand": STOCK })).send().await;
    assert_eq!(answer.expect("an answer").status(), 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_dies_under_load_loses_no_order_and_doubles_none() {
    let topology = Topology::up(&[]).await;
    set_level(&topology).await;

    let (half, mut is_half) = watch::channel(false);
    let sale = tokio::spawn(sell(topology.url("/stock/deduct"), half));
    is_half.wait_for(|half| *half).await.expect("half is sold");
    topology.kill9("replica-1");
    let outcome = sale.await.expect("every order is answered");

    let exchanges: usize = outcome.repeated.values().sum();
    no_request_went_to_two_replicas(&topology, exchanges).await;
    assert!(exchanges > 0, "the death of a replica hit nobody");
    // Each order is one sale, and the ledger has those and no others.
    assert_eq!(outcome.sold.len(), ORDERS);
    let ledger = ledger(&topology).await;
    assert_eq!(ledger.len(), ORDERS);
    assert_eq!(ledger.into_iter().collect::<BTreeSet<_>>(), outcome.sold);
    let audit = get(&topology, "/stock/hot/audit").await["warehouses"][0].clone();
    assert_eq!(audit["sold"], ORDERS);
    assert_eq!(audit["on_hand"], STOCK - 5_000);
    assert_eq!(
        (&audit["drift"], &audit["oversold"], &audit["consistent"]),
        (&json!(0), &json!(0), &json!(true))
    );
    no_replica_warned_of_settings(&topology);

    // Up again: what runs is left alone, what does not is started.
    assert_eq!(topology.run("status").await.status.code(), Some(1));
    let again = topology.run("up").await;
    assert!(again.status.success(), "{again:?}");
    assert_eq!(topology.run("status").await.status.code(), Some(0));
    assert_eq!(
        get(&topology, "/stock/hot").await["warehouses"][0]["on_hand"],
        STOCK - 5_000
    );
}

/// Where nginx sent the orders: a replica's address; several with commas in between if it sent one
/// on; the name of the group where it thought no replica alive.
async fn upstreams(topology: &Topology, exchanges: usize) -> Vec<String> {
    let begin = Instant::now();
    loop {
        let log = topology.access_log();
        let orders = log.iter().filter(|line| line["method"] == "POST");
        let upstreams = orders.map(|line| line["upstream"].as_str().expect("a text").to_owned());
        let upstreams: Vec<_> = upstreams.collect();
        // A line is written after the answer is sent.
        if upstreams.len() >= exchanges || begin.elapsed() > PATIENCE {
            assert_eq!(upstreams.len(), exchanges);
            return upstreams;
        }
        sleep(Duration::from_millis(20)).await;
    }
}

async fn no_request_went_to_two_replicas(topology: &Topology, repeated: usize) {
    let upstreams = upstreams(topology, ORDERS + repeated).await;
    let several = upstreams.iter().filter(|name| name.contains(','));
    let several: Vec<_> = several.collect();
    let first = several.first();
    assert!(first.is_none(), "{} requests: {first:?}", several.len());
    let replicas: BTreeSet<_> = upstreams.into_iter().collect();
    assert!(replicas.len() >= 2, "only {replicas:?} served");
}

/// The shipped settings of MariaDB and Redis are those under which the promises hold: a replica
/// says otherwise before it listens.
fn no_replica_warned_of_settings(topology: &Topology) {
    for number in [1, 2] {
        let log = topology.replica_log(number);
        let (start, _) = log.split_once("listening").expect("it listened");
        // Not what a driver says of a server that is only just there.
        let warnings = start.lines().filter(|line| line.contains("WARN stocklock"));
        let warnings: Vec<_> = warnings.collect();
        // This one shows how a warning looks.
        assert!(
            matches!(warnings[..], [keys] if keys.contains("there are no API keys yet")),
            "{warnings:#?}"
        );
    }
}

/// Two replicas on one SQLite file and nothing else, for what nginx itself answers.
async fn without_servers(directory: &TempDir) -> Topology {
    let database = format!("sqlite://{}/stock.db", directory.path().display());
    Topology::up(&[
        ("DATABASE_URL", &database),
        // Not connected to: no strategy in use needs them.
        ("REDIS_URL", "redis://127.0.0.1:1"),
        ("ZOOKEEPER_CONNECT", "127.0.0.1:1"),
    ])
    .await
}

async fn problem(answer: Response) -> (u16, String) {
    let status = answer.status().as_u16();
    assert_eq!(
        answer.headers()["content-type"],
        "application/problem+json",
        "{status}"
    );
    let id = answer.headers()["x-request-id"].clone();
    let body: Value = answer.json().await.expect("a problem is JSON");
    assert_eq!(body["status"], status);
    assert_eq!(body["request_id"].as_str(), id.to_str().ok());
    (status, body["code"].as_str().expect("a code").to_owned())
}

#[tokio::test]
async fn nginx_refuses_as_a_replica_does() {
    let directory = TempDir::new().expect("a directory");
    let topology = without_servers(&directory).await;
    let client = Client::new();

    let metrics = client.get(topology.url("/metrics")).send().await;
    let metrics = problem(metrics.expect("an answer")).await;
    assert_eq!(metrics, (404, "no-such-route".to_owned()));

    let large = client
        .post(topology.url("/stock/deduct"))
        .body("x".repeat(17 * 1024));
    let large = problem(large.send().await.expect("an answer")).await;
    assert_eq!(large, (413, "body-too-large".to_owned()));

    // The caller's id goes through; one that could break a log or a JSON text does not.
    for (given, kept) in [("my-id:1", true), (r#"a","b":"c"#, false)] {
        let request = client.post(topology.url("/stock/deduct?sku=none"));
        let answer = request.header("X-Request-Id", given).send().await;
        let id = answer.expect("an answer").headers()["x-request-id"].clone();
        assert_eq!(id == given, kept, "{id:?}");
    }

    for name in ["replica-1", "replica-2"] {
        topology.kill9(name);
    }
    let request = client.post(topology.url("/stock/deduct?sku=none"));
    let gone = problem(request.send().await.expect("an answer")).await;
    assert_eq!(gone, (502, "outcome-unknown".to_owned()));
}

#[tokio::test]
async fn one_client_cannot_take_all_connections() {
    let directory = TempDir::new().expect("a directory");
    let topology = without_servers(&directory).await;
    let nginx: SocketAddr = topology.address().parse().expect("an address");

    // Not 127.0.0.1, which has no limit: the load of the first test comes from there.
    let client = Ipv4Addr::new(127, 0, 0, 2);
    let mut under_way = JoinSet::new();
    for _ in 0..51 {
        let mut stream = unfinished(client, nginx).await;
        under_way.spawn(async move {
            let mut answer = vec![0; 12];
            stream.read_exact(&mut answer).await.map(|_| answer)
        });
    }
    // Fifty wait for their bodies, longer than this; one does not.
    let first = timeout(Duration::from_secs(8), under_way.join_next()).await;
    let first = first
        .expect("one is refused at once")
        .expect("51 are there");
    let answer = first.expect("no panic").expect("an answer");
    assert_eq!(String::from_utf8_lossy(&answer), "HTTP/1.1 429");
    assert_eq!(under_way.len(), 50);
    assert!(
        under_way.try_join_next().is_none(),
        "a second one is answered"
    );
}

/// A connection from a local address, with a request on it whose body does not come.
async fn unfinished(from: Ipv4Addr, nginx: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind((from, 0).into()).expect("an address of ours");
    let mut stream = socket.connect(nginx).await.expect("nginx listens");
    let head = "POST /stock/deduct HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n";
    stream.write_all(head.as_bytes()).await.expect("it reads");
    stream
}
