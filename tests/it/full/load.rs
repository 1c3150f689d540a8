//! How long a sale takes while other clients load the service, compared with the same number of
//! clients that buy other SKUs: long enough for a 99th percentile.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use reqwest::{Client, Method, RequestBuilder};
use rstest::rstest;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::faults::{copy, send};
use crate::store_contract::fixture::open_waiting;
use crate::support::client::client;
use crate::support::process::Process;
use crate::support::rival::{Raw, Rival};
use crate::support::seeded_ledger::Seeded;
use crate::support::services::Backend::{self, Mysql, Postgres};
use crate::support::services::{TestDatabase, fresh_database};
use crate::support::timing::p99;

/// The promise: how many times as long the other SKU's sales may take.
const RATIO: f64 = 2.0;
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(4);
/// How long another transaction locks SKUs.
const LOCKED_FOR: Duration = Duration::from_secs(6);
/// How long a buyer pauses after each answer then.
const PAUSE: Duration = Duration::from_millis(20);
/// What the ledger has already.
const MOVEMENTS: u64 = 600_000;
const PLENTY: i64 = 1_000_000_000;

type Statuses = BTreeMap<(u16, String), usize>;

struct Shop {
    replica: Process,
    client: Client,
    database: TestDatabase,
}

impl Shop {
    async fn open(backend: Backend, skus: impl IntoIterator<Item = String>) -> Self {
        let database = fresh_database(backend).await;
        let replica = Process::lab(&database.url, &[]).await;
        for sku in skus.into_iter().chain(["cold".to_owned()]) {
            replica.set_level(&sku, PLENTY).await;
        }
        Self {
            replica,
            client: client(),
            database,
        }
    }

    fn buy(&self, sku: &str) -> RequestBuilder {
        self.buy_by("single-sql", sku)
    }

    fn buy_by(&self, strategy: &str, sku: &str) -> RequestBuilder {
        let path = format!("/stock/deduct?strategy={strategy}");
        let request = self.client.post(self.replica.url(&path));
        request.json(&json!({ "sku": sku }))
    }

    /// Buys each SKU again and again, with pauses. Returns the number of sales.
    async fn sales(&self, strategy: &str, skus: impl Iterator<Item = String>) -> usize {
        let started = Instant::now();
        let buyers: JoinSet<_> = skus
            .map(|sku| {
                let request = self.buy_by(strategy, &sku);
                async move {
                    let mut sales = 0;
                    while started.elapsed() < LOCKED_FOR {
                        let answer = send(copy(&request)).await;
                        sales += usize::from(answer.status == 200);
                        sleep(PAUSE).await;
                    }
                    sales
                }
            })
            .collect();
        buyers.join_all().await.into_iter().sum()
    }

    fn buyers(&self, count: usize, skus: usize) -> Vec<RequestBuilder> {
        let skus = (0..count).map(|buyer| sku(buyer % skus));
        skus.map(|sku| self.buy(&sku)).collect()
    }

    /// Buys `cold` for the length of a round while each client repeats its request. Returns how long each
    /// sale took, and how often the clients got each status.
    async fn round(&self, clients: Vec<RequestBuilder>) -> (Vec<Duration>, Statuses) {
        let stop = Arc::new(AtomicBool::default());
        let mut tasks = JoinSet::new();
        for request in clients {
            let stop = Arc::clone(&stop);
            tasks.spawn(async move {
                let mut statuses = Vec::new();
                while !stop.load(Relaxed) {
                    let answer = send(copy(&request)).await;
                    statuses.push((answer.status, answer.code));
                }
                statuses
            });
        }
        let (cold, started) = (self.buy("cold"), Instant::now());
        let mut sales = Vec::new();
        while started.elapsed() < ROUND {
            let sale = send(copy(&cold)).await;
            sale.ok();
            sales.push(sale.after);
        }
        stop.store(true, Relaxed);
        let mut statuses = Statuses::new();
        for status in tasks.join_all().await.into_iter().flatten() {
            *statuses.entry(status).or_default() += 1;
        }
        (sales, statuses)
    }

