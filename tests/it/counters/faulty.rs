//! Redis and replicas fail while 64 buyers, half of them with keys, sell a SKU out through two replicas.
//!
//! Each request has its own reference, by which its sale is found in the ledger. A buyer with a key repeats
//! the request until its outcome is known. A buyer without a key sends it once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use reqwest::{Client, Method};
use rstest::rstest;
use serde_json::json;
use stocklock::stock::{Movement, MovementFilter, Sku};
use stocklock::store::Store;
use stocklock_testkit::run::rng;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::{SAFE, full_size, open};
use crate::faults::{KEY, Ledger, SOON, send, try_send, until};
use crate::support::process::Process;
use crate::support::redis::{Pair, command};
use crate::support::services::Backend::{self, Mysql, Postgres};
use crate::support::services::{PrivateServer, fresh_database};

const BUYERS: usize = 64;
/// What a round sells. A fault begins at the latest after half of it.
const STOCK: i64 = 600;
/// How many of the last units must be sold in time. None of them may stay hidden.
const LAST: i64 = 100;
/// More than a round can sell while the sentinels replace a master, which takes seconds.
const PLENTY: i64 = 1_000_000;
/// How long Redis is paused.
const PAUSE: Duration = Duration::from_secs(2);
/// How long sales may take to go on, and to end.
const IN_TIME: Duration = Duration::from_secs(2);
/// How long a buyer waits for the answer to one key.
const PATIENCE: Duration = SOON.saturating_mul(2);
/// After this time no attempt of a killed replica can sell: the wait limit of the service and a margin.
const EXPIRED: Duration = Duration::from_secs(3);

/// What fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Flushed,
    Killed,
    Paused,
    ReplicaKilled,
    FailedOver,
}

/// What happens to a Redis without a replica, or beside it.
const SINGLE: [Fault; 4] = [
    Fault::Flushed,
    Fault::Killed,
    Fault::Paused,
    Fault::ReplicaKilled,
];

/// The Redis of the counters.
enum Servers {
    Single(PrivateServer),
    Pair(Pair),
}

/// How a request ended.
enum End {
    /// The operation is acknowledged.
    Sold(String),
    /// Nothing was sold.
    Refused,
    Unknown,
}

/// What the buyers of one SKU share.
struct Market {
    sku: String,
    urls: [String; 2],
    client: Client,
    sold: AtomicI64,
    stop: AtomicBool,
}

impl Market {
    /// Buys until it is stopped. Returns each request by its reference.
    async fn keep_buying(self: Arc<Self>, buyer: usize) -> Vec<(String, End)> {
        let mut bought = Vec::new();
        while !self.stop.load(Ordering::SeqCst) {
            let reference = format!("{}-{buyer}-{}", self.sku, bought.len());
            let end = self.buy(buyer, &reference).await;
            if let End::Sold(_) = end {
                self.sold.fetch_add(1, Ordering::SeqCst);
            } else {
                sleep(Duration::from_millis(5)).await;
            }
            bought.push((reference, end));
        }
        bought
    }

