//! The rules of stock in Redis, while replicas, Redis and the database are paused, killed, full, replaced
//! and emptied in random order: a sale that was answered 200 is in the ledger once; one that was refused
//! is not; one whose answer was cut, or 504, is there at most once. `FLUSHALL` loses the sales that the
//! journal still has, and no others. In a cluster, one node fails at a time, and slots move.
//!
//! `TEST_FAULT_SECONDS` is how long faults are injected. Each round sells new SKUs: of those with enough
//! stock, every purchase has a quantity that its SKU has not seen before; the scarce one refuses some.

mod home;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::join_all;
use home::{Home, Kind, random_master};
use redis::cmd;
use reqwest::{Client, Method};
use rstest::rstest;
use serde_json::json;
use stocklock_testkit::run::{rng, variable};
use stocklock_testkit::servers::connect_to_redis;
use tokio::time::{Instant, sleep};

use super::cluster::move_a_slot;
use super::cluster_losses::bound_shards;
use super::pair::operation;
use super::{Replica as _, applied_audit_after_outage, command};
use crate::faults::buyers::{Buyers, Keys, PLENTY, SCARCE, restock};
use crate::faults::{Ledger, copy, send, until};
use crate::support::process::Process;
use crate::support::services::{Backend, PrivateServer, fresh_redis};

/// The four cases together take 80 seconds.
const DEFAULT_SECONDS: u64 = 20;
const STRATEGIES: [&str; 3] = ["redis-lua", "redis-watch", "redis-lock"];
/// Concurrent buyers per strategy. Half of them send no key.
const BUYERS: usize = 8;
/// Sales of each strategy before and after a fault.
const SALES: usize = 20;
/// Faults on the same SKUs.
const FAULTS_PER_ROUND: usize = 4;
/// The SKU that is sold out again and again, by `redis-lua`.
const SCARCE_SKU: &str = "scarce";
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

/// What fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    ReplicaPaused,
    ReplicaKilled,
    DatabaseKilled,
    RedisPaused,
    OutOfMemory,
    Emptied,
    /// Killed, or replaced by its replica.
    Replaced,
    /// What a replica has read before is outdated when it runs again.
    EmptiedDuringPause,
    ReplacedDuringPause,
    DatabaseKilledDuringPause,
    /// A slot with a level moves to another node of the cluster.
    SlotMoved,
    SlotMovedDuringPause,
}

impl Fault {
    /// Whether it can happen to this Redis.
    fn happens_to(self, redis: &Home) -> bool {
        let is_move = matches!(self, Self::SlotMoved | Self::SlotMovedDuringPause);
        !is_move || matches!(redis, Home::Cluster(_))
    }
}

const FAULTS: [Fault; 12] = [
    Fault::ReplicaPaused,
    Fault::ReplicaKilled,
    Fault::DatabaseKilled,
    Fault::RedisPaused,
    Fault::OutOfMemory,
    Fault::Emptied,
    Fault::Replaced,
    Fault::EmptiedDuringPause,
    Fault::ReplacedDuringPause,
    Fault::DatabaseKilledDuringPause,
    Fault::SlotMoved,
    Fault::SlotMovedDuringPause,
];

struct Shop {
    redis: Home,
    database: PrivateServer,
    replicas: [Process; 2],
    client: Client,
    /// The operations that a `FLUSHALL` may have lost.
    lost: BTreeSet<String>,
}

