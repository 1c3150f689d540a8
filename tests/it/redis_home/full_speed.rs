//! Sales of many SKUs in Redis as fast as the clients can, through two replicas: what the SQL ledger or the
//! memory of Redis cannot take is refused with 503 `overloaded`, and nothing else is.
//!
//! `TEST_LOAD_SECONDS` is the length of each load. Loads of at least a minute run alone, and must meet every
//! time limit. Shorter ones share the machine with other tests: there an answer may take so long that its
//! outcome is unknown, and a lease may end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use reqwest::{Client, Method};
use rstest::rstest;
use serde_json::json;
use stocklock_testkit::eventually;
use stocklock_testkit::run::{rng, variable};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::{command, create, journal_lengths, line};
use crate::faults::buyers::PLENTY;
use crate::faults::{KEY, Ledger, SOON, new_key, send};
use crate::support::process::Process;
use crate::support::services::Backend::{self, Mysql, Postgres};
use crate::support::services::{PrivateServer, fresh_database, fresh_redis};

const DEFAULT_SECONDS: u64 = 3;
const CLIENTS: usize = 64;
/// The SKUs that are sold: number k in proportion to 1/k.
const SKUS: usize = 1_000;
/// How long SQL may take for the sales that are in the journals when a long load ends.
const APPLIED_WITHIN: Duration = Duration::from_secs(15);
/// The memory of a Redis that fills up, in bytes.
const MEMORY: u64 = 64 << 20;
/// How much of it is left below the limit of the service before a short load, in bytes.
const LEFT: u64 = 256 << 10;
/// The share of the clients' full speed at which nothing may be refused.
const SUSTAINED: f64 = 0.6;

fn name(number: usize) -> String {
    format!("sku-{number}")
}

fn load_time() -> Duration {
    let seconds = variable("TEST_LOAD_SECONDS");
    let seconds = seconds.map_or(DEFAULT_SECONDS, |text| text.parse().expect("a number"));
    Duration::from_secs(seconds)
}

/// Whether the load has the machine for itself.
fn is_alone() -> bool {
    load_time() >= Duration::from_mins(1)
}

/// Waits until SQL has the sales.
async fn applied(redis: &str) {
    let within = if is_alone() { APPLIED_WITHIN } else { SOON * 2 };
    eventually("the journals are empty", within, async || {
        journal_lengths(redis).await.is_empty()
    })
    .await;
}

/// Two replicas on one database and one Redis.
struct Shop {
    replicas: [Process; 2],
    client: Client,
}

/// How many orders were sold, and the reasons of the others.
#[derive(Debug, Default)]
struct Answers {
    sold: usize,
    /// At most once each.
    unknown: usize,
    refused: BTreeMap<String, usize>,
}

impl Answers {
    fn add(&mut self, other: Self) {
        self.sold += other.sold;
        self.unknown += other.unknown;
        for (why, count) in other.refused {
            *self.refused.entry(why).or_default() += count;
        }
    }

    /// Asserts that each answer is true of the sum of the ledger, and each refusal `overloaded`.
    fn assert_true(&self, sold: i64) {
        let sold = usize::try_from(sold).expect("stock was not returned");
        assert!(
            (self.sold..=self.sold + self.unknown).contains(&sold),
            "{sold}: {self:?}"
        );
        assert!(self.unknown == 0 || !is_alone(), "{self:?}");
        let is_overloaded = |why: &String| why.starts_with("503 overloaded");
        assert!(self.refused.keys().all(is_overloaded), "{self:?}");
    }
}

impl Shop {
    async fn open(database: &str, variables: &[(&str, &str)]) -> Self {
        let first = Process::lab(database, variables).await;
        let client = Client::builder().no_proxy().build();
        Self {
            replicas: [first, Process::lab(database, variables).await],
            client: client.expect("a client without TLS can be built"),
        }
    }

    /// Creates the SKUs.
    async fn stock(self: &Arc<Self>, skus: usize) {
        let next = Arc::new(AtomicUsize::new(0));
        let mut tasks = JoinSet::new();
        for _ in 0..8 {
            let (shop, next) = (Arc::clone(self), Arc::clone(&next));
            tasks.spawn(async move {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= skus {
                        break;
                    }
                    create(&shop.replicas[0], &name(number), PLENTY).await;
                }
            });
        }
        tasks.join_all().await;
    }

    /// Buys one unit after the other for the load time, `rate` per second or as fast as the clients can.
    async fn load(self: &Arc<Self>, skus: usize, rate: Option<f64>) -> Answers {
        let (begin, time) = (Instant::now(), load_time());
        let sent = Arc::new(AtomicUsize::new(0));
        let mut tasks = JoinSet::new();
        for client in 0..CLIENTS {
            let (shop, sent) = (Arc::clone(self), Arc::clone(&sent));
            tasks.spawn(async move {
                let mut answers = Answers::default();
                while begin.elapsed() < time {
                    if let Some(rate) = rate {
                        let before = count(sent.fetch_add(1, Ordering::Relaxed));
                        sleep_until(begin + Duration::from_secs_f64(before / rate)).await;
                    }
                    let sku = zipf(rng().f64(), skus);
                    shop.buy(client, sku, &mut answers).await;
                }
                answers
            });
        }
        let mut all = Answers::default();
        for one in tasks.join_all().await {
            all.add(one);
        }
        all
    }

    async fn buy(&self, client: usize, sku: usize, answers: &mut Answers) {
        let url = self.replicas[client % 2].url("/stock/deduct?strategy=redis-lua");
        let order = self.client.post(url).header(KEY, new_key());
        let answer = send(order.json(&json!({"sku": name(sku)}))).await;
        match answer.status {
            200 => answers.sold += 1,
            504 => answers.unknown += 1,
            status => {
                let why = format!("{status} {}: {}", answer.code, answer.detail);
                *answers.refused.entry(why).or_default() += 1;
            }
        }
    }

    /// How many entries the replicas have applied although the ledger had them.
    async fn repeated(&self) -> u64 {
        let mut sum = 0;
        for replica in &self.replicas {
            let metrics = replica.request(Method::GET, "/metrics").send().await;
            let metrics = metrics.expect("the replica answers").text().await;
            let metrics = metrics.expect("a text");
            let mut lines = metrics.lines();
            let name = "journal_repeated_entries_total ";
            let count = lines.find_map(|line| line.strip_prefix(name));
            sum += count
                .expect("the counter")
                .parse::<u64>()
                .expect("a number");
        }
        sum
    }
}

