//! Several deployments behind the real nginx, with the configuration of `deploy/sharded/`: nginx and the service
//! find the same shard for every SKU, a wrong route sells nothing, and no SKU sells in two deployments.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use reqwest::{Client, Method};
use rstest::rstest;
use serde_json::json;
use stocklock::stock::{Shard, Sku};
use stocklock_testkit::ports::free_port;
use stocklock_testkit::run::rng;
use tokio::task::JoinSet;

use crate::commands::assert_one_line_error;
use crate::deploy::{program, run};
use crate::events::has_started;
use crate::faults::KEY;
use crate::support::app::{TestApp, send};
use crate::support::client::client;
use crate::support::process::Process;
use crate::support::services::Backend::Sqlite;
use crate::support::services::{Nginx, TestDatabase, fresh_database};
use crate::support::topology::Topology;

mod moved;
mod routes;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/sharded/nginx.sh");
const VECTORS: &str = include_str!("../../crates/core/src/stock/shard.txt");
const X_SKU: &str = "x-sku";
const BUYERS: usize = 64;
const UNITS: usize = 40;

/// The shipped configuration for deployments of one replica each, which listens at `port`.
fn configuration(port: u16, replicas: &[String]) -> String {
    let words = [SCRIPT, &replicas.len().to_string(), "1"];
    let (success, text, stderr) = run(program("sh").args(words));
    assert!(success, "{stderr}");
    let listen = format!("listen 127.0.0.1:{port} ");
    let mut text = text.replace("listen 8080 ", &listen);
    // The file that gets nginx's output belongs to another user.
    text = text.replace("access_log /dev/stdout requests", "access_log off");
    for (shard, replica) in replicas.iter().enumerate() {
        text = text.replace(&format!("shard-{}-replica-1:8080", shard + 1), replica);
    }
    text
}

async fn nginx(port: u16, settings: &str) -> Nginx {
    let started = Nginx::start(port, settings).await;
    started.unwrap_or_else(|error| panic!("nginx: {error:#}"))
}

fn shard(text: &str) -> Shard {
    text.parse().expect("a shard")
}

/// A replica of a shard on this database. Requests need no key.
async fn replica(url: &str, shard: &str, flags: &[&str]) -> TestApp {
    stocklock::store::migrate(url).await.expect("it answers");
    let flags = [&["--auth", "none", "--shard", shard], flags].concat();
    TestApp::serving(url, 1, &flags).await
}

/// The same with events. Changes are published from now on.
async fn publishing(url: &str, shard: &str) -> TestApp {
    let app = replica(url, shard, &["--events", "on"]).await;
    has_started(&app).await;
    app
}

fn address(app: &TestApp) -> String {
    let base = app.base(0);
    let address = base.strip_prefix("http://").expect("an address");
    address.trim_end_matches('/').to_owned()
}

/// SKUs of all kinds of characters, and those of the vectors.
fn skus(count: usize) -> Vec<String> {
    let mut rng = rng();
    let letters: Vec<_> = ('a'..='z')
        .chain('A'..='Z')
        .chain('0'..='9')
        .chain("._-".chars())
        .collect();
    let mut random = || {
        let length = rng.usize(1..=64);
        let any = rng.bool();
        let mut char = || {
            if any && rng.u8(..4) == 0 {
                rng.char(..)
            } else {
                letters[rng.usize(..letters.len())]
            }
        };
        (0..length).map(|_| char()).collect::<String>()
    };
    let vectors = VECTORS.lines().filter(|line| !line.starts_with('#'));
    let vectors = vectors.filter_map(|line| line.split(' ').next());
    let mut skus: Vec<_> = vectors.map(str::to_owned).collect();
    while skus.len() < count {
        let sku = random();
        if Sku::parse(sku.as_str()).is_ok() {
            skus.push(sku);
        }
    }
    skus
}