impl Shop {
    async fn open(redis: Home, database: Backend) -> Self {
        let database = PrivateServer::start(database).await;
        let (url, locks) = (redis.url(), fresh_redis().await.url);
        let variables = [
            ("REDIS_URL", &*url),
            ("REDIS_WAIT_REPLICAS", redis.replicas()),
            (
                "LOCK_REDIS_URL",
                if matches!(redis, Home::Cluster(_)) {
                    &locks
                } else {
                    &url
                },
            ),
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

    /// Buyers of new SKUs, whose names end with `round`: one of each strategy, and the scarce one.
    async fn sell(&self, round: usize) -> Vec<(String, Buyers)> {
        let mut all = Vec::new();
        let plenty = STRATEGIES.map(|strategy| (strategy, strategy, Keys::HalfUnique));
        for (name, strategy, keys) in [
            plenty.as_slice(),
            &[(SCARCE_SKU, "redis-lua", Keys::AllScarce)],
        ]
        .concat()
        {
            let sku = format!("{name}-{round}");
            self.create(&sku, keys).await;
            let path = format!("/stock/deduct?strategy={strategy}");
            let orders = (0..BUYERS).map(|buyer| {
                let replica = &self.replicas[buyer % 2];
                self.client.request(Method::POST, replica.url(&path))
            });
            let buyers = Buyers::start(&sku, keys, orders, |_, _| ());
            buyers.replicas_are_killed();
            all.push((sku, buyers));
        }
        all
    }

    /// Creates a SKU. A fault that has just ended may still delay this.
    async fn create(&self, sku: &str, keys: Keys) {
        let units = if keys == Keys::AllScarce {
            SCARCE
        } else {
            PLENTY
        };
        let put = self.replicas[0].call(Method::PUT, &format!("/stock/{sku}"));
        let put = put.json(&json!({"on_hand": units, "home": "redis"}));
        until("the SKU is created", async || {
            matches!(send(copy(&put)).await.status, 200 | 201)
        })
        .await;
    }

    /// Returns after more sales of each SKU.
    async fn sell_more(&self, all: &[(String, Buyers)]) {
        let until_sold = async |(sku, buyers): &(String, Buyers)| {
            if sku.starts_with(SCARCE_SKU) {
                restock(self.replicas[0].call(Method::PUT, &format!("/stock/{sku}"))).await;
            }
            buyers.sell(SALES).await;
        };
        join_all(all.iter().map(until_sold)).await;
    }

    /// Injects one fault, and ends it.
    async fn fail(&mut self, fault: Fault, all: &[(String, Buyers)]) {
        let victim = rng().usize(0..2);
        let pause = Duration::from_millis(rng().u64(1..=PAUSE));
        match fault {
            Fault::ReplicaPaused => {
                self.replicas[victim].stop().await;
                sleep(pause).await;
                self.replicas[victim].resume();
            }
            Fault::ReplicaKilled => {
                self.replicas[victim].kill9();
                sleep(pause).await;
                self.replicas[victim].restart().await;
            }
            Fault::DatabaseKilled => self.kill_database(pause).await,
            Fault::RedisPaused => {
                let master = self.redis.master().await;
                master.stop().await;
                sleep(pause).await;
                master.resume();
                // Without a replica, each change waits for one in vain.
                self.redis.master().await;
            }
            Fault::OutOfMemory => {
                let master = self.redis.master().await;
                limit_memory(master, "1").await;
                join_all(all.iter().map(|(_, buyers)| buyers.are_refused(1))).await;
                sleep(pause).await;
                limit_memory(master, "0").await;
            }
            Fault::Emptied => self.empty().await,
            Fault::Replaced => {
                self.redis.master().await;
                self.replace(pause).await;
            }
            Fault::EmptiedDuringPause => {
                self.redis.master().await;
                self.replicas[victim].stop().await;
                self.empty().await;
                sleep(pause).await;
                self.replicas[victim].resume();
            }
            Fault::ReplacedDuringPause => {
                self.redis.master().await;
                self.replicas[victim].stop().await;
                self.replace(pause).await;
                self.replicas[victim].resume();
            }
            Fault::DatabaseKilledDuringPause => {
                self.replicas[victim].stop().await;
                self.kill_database(pause).await;
                self.replicas[victim].resume();
            }
            Fault::SlotMoved => {
                if let Home::Cluster(cluster) = &self.redis {
                    move_a_slot(cluster).await;
                }
            }
            Fault::SlotMovedDuringPause => {
                self.replicas[victim].stop().await;
                if let Home::Cluster(cluster) = &self.redis {
                    move_a_slot(cluster).await;
                }
                sleep(pause).await;
                self.replicas[victim].resume();
            }
        }
    }

    async fn kill_database(&mut self, pause: Duration) {
        self.database.kill9();
        sleep(pause).await;
        self.database.restart().await;
    }

    async fn empty(&mut self) {
        let master = self.redis.master().await;
        let bound = bound_shards(master).await;
        self.lost.extend(flush(master).await);
        if matches!(self.redis, Home::Cluster(_)) {
            // Perhaps nothing on this node is sold, so that more sales do not show it.
            until("the loss is noticed", async || {
                bound_shards(master).await == bound
            })
            .await;
        }
    }

    /// Kills the Redis that sells, or lets its replica replace it.
    async fn replace(&self, pause: Duration) {
        match &self.redis {
            Home::Single(server) => {
                server.kill9();
                sleep(pause).await;
                server.restart().await;
            }
            Home::Replicated(pair) => {
                let kill = rng().bool();
                pair.fail_over(kill).await;
            }
            Home::Cluster(cluster) => {
                let kill = rng().bool();
                cluster.fail_over(random_master(cluster).await, kill).await;
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

#[rstest]
#[case::postgres(Backend::Postgres, Kind::Single)]
#[case::mysql(Backend::Mysql, Kind::Single)]
#[case::replicated(Backend::Postgres, Kind::Replicated)]
#[case::cluster(Backend::Postgres, Kind::Cluster)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_answer_is_true_whatever_fails(#[case] database: Backend, #[case] kind: Kind) {
    let seconds = variable("TEST_FAULT_SECONDS");
    let seconds = seconds.map_or(DEFAULT_SECONDS, |text| text.parse().expect("a number"));
    let mut shop = Shop::open(Home::start(kind).await, database).await;
    let ledger = Ledger::at(shop.database.url());
    let (begin, mut round) = (Instant::now(), 0);
    let (mut to_inject, mut injected) = (Vec::new(), BTreeMap::<Fault, u32>::new());
    let (mut sales, mut lost) = (0, 0);
    while begin.elapsed() < Duration::from_secs(seconds) {
        let all = shop.sell(round).await;
        for _ in 0..FAULTS_PER_ROUND {
            shop.sell_more(&all).await;
            // All faults in random order, and again.
            if to_inject.is_empty() {
                to_inject.extend(FAULTS);
                to_inject.retain(|fault| fault.happens_to(&shop.redis));
                rng().shuffle(&mut to_inject);
            }
            let fault = to_inject.pop().expect("there are faults");
            shop.fail(fault, &all).await;
            *injected.entry(fault).or_default() += 1;
        }
        shop.sell_more(&all).await;
        for (sku, buyers) in all {
            let mut purchases = buyers.stop().await;
            sales += purchases.acknowledged.len();
            let audit = applied_audit_after_outage(&shop.replicas[0], &sku).await;
            assert_eq!(audit["consistent"], true, "{audit}");
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
    println!(
        "figure: {database:?}, {kind:?}: {sales} sales of {round} rounds are exact, {lost} lost by FLUSHALL: {injected:?}"
    );
}
