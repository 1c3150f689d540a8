//! `kill -9` of a replica, and of the database, while 256 connections buy one SKU, or 32, under
//! `group-commit`.
//!
//! `TEST_KILLS` is the number of kills.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use reqwest::{Client, Method, RequestBuilder};
use rstest::rstest;
use serde_json::{Value, json};
use stocklock_testkit::eventually;
use stocklock_testkit::run::{number, rng};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::buyers::{Buyers, EXPIRED, Keys, PLENTY, Purchases, SCARCE, SHORT, restock};
use super::{Answer, KEY, Ledger, SOON, copy, new_key, send, try_send, until};
use crate::support::client::client;
use crate::support::process::Process;
use crate::support::rival::{Raw, until_found};
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};
use crate::support::services::{PrivateServer, TestDatabase, fresh_database};

mod carts;
mod holds;

const DEFAULT_KILLS: usize = 2;
const BUYERS: usize = 256;
/// So many SKUs share transactions.
const SHARED: usize = 32;
/// The maximum number of sales between a restock and a kill. The stock is enough for four times as many.
const SALES: usize = 500;
const SALES_OF_OTHER: usize = 50;
/// The maximum number of operations that end between two kills.
const ENDS: usize = 100;
/// The lines of a batch, and their SKUs: enough for many commits.
const LINES: usize = 1_000;
const SKUS: usize = 50;

/// Limits of a service whose requests end before its database is back.
const HASTY: [(&str, &str); 2] = [("WAIT_LIMIT_MS", "500"), ("REQUEST_DEADLINE_MS", "1000")];

fn name(number: usize) -> String {
    format!("hot-{number}")
}

fn kills() -> usize {
    number("TEST_KILLS", DEFAULT_KILLS)
}

/// A client of two replicas, of which each may be killed.
struct Caller {
    client: Client,
    urls: [String; 2],
    number: usize,
    /// How many of the operations of all callers have ended.
    ended: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
}

