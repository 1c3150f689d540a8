//! The rules of stock in Redis, while replicas, Redis and the database are paused, killed, full, replaced
//! and emptied in random order: a sale that was answered 200 is in the ledger once; one that was refused
//! is not; one whose answer was cut, or 504, is there at most once. `FLUSHALL` loses the sales that the
//! journal still has, and no others.
//!
//! `TEST_REPLICATED` gives Redis a replica and sentinels. `TEST_FAULT_SECONDS` is how long faults are
//! injected. Each round sells new SKUs, so that every purchase without a key has a quantity that its SKU
//! has not seen before.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::join_all;
use redis::cmd;
use reqwest::{Client, Method};
use serde_json::json;
use stocklock_testkit::run::{rng, variable};
use stocklock_testkit::servers::connect_to_redis;
use tokio::time::{Instant, sleep};

use super::pair::{Pair, operation};
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

/// Loses everything, and returns the movements that the journals had.
const FLUSH: &str = "
local movements = {}
for _, journal in ipairs(redis.call('KEYS', 'journal:*}')) do
  for _, entry in ipairs(redis.call('XRANGE', journal, '-', '+')) do
    for i = 1, #entry[2], 2 do
      if entry[2][i] == 'movements' then table.insert(movements, entry[2][i + 1]) end
    end
  end
end
redis.call('FLUSHALL')
return movements";

/// The Redis that the stock is in.
enum Home {
    Single(PrivateServer),
    /// A sale is acknowledged if the replica has it.
    Replicated(Pair),
}

impl Home {
    async fn start(is_replicated: bool) -> Self {
        if is_replicated {
            return Self::Replicated(Pair::start().await);
        }
        // Sales that Redis acknowledges survive its death.
        Self::Single(
            PrivateServer::redis(&["--appendonly", "yes", "--appendfsync", "always"]).await,
        )
    }

    fn url(&self) -> String {
        match self {
            Self::Single(server) => server.url().to_owned(),
            Self::Replicated(pair) => pair.url(),
        }
    }

    /// How many servers must have a sale before it is acknowledged, besides the one that sells.
    fn replicas(&self) -> &'static str {
        match self {
            Self::Single(_) => "0",
            Self::Replicated(_) => "1",
        }
    }

    /// The server that sells.
    async fn master(&self) -> &PrivateServer {
        match self {
            Self::Single(server) => server,
            Self::Replicated(pair) => pair.settled().await,
        }
    }
}

struct Shop {
    redis: Home,
    database: PrivateServer,
    replicas: [Process; 2],
    client: Client,
    /// The operations that a `FLUSHALL` may have lost.
    lost: BTreeSet<String>,
}

impl Shop {
    async fn open(redis: Home) -> Self {
        let database = PrivateServer::start(Backend::Postgres).await;
        let url = redis.url();
        let variables = [
            ("REDIS_URL", &*url),
            ("REDIS_WAIT_REPLICAS", redis.replicas()),
        ];
        let first = Process::lab(database.url(), &variables).await;
        // The client keeps its connections open, and the test repeats requests itself.
        let client = Client::builder().no_proxy().retry(reqwest::retry::never());
        Self {
            replicas: [first, Process::lab(database.url(), &variables).await],
            client: client.build().expect("a client without TLS can be built"),
            redis,
            database,
            lost: BTreeSet::new(),
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
        let victim = rng().usize(0..2);
        let pause = Duration::from_millis(rng().u64(1..=PAUSE));
        let fault = rng().usize(0..7);
        match (fault, &self.redis) {
            (0, _) => {
                self.replicas[victim].stop().await;
                sleep(pause).await;
                self.replicas[victim].resume();
                "replica paused"
            }
            (1, _) => {
                self.replicas[victim].kill9();
                sleep(pause).await;
                self.replicas[victim].restart().await;
                "replica killed"
            }
            (2, _) => {
                self.database.kill9();
                sleep(pause).await;
                self.database.restart().await;
                "database killed"
            }
            (3, redis) => {
                let master = redis.master().await;
                master.stop().await;
                sleep(pause).await;
                master.resume();
                "Redis paused"
            }
            (4, redis) => {
                let master = redis.master().await;
                limit_memory(master, "1").await;
                sleep(pause).await;
                limit_memory(master, "0").await;
                "Redis out of memory"
            }
            (5, redis) => {
                let lost = flush(redis.master().await).await;
                self.lost.extend(lost);
                "Redis emptied"
            }
            (_, Home::Single(server)) => {
                server.kill9();
                sleep(pause).await;
                server.restart().await;
                "Redis killed"
            }
            (_, Home::Replicated(pair)) => {
                pair.settled().await;
                pair.fail_over(victim == 0).await;
                "Redis replaced"
            }
        }
    }
}

async fn limit_memory(server: &PrivateServer, bytes: &str) {
    command::<()>(server.url(), &["CONFIG", "SET", "maxmemory", bytes]).await;
}

/// Lets a Redis lose everything, and returns the operations in its journals.
async fn flush(server: &PrivateServer) -> BTreeSet<String> {
    let connection = connect_to_redis(server.url()).await;
    let mut connection = connection.expect("Redis answers");
    let flush = cmd("EVAL").arg(FLUSH).arg(0).to_owned();
    let movements: Result<Vec<String>, _> = flush.query_async(&mut connection).await;
    let movements = movements.expect("Redis runs the script");
    let lines = movements.iter().flat_map(|movements| movements.lines());
    lines.map(|line| operation(line, 3)).collect()
}

async fn sell_more(all: &[(String, Buyers)]) {
    join_all(all.iter().map(|(_, buyers)| buyers.sell(SALES))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_answer_is_true_whatever_fails() {
    let is_replicated = variable("TEST_REPLICATED").is_some();
    let seconds = variable("TEST_FAULT_SECONDS");
    let seconds = seconds.map_or(DEFAULT_SECONDS, |text| text.parse().expect("a number"));
    let mut shop = Shop::open(Home::start(is_replicated).await).await;
    let ledger = Ledger::at(shop.database.url());
    let (begin, mut round, mut faults) = (Instant::now(), 0, Vec::new());
    let (mut sales, mut lost) = (0, 0);
    while begin.elapsed() < Duration::from_secs(seconds) {
        let all = shop.sell(round).await;
        for _ in 0..FAULTS {
            sell_more(&all).await;
            faults.push(shop.fail().await);
        }
        sell_more(&all).await;
        for (sku, buyers) in all {
            let mut purchases = buyers.stop().await;
            sales += purchases.acknowledged.len();
            applied_audit_after_outage(&shop.replicas[0], &sku).await;
            let recorded: BTreeMap<_, _> = ledger.sales(&sku).await.into_iter().collect();
            let acknowledged = purchases.acknowledged.len();
            let is_kept = |operation: &String| {
                recorded.contains_key(operation) || !shop.lost.contains(operation)
            };
            purchases
                .acknowledged
                .retain(|operation, _| is_kept(operation));
            lost += acknowledged - purchases.acknowledged.len();
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
        "figure: {sales} sales of {round} rounds are exact, {lost} lost by FLUSHALL: {}",
        kinds.join(", ")
    );
}
