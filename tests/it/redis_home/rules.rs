//! The rules of stock in Redis, while replicas, Redis and the database are paused, killed and full in
//! random order: a sale that was answered 200 is in the ledger once; one that was refused is not; one
//! whose answer was cut, or 504, is there at most once.
//!
//! `TEST_FAULT_SECONDS` is how long faults are injected. Each round sells new SKUs, so that every purchase
//! without a key has a quantity that its SKU has not seen before.

use std::time::Duration;

use futures_util::future::join_all;
use reqwest::{Client, Method};
use serde_json::json;
use stocklock_testkit::run::{rng, variable};
use tokio::time::{Instant, sleep};

use super::{Replica as _, applied_audit_after_outage, command};
use crate::faults::buyers::{Buyers, Keys, PLENTY};
use crate::faults::{Ledger, copy, send, until};
use crate::support::process::Process;
use crate::support::services::{Backend, PrivateServer};

const DEFAULT_SECONDS: u64 = 60;
const STRATEGIES: [&str; 3] = ["redis-lua", "redis-watch", "redis-lock"];
/// Concurrent buyers per strategy. Half of them send no key.
const BUYERS: usize = 8;
/// Sales of each strategy before and after a fault.
const SALES: usize = 20;
/// Faults on the same SKUs.
const FAULTS: usize = 4;
/// The longest pause of a process, in milliseconds. Leases and connections time out in between.
const PAUSE: u64 = 4_000;

struct Shop {
    redis: PrivateServer,
    database: PrivateServer,
    replicas: [Process; 2],
    client: Client,
}

impl Shop {
    async fn open() -> Self {
        // Sales that Redis acknowledges survive its death.
        let redis = PrivateServer::redis(&["--appendonly", "yes", "--appendfsync", "always"]).await;
        let database = PrivateServer::start(Backend::Postgres).await;
        let variables = [("REDIS_URL", redis.url())];
        let first = Process::lab(database.url(), &variables).await;
        // The client keeps its connections open, and the test repeats requests itself.
        let client = Client::builder().no_proxy().retry(reqwest::retry::never());
        Self {
            replicas: [first, Process::lab(database.url(), &variables).await],
            client: client.build().expect("a client without TLS can be built"),
            redis,
            database,
        }
    }

    /// Buyers of a new SKU of each strategy, whose names end with `round`.
    async fn sell(&self, round: usize) -> Vec<(String, Buyers)> {
        let mut all = Vec::new();
        for strategy in STRATEGIES {
            let sku = format!("{strategy}-{round}");
            self.create(&sku).await;
            let path = format!("/stock/deduct?strategy={strategy}");
            let orders = (0..BUYERS).map(|buyer| {
                let replica = &self.replicas[buyer % 2];
                self.client.request(Method::POST, replica.url(&path))
            });
            let buyers = Buyers::start(&sku, Keys::Half, orders, |_, _| ());
            buyers.replicas_are_killed();
            all.push((sku, buyers));
        }
        all
    }

    /// Creates a SKU. A fault that has just ended may still delay this.
    async fn create(&self, sku: &str) {
        let put = self.replicas[0].call(Method::PUT, &format!("/stock/{sku}"));
        let put = put.json(&json!({"on_hand": PLENTY, "home": "redis"}));
        until("the SKU is created", async || {
            matches!(send(copy(&put)).await.status, 200 | 201)
        })
        .await;
    }

    /// Injects one fault, and ends it.
    async fn fail(&mut self) -> &'static str {
        let fault = rng().usize(0..6);
        let victim = rng().usize(0..2);
        let pause = Duration::from_millis(rng().u64(1..=PAUSE));
        match fault {
            0 => {
                self.replicas[victim].stop().await;
                sleep(pause).await;
                self.replicas[victim].resume();
                "replica paused"
            }
            1 => {
                self.replicas[victim].kill9();
                sleep(pause).await;
                self.replicas[victim].restart().await;
                "replica killed"
            }
            2 => {
                self.redis.stop().await;
                sleep(pause).await;
                self.redis.resume();
                "Redis paused"
            }
            3 => {
                self.redis.kill9();
                sleep(pause).await;
                self.redis.restart().await;
                "Redis killed"
            }
            4 => {
                self.database.kill9();
                sleep(pause).await;
                self.database.restart().await;
                "database killed"
            }
            _ => {
                self.limit_memory("1").await;
                sleep(pause).await;
                self.limit_memory("0").await;
                "Redis out of memory"
            }
        }
    }

    async fn limit_memory(&self, bytes: &str) {
        command::<()>(self.redis.url(), &["CONFIG", "SET", "maxmemory", bytes]).await;
    }
}

async fn sell_more(all: &[(String, Buyers)]) {
    join_all(all.iter().map(|(_, buyers)| buyers.sell(SALES))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_answer_is_true_whatever_fails() {
    let seconds = variable("TEST_FAULT_SECONDS");
    let seconds = seconds.map_or(DEFAULT_SECONDS, |text| text.parse().expect("a number"));
    let mut shop = Shop::open().await;
    let ledger = Ledger::at(shop.database.url());
    let (begin, mut round, mut faults, mut sales) = (Instant::now(), 0, Vec::new(), 0);
    while begin.elapsed() < Duration::from_secs(seconds) {
        let all = shop.sell(round).await;
        for _ in 0..FAULTS {
            sell_more(&all).await;
            faults.push(shop.fail().await);
        }
        sell_more(&all).await;
        for (sku, buyers) in all {
            let purchases = buyers.stop().await;
            sales += purchases.acknowledged.len();
            applied_audit_after_outage(&shop.replicas[0], &sku).await;
            purchases.assert_exact(&ledger).await;
        }
        round += 1;
    }
    let count = |kind| faults.iter().filter(|fault| **fault == kind).count();
    let mut kinds: Vec<_> = faults.clone();
    kinds.sort_unstable();
    kinds.dedup();
    let kinds: Vec<_> = kinds
        .into_iter()
        .map(|kind| format!("{kind} {}", count(kind)))
        .collect();
    println!(
        "figure: {sales} sales of {round} rounds are exact: {}",
        kinds.join(", ")
    );
}