/// A number below `skus`, low ones more often: number k in proportion to 1/(k + 1). `random` is uniform in
/// 0..1.
fn zipf(random: f64, skus: usize) -> usize {
    let above = |number: usize| (count(skus) + 1.0).powf(random) >= count(number) + 2.0;
    (0..skus - 1).take_while(|&number| above(number)).count()
}

#[expect(clippy::cast_precision_loss, reason = "the numbers are small")]
fn count(number: usize) -> f64 {
    number as f64
}

fn rate(answers: &Answers) -> f64 {
    count(answers.sold) / load_time().as_secs_f64()
}

/// Goal: at a rate that SQL sustains, nothing is refused. As fast as the clients can, only 503 `overloaded`.
/// Soon after each load, SQL has each sale once.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_skus_sell_at_full_speed_through_two_replicas(
    #[values(Mysql, Postgres)] backend: Backend,
) {
    let (database, redis) = (fresh_database(backend).await, fresh_redis().await);
    let shop = Shop::open(&database.url, &[("REDIS_URL", &redis.url)]).await;
    let shop = Arc::new(shop);
    shop.stock(SKUS).await;

    let mut fast = shop.load(SKUS, None).await;
    applied(&redis.url).await;
    let slow = shop.load(SKUS, Some(SUSTAINED * rate(&fast))).await;
    applied(&redis.url).await;

    println!(
        "figure: {backend:?}: {:.0} sales per second sustained; {:.0} at full speed, refused {:?}",
        rate(&slow),
        rate(&fast),
        fast.refused
    );
    assert!(slow.refused.is_empty() || !is_alone(), "{slow:?}");
    let (ledger, mut sold) = (Ledger::at(&database.url), 0);
    for number in 0..SKUS {
        let audit = ledger.assert_consistent(&name(number)).await;
        sold += audit.sold;
    }
    fast.add(slow);
    fast.assert_true(sold);
    let repeated = shop.repeated().await;
    assert!(
        repeated == 0 || !is_alone(),
        "{repeated} entries were applied again"
    );
}

/// Goal: before Redis is full, sales are refused and name the memory; locks in another Redis still work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_fills_at_full_speed_without_an_error() {
    let (database, locks) = (fresh_database(Postgres).await, fresh_redis().await);
    let redis = PrivateServer::redis(&["--maxmemory", &MEMORY.to_string()]).await;
    let variables = [("REDIS_URL", redis.url()), ("LOCK_REDIS_URL", &*locks.url)];
    let shop = Arc::new(Shop::open(&database.url, &variables).await);
    shop.stock(1).await;
    shop.replicas[0].set_level("in-sql", PLENTY).await;
    if !is_alone() {
        // The time is too short to fill it with sales.
        let mut fillers = 0;
        while used_memory(redis.url()).await < MEMORY / 10 * 9 - LEFT {
            fillers += 1;
            line(redis.url(), &format!("SETRANGE filler-{fillers} 100000 x")).await;
        }
    }
    let url = shop.replicas[1].url("/stock/deduct?strategy=redis-lock");
    let locked = async {
        let (begin, mut sold) = (Instant::now(), 0);
        while begin.elapsed() < load_time() {
            let order = shop.client.post(&url).json(&json!({"sku": "in-sql"}));
            send(order).await.ok();
            sold += 1;
        }
        sold
    };

    let (answers, locked) = tokio::join!(shop.load(1, None), locked);

    let info: String = command(redis.url(), &["INFO", "errorstats"]).await;
    println!(
        "figure: 64 MB: {} sales, then refused {:?}; {locked} sales with locks elsewhere",
        answers.sold, answers.refused
    );
    let names_memory = |why: &String| why.contains("memory");
    // A long load may stay at the rate at which nothing fills up.
    assert!(
        answers.refused.keys().any(names_memory) || is_alone(),
        "{answers:?}"
    );
    assert!(locked > 0);
    // Redis itself refused nothing.
    assert!(!info.contains("OOM"), "{info}");
    applied(redis.url()).await;
    let ledger = Ledger::at(&database.url);
    answers.assert_true(ledger.assert_consistent(&name(0)).await.sold);
}

async fn used_memory(url: &str) -> u64 {
    let info: String = command(url, &["INFO", "memory"]).await;
    let used = info
        .lines()
        .find_map(|line| line.strip_prefix("used_memory:"));
    used.expect("a line").parse().expect("a number")
}