    async fn buy(&self, buyer: usize, reference: &str) -> End {
        // Both replicas get requests of either kind.
        let has_key = (buyer / 2).is_multiple_of(2);
        let (mut at, mut cut, started) = (buyer, None::<Instant>, Instant::now());
        loop {
            let order = json!({"sku": self.sku, "reference": reference});
            let mut order = self.client.post(&self.urls[at % 2]).json(&order);
            if has_key {
                order = order.header(KEY, reference);
            }
            let answer = try_send(order).await;
            match &answer {
                Ok(sold) if sold.status == 200 => return End::Sold(sold.id.clone()),
                Ok(short) if short.code == "insufficient-stock" => {
                    // The refusal is about this request. An earlier one may still sell until it expires.
                    if cut.is_none_or(|cut| cut.elapsed() > EXPIRED) {
                        return End::Refused;
                    }
                }
                Ok(other) => {
                    assert!(other.asks_for_retry(), "{other:?}");
                    match other.status {
                        _ if has_key => {}
                        504 => return End::Unknown,
                        _ => return End::Refused,
                    }
                }
                Err(error) => {
                    at += 1;
                    let was_sent = !error.is_connect();
                    match (has_key, was_sent) {
                        (false, true) => return End::Unknown,
                        (false, false) => return End::Refused,
                        (true, true) => cut = Some(Instant::now()),
                        (true, false) => {}
                    }
                }
            }
            assert!(started.elapsed() < PATIENCE, "still {answer:?}");
            sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Two replicas, their Redis and their database.
struct Shop {
    servers: Servers,
    replicas: [Process; 2],
    ledger: Ledger,
    movements: Arc<dyn Store>,
    client: Client,
}

impl Shop {
    async fn open(database: &str, servers: Servers) -> Self {
        let url = match &servers {
            Servers::Single(server) => server.url().to_owned(),
            Servers::Pair(pair) => pair.url(),
        };
        let variables = [("REDIS_URL", &*url)];
        // The client keeps its connections open, and the test repeats requests itself.
        let client = Client::builder().no_proxy().retry(reqwest::retry::never());
        let first = Process::lab(database, &variables).await;
        Self {
            servers,
            replicas: [first, Process::lab(database, &variables).await],
            ledger: Ledger::at(database),
            movements: open(database),
            client: client.build().expect("a client without TLS can be built"),
        }
    }

    /// Injects one fault. Returns when Redis was back, or the other replica was alone.
    async fn fail(&mut self, fault: Fault) -> Instant {
        match (&self.servers, fault) {
            (_, Fault::ReplicaKilled) => self.replicas[rng().usize(0..2)].kill9(),
            (Servers::Single(server), Fault::Flushed) => command(server.url(), &["FLUSHALL"]).await,
            (Servers::Single(server), Fault::Killed) => {
                server.kill9();
                server.restart().await;
            }
            (Servers::Single(server), Fault::Paused) => {
                server.stop().await;
                sleep(PAUSE).await;
                server.resume();
            }
            (Servers::Pair(pair), Fault::FailedOver) => {
                let old = pair.master().await;
                pair.let_the_replica_lag().await;
                let is_replaced = async || {
                    until("the sentinel has another master", async || {
                        pair.master().await.port() != old.port()
                    })
                    .await;
                    Instant::now()
                };
                let kill = rng().bool();
                let (back, ()) = tokio::join!(is_replaced(), pair.fail_over(kill));
                // If it was not killed, it still refuses replicas.
                command::<()>(old.url(), &["ACL", "SETUSER", "default", "+psync", "+sync"]).await;
                return back;
            }
            (_, fault) => unreachable!("{fault:?} does not happen to this Redis"),
        }
        Instant::now()
    }

    /// Sells a SKU out while the fault happens. Returns how many units were left after it, and the
    /// longest time until a sale.
    async fn round(&mut self, sku: &str, strategy: &str, fault: Fault) -> (i64, Duration) {
        let is_long = fault == Fault::FailedOver;
        let on_hand = if is_long { PLENTY } else { STOCK };
        self.replicas[0].set_level(sku, on_hand).await;
        let path = format!("/stock/deduct?strategy={strategy}");
        let market = Arc::new(Market {
            sku: sku.to_owned(),
            urls: [self.replicas[0].url(&path), self.replicas[1].url(&path)],
            client: self.client.clone(),
            sold: AtomicI64::default(),
            stop: AtomicBool::default(),
        });
        let sold = || market.sold.load(Ordering::SeqCst);
        let buyer = |number| Arc::clone(&market).keep_buying(number);
        let buyers: JoinSet<_> = (0..BUYERS).map(buyer).collect();
        let first = rng().i64(1..=STOCK / 2);
        until("it sells", async || sold() >= first).await;

        let back = self.fail(fault).await;
        let (before, left) = (sold(), self.left(sku).await);
        // The last units may belong to requests whose outcome is unknown.
        let goes_on = async || sold() > before || self.left(sku).await == 0;
        until("it sells again", goes_on).await;
        let again = assert_in_time(back, fault, "the first sale");
        if is_long {
            self.leave(LAST, sku).await;
        }
        until("few are left", async || self.left(sku).await <= LAST).await;
        let few = Instant::now();
        until("it is sold out", async || self.left(sku).await == 0).await;
        let last = assert_in_time(few, fault, "the last sale");
        market.stop.store(true, Ordering::SeqCst);
        let bought = buyers.join_all().await.into_iter().flatten();
        self.check(sku, bought.collect()).await;
        for replica in &mut self.replicas {
            if !replica.is_running() {
                replica.restart().await;
            }
        }
        (left, again.max(last))
    }

    async fn left(&self, sku: &str) -> i64 {
        self.ledger.audit(sku).await.on_hand
    }

    /// Takes units away until about so many are left.
    async fn leave(&self, units: i64, sku: &str) {
        let path = format!("/stock/{sku}/adjust");
        until("the stock is low", async || {
            let delta = units - self.left(sku).await;
            let adjust = self.replicas[1].request(Method::POST, &path);
            let adjust = adjust.json(&json!({"delta": delta, "reason": "count"}));
            send(adjust).await.status == 200
        })
        .await;
    }

    /// Compares the answers with the ledger.
    async fn check(&self, sku: &str, bought: Vec<(String, End)>) {
        let audit = self.ledger.assert_consistent(sku).await;
        assert_eq!(audit.on_hand, 0, "{audit:?}");
        let mut recorded: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for sale in self.sales(sku).await {
            let reference = sale.remarks.reference.expect("each order has one").into();
            let operations = recorded.entry(reference).or_default();
            operations.push(sale.operation.to_string());
        }
        let mut acknowledged = BTreeSet::new();
        for (reference, end) in bought {
            let found = recorded.remove(&reference).unwrap_or_default();
            match end {
                End::Sold(operation) => {
                    assert_eq!(found, [operation.as_str()], "{reference} is acknowledged");
                    assert!(
                        acknowledged.insert(operation),
                        "{reference} is not the only one"
                    );
                }
                End::Refused => assert!(found.is_empty(), "{reference} was refused: {found:?}"),
                End::Unknown => assert!(found.len() <= 1, "{reference}: {found:?}"),
            }
        }
        assert!(recorded.is_empty(), "not ordered: {recorded:?}");
    }

    async fn sales(&self, sku: &str) -> Vec<Movement> {
        let filter = MovementFilter {
            sku: Sku::parse(sku).expect("the name of a SKU"),
            warehouse: None,
            kind: None,
            reference: None,
            from: None,
            limit: 1_000_000,
        };
        let page = self.movements.movements(&filter).await;
        let movements = page.expect("the database answers").movements.into_iter();
        movements.filter(|it| it.strategy.is_some()).collect()
    }
}

/// At full size, asserts that something took no longer than it may. Returns how long it took.
fn assert_in_time(begin: Instant, fault: Fault, what: &str) -> Duration {
    let took = begin.elapsed();
    assert!(
        full_size().is_none() || took <= IN_TIME,
        "{fault:?}, {what}: {took:?}"
    );
    took
}

/// Goal: nothing is oversold, each answer is true, and a counter hides units for a moment only.
///
/// Method: rounds, each with its own SKU and one fault. `make test` alternates between the strategies.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_of_a_counter_makes_no_answer_wrong(
    #[values(Mysql, Postgres)] backend: Backend,
    #[values(false, true)] has_sentinels: bool,
) {
    let database = fresh_database(backend).await;
    let (servers, faults) = if has_sentinels {
        (Servers::Pair(Pair::start().await), &[Fault::FailedOver][..])
    } else {
        (
            Servers::Single(PrivateServer::redis(&[]).await),
            &SINGLE[..],
        )
    };
    let mut shop = Shop::open(&database.url, servers).await;
    let (rounds, strategies) = (
        full_size().unwrap_or(1),
        full_size().map_or(1, |_| SAFE.len()),
    );
    for (number, fault) in faults.iter().enumerate() {
        let (mut left, mut slowest) = (0, Duration::ZERO);
        for round in 0..rounds * strategies {
            let strategy = SAFE[(number + round + usize::from(backend == Mysql)) % SAFE.len()];
            let sku = format!("{fault:?}-{round}");
            let (units, took) = shop.round(&sku, strategy, *fault).await;
            (left, slowest) = (left + units, slowest.max(took));
        }
        println!(
            "figure: {backend:?}, {fault:?}: {} rounds are exact; the first sale after the fault and \
             the last {LAST} took {slowest:.1?} at most",
            rounds * strategies
        );
        assert!(left > 0, "{fault:?}: each fault came after the last sale");
    }
}