    /// Compares the sales during the rounds of two groups of clients, which take turns. Every request of
    /// the others succeeds; returns the statuses of `load`.
    async fn compare(
        &self,
        what: &str,
        load: &[RequestBuilder],
        others: &[RequestBuilder],
    ) -> Statuses {
        let (mut loaded, mut usual) = (Vec::new(), Vec::new());
        let mut all = Statuses::new();
        for _ in 0..ROUNDS {
            let (sales, statuses) = self.round(others.iter().map(copy).collect()).await;
            assert_codes(&statuses, &[""]);
            usual.extend(sales);
            let (sales, statuses) = self.round(load.iter().map(copy).collect()).await;
            loaded.extend(sales);
            for (status, count) in statuses {
                *all.entry(status).or_default() += count;
            }
        }
        let samples = [loaded.len(), usual.len()];
        let [loaded, usual] = [loaded, usual].map(p99);
        let ratio = loaded.as_secs_f64() / usual.as_secs_f64();
        println!(
            "figure: {what}: p99 {loaded:.1?}, usually {usual:.1?}, ratio {ratio:.2}, of {samples:?} \
             sales; {all:?}"
        );
        assert!(ratio <= RATIO, "{what}: {ratio}");
        all
    }
}

/// Asserts that requests succeeded, and that the others were refused with one of these codes.
fn assert_codes(statuses: &Statuses, expected: &[&str]) {
    let success = (200, String::new());
    assert!(statuses.contains_key(&success), "{statuses:?}");
    let mut codes = statuses.keys().map(|(_, code)| &**code);
    assert!(codes.all(|code| expected.contains(&code)), "{statuses:?}");
}

fn sku(number: usize) -> String {
    format!("hot-{number}")
}

/// 64 clients audit one SKU, compared with 64 clients that buy 64 other SKUs.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn audits_delay_other_sales_little(#[values(Mysql, Postgres)] backend: Backend) {
    const CLIENTS: usize = 64;
    let shop = Shop::open(backend, (0..CLIENTS).map(sku)).await;
    let url = &shop.database.url;
    let seeded = Seeded {
        seed: 0,
        ..Seeded::of("hot-0", MOVEMENTS)
    };
    let mut raw = Raw::connect(backend, url).await;
    seeded.insert(&mut raw).await;
    // Before this step, each audit would sum them all.
    let store = open_waiting(url, 1, Duration::from_mins(1));
    store.write_due().await.expect("checkpoints are written");
    let audit = shop
        .client
        .request(Method::GET, shop.replica.url("/stock/hot-0/audit"));
    let audits: Vec<_> = (0..CLIENTS).map(|_| copy(&audit)).collect();
    let buyers = shop.buyers(CLIENTS, CLIENTS);
    let what = format!("{backend:?}, {CLIENTS} audit");
    let statuses = shop.compare(&what, &audits, &buyers).await;
    assert_codes(&statuses, &[""]);
}

/// 256 clients buy one SKU or two, compared with 256 clients that buy as many SKUs.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hot_skus_delay_other_sales_little(
    #[values(Mysql, Postgres)] backend: Backend,
    #[values(1, 2)] hot: usize,
) {
    const CLIENTS: usize = 256;
    let shop = Shop::open(backend, (0..CLIENTS).map(sku)).await;
    let (load, others) = (shop.buyers(CLIENTS, hot), shop.buyers(CLIENTS, CLIENTS));
    let what = format!("{backend:?}, {CLIENTS} buy {hot}");
    let statuses = shop.compare(&what, &load, &others).await;
    // More buyers of one SKU than may wait for it.
    assert_codes(&statuses, &["", "overloaded"]);
}

/// Another transaction has locked 40 SKUs for 6 s, in which their buyers wait. Five other SKUs sell nearly
/// as much as usual.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locked_skus_cost_others_few_sales(
    #[values(Mysql, Postgres)] backend: Backend,
    #[values("single-sql", "for-update", "optimistic", "group-commit")] strategy: &str,
) {
    const LOCKED: usize = 40;
    const FREE: usize = 5;
    /// The promise: which part of its usual sales the others make at least.
    const PART: f64 = 0.9;
    let free = || (0..FREE).map(|number| format!("free-{number}"));
    let shop = Shop::open(backend, (0..LOCKED).map(sku).chain(free())).await;
    let all = async || {
        let locked = shop.sales(strategy, (0..LOCKED).map(sku));
        tokio::join!(shop.sales(strategy, free()), locked)
    };
    let (usual, _) = all().await;
    let lock = "UPDATE stock SET held = held WHERE sku LIKE 'hot-%'";
    let _holder = Rival::holding(backend, &shop.database.url, lock).await;
    let (beside, of_locked) = all().await;
    let part = beside as f64 / usual as f64;
    println!(
        "figure: {backend:?}, {strategy}, {LOCKED} SKUs locked: {FREE} others sell {beside}, usually \
         {usual}, {part:.2}"
    );
    assert_eq!(of_locked, 0);
    assert!(part >= PART, "{part}");
}