/// The SKU in a path, with some characters encoded that need not be, and all that must.
fn encoded(sku: &str, every: usize) -> String {
    let encode = |(place, byte): (usize, u8)| match byte {
        0..0x80 if !place.is_multiple_of(every) => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    sku.bytes().enumerate().map(encode).collect()
}

/// nginx says itself which shard a request is for.
#[tokio::test]
async fn nginx_and_service_find_the_same_shard() {
    let (skus, client) = (skus(1_500), client());
    for of in [2, 3, 7, 100] {
        let port = free_port();
        let nowhere = vec!["127.0.0.1:1".to_owned(); of];
        let settings = configuration(port, &nowhere);
        let settings = settings.replace("proxy_pass http://$shard;", "return 200 $shard;");
        let _nginx = nginx(port, &settings).await;
        let url = |path: String| format!("http://127.0.0.1:{port}{path}");
        let own = shard(&format!("1/{of}"));
        let mut found = BTreeMap::new();
        for (number, sku) in skus.iter().enumerate() {
            let raw = || sku.as_bytes().to_vec();
            let path = encoded(sku, 1 + number % 5);
            let request = match number % 6 {
                0 => client.get(url(format!("/stock/{path}"))),
                1 => client.post(url(format!("/stock/{path}/adjust"))),
                2 => client
                    .get(url("/operations/1".to_owned()))
                    .header(X_SKU, raw()),
                // The header comes first.
                3 => client
                    .get(url("/stock/other?sku=a".to_owned()))
                    .header(X_SKU, raw()),
                4 => client
                    .post(url("/stock/deduct/batch".to_owned()))
                    .header(X_SKU, raw()),
                _ if sku.is_ascii() => {
                    client.post(url(format!("/stock/deduct?sku={sku}&quantity=1")))
                }
                _ => client.get(url(format!("/stock/{path}?sku=other"))),
            };
            let answer = send(request).await;
            let owner = own.owner(sku.as_bytes());
            assert_eq!(answer.text(), format!("shard-{owner}"), "{sku:?} of {of}");
            *found.entry(owner).or_insert(0) += 1;
        }
        assert_eq!(found.len(), of, "{found:?}");
        // Without a SKU, and with one that nginx cannot decode, the first shard answers, and refuses what it has not.
        for path in ["/audit", "/stock/deduct", "/stock", "/stock/deduct?sku=%61"] {
            let answer = send(client.get(url(path.to_owned()))).await;
            assert_eq!(answer.text(), "shard-1", "{path}");
        }
    }
}

#[rstest]
#[case("2")]
#[case("0/2")]
#[case("3/2")]
#[case("1/101")]
#[case("01/2")]
#[tokio::test]
async fn shard_that_cannot_be_is_refused_at_start(#[case] value: &str) {
    let ended = Process::run(&["serve"], &[("SHARD", value)]).await;
    assert_one_line_error(&ended, "SHARD");
    assert!(ended.stderr.contains("shard K of N"), "{}", ended.stderr);
}

#[tokio::test]
async fn lab_has_all_skus() {
    let ended = Process::run(&["lab"], &[("SHARD", "1/2")]).await;
    assert_one_line_error(&ended, "SHARD");
}

#[tokio::test]
async fn script_starts_two_deployments_behind_nginx() {
    let topology = Topology::up(&[
        ("ENGINE", "sharded"),
        // Not connected to, because the configured strategy does not need them.
        ("REDIS_URL", "redis://127.0.0.1:1"),
        ("ZOOKEEPER_CONNECT", "127.0.0.1:1"),
    ])
    .await;
    let client = client();
    for sku in ["ab", "a", "hot", "上海仓"] {
        let level = client.put(topology.url(&format!("/stock/{sku}")));
        let set = send(level.json(&json!({"on_hand": 1}))).await;
        assert_eq!(set.status, 201, "{set:?}");
        let sale = client
            .post(topology.url("/stock/deduct"))
            .header(X_SKU, sku.as_bytes());
        let sold = send(sale.json(&json!({ "sku": sku }))).await;
        assert_eq!(sold.ok()["remaining"], 0);
        let expected = match shard("1/2").owner(sku.as_bytes()) {
            1 => ["replica-1", "replica-2"],
            _ => ["replica-3", "replica-4"],
        };
        assert!(
            expected.contains(&sold.header("x-replica")),
            "{sku}: {sold:?}"
        );
    }
    assert!(topology.run("status").await.status.success());
}

/// Both databases have all levels, as after a copy. A third of the requests go straight to the wrong replica or to
/// any.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_sku_sells_in_two_deployments() {
    let databases: [TestDatabase; 2] = [fresh_database(Sqlite).await, fresh_database(Sqlite).await];
    let skus: Arc<Vec<_>> = Arc::new((0..8).map(|number| format!("s{number}")).collect());
    for database in &databases {
        let whole = replica(&database.url, "1/1", &[]).await;
        for sku in skus.iter() {
            whole
                .set_level(sku, UNITS.try_into().expect("a number"))
                .await;
        }
        whole.stop().await;
    }
    let first = replica(&databases[0].url, "1/2", &[]).await;
    let second = replica(&databases[1].url, "2/2", &[]).await;
    let port = free_port();
    let settings = configuration(port, &[address(&first), address(&second)]);
    let _nginx = nginx(port, &settings).await;
    let urls = [
        address(&first),
        address(&second),
        format!("127.0.0.1:{port}"),
    ];
    let urls = Arc::new(urls.map(|address| format!("http://{address}/stock/deduct")));
    let misdirected = Arc::new(AtomicUsize::new(0));
    let mut buyers = JoinSet::new();
    for _ in 0..BUYERS {
        let (urls, skus, client) = (Arc::clone(&urls), Arc::clone(&skus), client());
        buyers.spawn(buyer(client, urls, skus, Arc::clone(&misdirected), rng()));
    }
    let sold: usize = buyers.join_all().await.into_iter().sum();
    assert_eq!(sold, skus.len() * UNITS);
    assert!(misdirected.load(Relaxed) > 0);
    for (app, database) in [(first, &databases[0]), (second, &databases[1])] {
        app.stop().await;
        let own = shard(if database.url == databases[0].url {
            "1/2"
        } else {
            "2/2"
        });
        let whole = replica(&database.url, "1/1", &[]).await;
        let mut has_some = false;
        for sku in skus.iter() {
            let audit = whole.assert_consistent(sku).await;
            let is_own = own.owns(sku.as_bytes());
            has_some |= is_own;
            let units = if is_own { UNITS } else { 0 };
            assert_eq!(
                (&audit["sold"], &audit["oversold"]),
                (&json!(units), &json!(0)),
                "{sku}"
            );
        }
        assert!(has_some, "each shard has a SKU");
        whole.stop().await;
    }
}

