//! Redis and replicas fail while 64 buyers, half of them with keys, sell a SKU out through two replicas.

use std::time::Duration;

use reqwest::{Client, Method};
use rstest::rstest;
use serde_json::json;
use stocklock_testkit::run::rng;
use tokio::time::{Instant, sleep};

use super::{SAFE, full_size};
use crate::faults::buyers::{Buyers, Keys};
use crate::faults::{Ledger, send, until};
use crate::support::client::client;
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
const PAUSE: Duration = Duration::from_secs(2);
/// How long sales may take to go on, and to end.
const IN_TIME: Duration = Duration::from_secs(2);

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

enum Servers {
    Single(PrivateServer),
    Pair(Pair),
}

struct Shop {
    servers: Servers,
    replicas: [Process; 2],
    ledger: Ledger,
    client: Client,
}

impl Shop {
    async fn open(database: &str, servers: Servers) -> Self {
        let url = match &servers {
            Servers::Single(server) => server.url().to_owned(),
            Servers::Pair(pair) => pair.url(),
        };
        let variables = [("REDIS_URL", &*url)];
        let first = Process::lab(database, &variables).await;
        Self {
            servers,
            replicas: [first, Process::lab(database, &variables).await],
            ledger: Ledger::at(database),
            client: client(),
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
        let orders = (0..BUYERS).map(|number| {
            let url = self.replicas[number % 2].url(&path);
            self.client.post(url)
        });
        let buyers = Buyers::start(sku, Keys::HalfScarce, orders, |_, _| ());
        buyers.replicas_are_killed();
        let first = usize::try_from(rng().i64(1..=STOCK / 2));
        buyers.sell(first.expect("a few sales")).await;

        let back = self.fail(fault).await;
        let (before, left) = (buyers.sales(), self.left(sku).await);
        // The last units may belong to requests whose outcome is unknown.
        let goes_on = async || buyers.sales() > before || self.left(sku).await == 0;
        until("it sells again", goes_on).await;
        let again = assert_in_time(back, fault, "the first sale");
        if is_long {
            self.leave(LAST, sku).await;
        }
        until("few are left", async || self.left(sku).await <= LAST).await;
        let few = Instant::now();
        until("it is sold out", async || self.left(sku).await == 0).await;
        let last = assert_in_time(few, fault, "the last sale");
        buyers.stop().await.assert_exact(&self.ledger).await;
        assert_eq!(self.left(sku).await, 0, "{sku}");
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
}

/// At full size, asserts that something took no longer than it may. Returns how long it took.
fn assert_in_time(begin: Instant, fault: Fault, what: &str) -> Duration {
    let took = begin.elapsed();
    let in_time = full_size().is_none() || took <= IN_TIME;
    assert!(in_time, "{fault:?}, {what}: {took:?}");
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