impl Caller {
    /// Repeats a request until its answer is definite. If a replica is killed, it asks the other one.
    async fn post(&self, path: &str, body: &Value, key: Option<&str>) -> Answer {
        let (started, mut replica, mut last_cut) = (Instant::now(), self.number, None::<Instant>);
        loop {
            let request = self
                .client
                .post(format!("{}{path}", self.urls[replica % 2]));
            let request = match key {
                Some(key) => request.header(KEY, key),
                None => request,
            };
            match try_send(request.json(body)).await {
                // A request that was cut may still be made until it expires.
                Ok(answer) if answer.code == SHORT => {
                    if last_cut.is_none_or(|cut| cut.elapsed() > EXPIRED) {
                        return answer;
                    }
                }
                Ok(answer) if !answer.asks_for_retry() => return answer,
                Ok(_) => {}
                Err(_) => {
                    replica += 1;
                    last_cut = Some(Instant::now());
                }
            }
            assert!(started.elapsed() < SOON, "{path} has no definite answer");
            sleep(Duration::from_millis(10)).await;
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    fn has_ended(&self) {
        self.ended.fetch_add(1, Ordering::SeqCst);
    }
}

struct Shop {
    replicas: [Process; 2],
    client: Client,
    ledger: Ledger,
}

impl Shop {
    async fn open(database: &str, limits: &[(&str, &str)]) -> Self {
        let first = Process::lab(database, limits).await;
        Self {
            replicas: [first, Process::lab(database, limits).await],
            client: client(),
            ledger: Ledger::at(database),
        }
    }

    /// A shop on a database whose server may be killed. SQLite has none.
    async fn on(backend: Backend) -> (Self, Option<PrivateServer>, Option<TestDatabase>) {
        if backend == Sqlite {
            // A request need not end before the database is back.
            let database = fresh_database(backend).await;
            return (Self::open(&database.url, &[]).await, None, Some(database));
        }
        let server = PrivateServer::start(backend).await;
        (Self::open(server.url(), &HASTY).await, Some(server), None)
    }

    /// Creates so many SKUs, and lets each be bought by its share of the buyers.
    async fn sell(&self, skus: usize) -> Vec<Buyers> {
        let path = "/stock/deduct?strategy=group-commit";
        let mut buyers = Vec::new();
        for sku in (0..skus).map(name) {
            let put = self.request(0, Method::PUT, &format!("/stock/{sku}"));
            let put = put.json(&json!({"on_hand": SCARCE}));
            // On a slow machine, it may take longer than a hasty replica waits.
            eventually("the SKU is stocked", SOON, async || {
                matches!(send(copy(&put)).await.status, 200 | 201)
            })
            .await;
            let orders = (0..BUYERS / skus).map(|buyer| self.request(buyer, Method::POST, path));
            buyers.push(Buyers::start(&sku, Keys::AllScarce, orders, |_, _| ()));
        }
        buyers
    }

    /// Returns in the middle of sales.
    async fn sells(&self, buyers: &[Buyers]) {
        let puts = (0..buyers.len()).map(|number| format!("/stock/{}", name(number)));
        join_all(puts.map(|path| restock(self.request(0, Method::PUT, &path)))).await;
        let sales = rng().usize(1..=SALES);
        // The SKUs sell about the same.
        buyers[0].sell(sales.div_ceil(buyers.len())).await;
    }

    async fn close(self, buyers: Vec<Buyers>, what: &str, begin: Instant) {
        let (kills, skus, took) = (kills(), buyers.len(), begin.elapsed());
        let stopped = join_all(buyers.into_iter().map(Buyers::stop)).await;
        let sum = |count: fn(&Purchases) -> usize| stopped.iter().map(count).sum::<usize>();
        let resolved = sum(Purchases::resolved);
        println!(
            "figure: {what}, {skus} SKUs: {kills} kills in {took:.0?}, {} sales, {} refusals, \
             {resolved} unknown outcomes resolved",
            sum(Purchases::acknowledged),
            sum(Purchases::refused),
        );
        // A few kills may all hit a batch before its commit.
        let is_hit = resolved > 0 || kills <= DEFAULT_KILLS;
        assert!(is_hit, "the kills interrupted no request");
        for purchases in stopped {
            purchases.assert_exact(&self.ledger).await;
        }
    }

    /// Kills a replica and the `server` of the database in turns while so many callers run. Stops them, and
    /// returns what they know.
    async fn kill_in_turns<T: Send + 'static, F>(
        &mut self,
        server: Option<&PrivateServer>,
        callers: usize,
        run: impl Fn(Caller) -> F,
    ) -> Vec<T>
    where
        F: Future<Output = Vec<T>> + Send + 'static,
    {
        let (ended, stop) = (
            Arc::new(AtomicUsize::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let caller = |number| Caller {
            client: self.client.clone(),
            urls: [0, 1].map(|replica: usize| self.replicas[replica].url("")),
            number,
            ended: Arc::clone(&ended),
            stop: Arc::clone(&stop),
        };
        let running: JoinSet<_> = (0..callers).map(caller).map(run).collect();
        let go_on = async || {
            let goal = ended.load(Ordering::SeqCst) + rng().usize(1..=ENDS);
            let reached = async || ended.load(Ordering::SeqCst) >= goal;
            until("more operations end", reached).await;
        };
        for kill in 0..2 * kills() {
            go_on().await;
            if let Some(server) = server.filter(|_| kill % 2 == 1) {
                server.kill9();
                server.restart().await;
            } else {
                let victim = kill / 2 % 2;
                self.replicas[victim].kill9();
                go_on().await;
                self.replicas[victim].restart().await;
            }
        }
        go_on().await;
        stop.store(true, Ordering::SeqCst);
        running.join_all().await.into_iter().flatten().collect()
    }

    fn request(&self, replica: usize, method: Method, path: &str) -> RequestBuilder {
        let replica = &self.replicas[replica % self.replicas.len()];
        self.client.request(method, replica.url(path))
    }
}

/// Goal: each acknowledged sale is in the ledger once, and nothing else is; a retry with the same key
/// resolves each unknown outcome.
///
/// Method: the two replicas are killed in turns. A buyer whose connection is cut repeats the request at the
/// other replica.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_replica_loses_and_doubles_no_sale_of_a_group(
    #[values((Sqlite, 1), (Mysql, 1), (Postgres, 1), (Postgres, SHARED))] sold: (Backend, usize),
) {
    let (backend, skus) = sold;
    let database = fresh_database(backend).await;
    let mut shop = Shop::open(&database.url, &[]).await;
    let buyers = shop.sell(skus).await;
    buyers.iter().for_each(Buyers::replicas_are_killed);
    let begin = Instant::now();
    for victim in (0..kills()).map(|kill| kill % 2) {
        shop.sells(&buyers).await;
        shop.replicas[victim].kill9();
        buyers[0].sell(SALES_OF_OTHER.div_ceil(skus)).await;
        shop.replicas[victim].restart().await;
    }
    let what = format!("a replica on {backend:?}");
    shop.close(buyers, &what, begin).await;
}

/// Goal: the same.
///
/// Method: after every other kill, the database starts again only when all requests have ended that were
/// in progress: those that were in the middle of a commit with an unknown outcome. After the other kills,
/// the replicas themselves find out what was committed.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_database_loses_and_doubles_no_sale_of_a_group(
    #[values((Mysql, 1), (Postgres, 1), (Postgres, SHARED))] sold: (Backend, usize),
) {
    let (backend, skus) = sold;
    let server = PrivateServer::start(backend).await;
    let shop = Shop::open(server.url(), &HASTY).await;
    let buyers = shop.sell(skus).await;
    let begin = Instant::now();
    for kill in 0..kills() {
        shop.sells(&buyers).await;
        server.kill9();
        if kill % 2 == 0 {
            join_all(buyers.iter().map(Buyers::are_answered)).await;
        }
        server.restart().await;
    }
    shop.sells(&buyers).await;
    shop.close(buyers, &format!("{backend:?}"), begin).await;
}

fn lines() -> Vec<Value> {
    let line = |number| {
        let sku = format!("sku-{}", number % SKUS);
        let key = new_key();
        json!({"sku": sku, "quantity": number + 1, "key": key, "reference": key})
    };
    (0..LINES).map(line).collect()
}

/// Repeats a batch until each line is sold. Returns their operations, and how many of them the first
/// answer replayed.
async fn repeat(batch: &RequestBuilder) -> (Vec<String>, usize) {
    let mut replayed = None;
    let mut operations = vec![None; LINES];
    until("each line is sold", async || {
        let answer = send(copy(batch)).await;
        let results = answer.ok()["results"].as_array().expect("a list");
        let of_code = |code| results.iter().filter(|line| line["code"] == code).count();
        replayed.get_or_insert_with(|| of_code("replayed"));
        for (operation, line) in operations.iter_mut().zip(results) {
            if line["status"] == 200 {
                let id = line["id"].as_str().expect("an id").to_owned();
                assert_eq!(*operation.get_or_insert_with(|| id.clone()), id, "{line}");
            } else {
                assert!(line["status"] == 503 || line["status"] == 504, "{line}");
            }
        }
        operations.iter().all(Option::is_some)
    })
    .await;
    let operations = operations.into_iter().flatten().collect();
    (operations, replayed.unwrap_or_default())
}

/// Goal: a client that repeats a batch whose connection was cut gets each line exactly once.
///
/// Method: `kill -9` of the replica when a random line is committed. The same batch is sent to the other
/// replica at once. The replica may be killed too late on a busy machine, but not each time.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batch_cut_by_a_kill_is_completed_by_its_repeat(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let database = fresh_database(backend).await;
    let mut shop = Shop::open(&database.url, &[]).await;
    for number in 0..SKUS {
        let sku = format!("sku-{number}");
        shop.replicas[0].set_level(&sku, PLENTY).await;
    }
    let mut raw = Raw::connect(backend, &database.url).await;
    let mut sold = BTreeSet::new();
    let mut committed = Vec::new();
    for victim in (0..kills()).map(|kill| kill % 2) {
        let lines = lines();
        let batch = |replica| {
            let path = "/stock/deduct/batch?strategy=group-commit";
            let request = shop.request(replica, Method::POST, path);
            request.json(&json!({ "lines": lines }))
        };
        let (batch, repeated) = (batch(victim), batch(victim + 1));
        let cut = tokio::spawn(try_send(batch));
        let reference = &lines[rng().usize(..LINES / 4)]["reference"];
        let reference = reference.as_str().expect("a reference");
        let query = format!("SELECT sku FROM movement WHERE reference = '{reference}'");
        until_found(&mut raw, query.leak()).await;
        shop.replicas[victim].kill9();
        let is_cut = cut.await.expect("no panic").is_err();
        let (operations, replayed) = repeat(&repeated).await;
        assert!(replayed > 0, "a line was committed before the kill");
        if is_cut && replayed < LINES {
            committed.push(replayed);
        }
        for (line, operation) in lines.iter().zip(operations) {
            let sale = (operation, line["quantity"].as_i64().expect("a number"));
            assert!(sold.insert((line["sku"].to_string(), sale)), "{line}");
        }
        shop.replicas[victim].restart().await;
    }
    println!(
        "figure: {backend:?}, lines of a batch that were committed before a kill: {committed:?}"
    );
    assert!(!committed.is_empty(), "each kill was too late");
    for sku in (0..SKUS).map(|number| format!("sku-{number}")) {
        for sale in shop.ledger.sales(&sku).await {
            assert!(sold.remove(&(json!(sku).to_string(), sale)), "{sku}");
        }
        shop.ledger.assert_consistent(&sku).await;
    }
    assert!(
        sold.is_empty(),
        "acknowledged and not in the ledger: {sold:?}"
    );
}

full! {
    killed_replica_loses_and_doubles_no_sale_of_a_group(
        sold: (Backend, usize) [(Sqlite, SHARED), (Mysql, SHARED)]
    );
    killed_database_loses_and_doubles_no_sale_of_a_group(sold: (Backend, usize) [(Mysql, SHARED)]);
}