/// Buys units of all SKUs, until each is sold out. Returns how many it got.
async fn buyer(
    client: Client,
    urls: Arc<[String; 3]>,
    skus: Arc<Vec<String>>,
    misdirected: Arc<AtomicUsize>,
    mut rng: fastrand::Rng,
) -> usize {
    let (mut open, mut sold): (Vec<_>, _) = (skus.to_vec(), 0);
    while !open.is_empty() {
        let place = rng.usize(..open.len());
        let sku = open[place].clone();
        let key = format!("{sku}-{}", rng.u64(..));
        let mut url = &urls[rng.usize(..urls.len())];
        loop {
            let request = client
                .request(Method::POST, url)
                .header(KEY, &key)
                .header(X_SKU, &sku);
            let answer = send(request.json(&json!({ "sku": sku }))).await;
            match (answer.status, &*answer.code) {
                (200, _) => sold += 1,
                (409, "insufficient-stock") => drop(open.remove(place)),
                (421, "wrong-shard") => {
                    misdirected.fetch_add(1, Relaxed);
                    assert!(!url.starts_with(&urls[2]), "{answer:?}");
                    url = &urls[2];
                    continue;
                }
                _ if answer.asks_for_retry() => continue,
                _ => panic!("{answer:?}"),
            }
            break;
        }
    }
    sold
}
