//! Redis killed in the middle of a race, and started again.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use redis::FromRedisValue;
use reqwest::RequestBuilder;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::requests::{create, settled};
use crate::faults::{KEY, Ledger, SOON, new_key, send, until};
use crate::support::app::TestApp;
use crate::support::services::{Backend, PrivateServer};

const STRATEGIES: [&str; 2] = ["redis-lua", "redis-watch"];
/// How many buy at once, for each strategy.
const BUYERS: usize = 18;
const STOCK: i64 = 100_000;
/// What must be sold before, between and after the kills.
const SALES: usize = 60;
/// How often the server is killed.
const KILLS: usize = 3;

/// What the buyers share.
#[derive(Debug, Default)]
struct Race {
    sold: AtomicUsize,
    refused: AtomicUsize,
    over: AtomicBool,
}

/// Buys until the race is over, each unit under a key of its own, which is repeated for as long as
/// the outcome is not clear. Answers the operations that were acknowledged.
async fn buyer(order: RequestBuilder, race: Arc<Race>) -> Vec<String> {
    let mut acknowledged = Vec::new();
    while !race.over.load(Ordering::SeqCst) {
        acknowledged.push(buy(&order, &new_key(), &race).await);
        race.sold.fetch_add(1, Ordering::SeqCst);
    }
    acknowledged
}

async fn buy(order: &RequestBuilder, key: &str, race: &Race) -> String {
    let started = Instant::now();
    loop {
        let copy = order.try_clone().expect("the body is in memory");
        let answer = send(copy.header(KEY, key)).await;
        let answer = answer.expect("a replica always answers");
        if answer.status == 200 {
            return answer.id;
        }
        assert!(answer.asks_for_retry(), "{answer:?}");
        assert!(started.elapsed() < 2 * SOON, "still {answer:?}");
        race.refused.fetch_add(1, Ordering::SeqCst);
        sleep(Duration::from_millis(10)).await;
    }
}

/// Buyers at two replicas, under both strategies of Redis' own, each with a SKU of its name.
struct Scene {
    server: PrivateServer,
    app: TestApp,
    ledger: Ledger,
    race: Arc<Race>,
    buyers: Vec<JoinSet<Vec<String>>>,
}

impl Scene {
    async fn open(appendfsync: &str) -> Self {
        let log = ["--appendonly", "yes", "--appendfsync", appendfsync];
        let server = PrivateServer::redis(&log).await;
        let flags = ["--redis-url", server.url()];
        let app = TestApp::with_flags(Backend::Postgres, 2, &flags).await;
        let race = Arc::new(Race::default());
        let mut buyers = Vec::new();
        for strategy in STRATEGIES {
            create(&app, strategy, STOCK).await;
            let order = json!({ "sku": strategy });
            let buyer = |number| buyer(app.deduct(number, strategy, &order), Arc::clone(&race));
            buyers.push((0..BUYERS).map(buyer).collect());
        }
        Self {
            ledger: Ledger::at(&app.database_url),
            server,
            app,
            race,
            buyers,
        }
    }

    async fn ask<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let client = redis::Client::open(self.server.url()).expect("its URL is one");
        let connection = client.get_multiplexed_async_connection().await;
        let mut connection = connection.expect("it lets the test in");
        let mut command = redis::cmd(words[0]);
        let answer = command.arg(&words[1..]).query_async(&mut connection).await;
        answer.expect("it does as it is told")
    }

    async fn more_is(&self, what: &str, counted: &AtomicUsize, more: usize) {
        let before = counted.load(Ordering::SeqCst);
        until(what, 2 * SOON, || async {
            counted.load(Ordering::SeqCst) >= before + more
        })
        .await;
    }

    async fn more_is_sold(&self) {
        self.more_is("buyers buy", &self.race.sold, SALES).await;
    }

    /// Kills the server, and returns when every buyer must have noticed.
    async fn kill(&mut self) {
        self.server.kill9();
        let all = 2 * BUYERS;
        self.more_is("buyers are refused", &self.race.refused, all)
            .await;
    }

    /// Ends the race; for each strategy what was acknowledged.
    async fn over(&mut self) -> Vec<Vec<String>> {
        self.race.over.store(true, Ordering::SeqCst);
        let mut acknowledged = Vec::new();
        for buyers in std::mem::take(&mut self.buyers) {
            let sold = buyers.join_all().await.concat();
            let once: BTreeSet<_> = sold.iter().collect();
            assert_eq!(once.len(), sold.len(), "answered twice");
            acknowledged.push(sold);
        }
        acknowledged
    }

    /// The operations that sold, by the ledger; none of them twice.
    async fn recorded(&self, sku: &str) -> BTreeSet<String> {
        let sales = self.ledger.sales(sku).await;
        let once: BTreeSet<_> = sales.iter().cloned().collect();
        assert_eq!(once.len(), sales.len(), "{sku}: recorded twice");
        once
    }

    /// What Redis itself has left.
    async fn on_hand(&self, sku: &str) -> i64 {
        let keys: Vec<String> = self.ask(&["KEYS", &format!("stock:*:{sku}:main")]).await;
        self.ask(&["HGET", &keys[0], "on_hand"]).await
    }

    /// The file that Redis appends its changes to.
    async fn log(&self) -> PathBuf {
        let (_, directory): (String, String) = self.ask(&["CONFIG", "GET", "dir"]).await;
        let files =
            fs::read_dir(PathBuf::from(directory).join("appendonlydir")).expect("it keeps a log");
        let mut files = files.map(|file| file.expect("it can be listed").path());
        let changes = files.find(|path| path.to_string_lossy().ends_with(".incr.aof"));
        changes.expect("it appends to a file")
    }
}

fn count(number: usize) -> i64 {
    i64::try_from(number).expect("not so many")
}

/// Goal: under `appendfsync always` what was acknowledged is there once, and nothing else is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_sold_twice_when_redis_is_killed() {
    let mut scene = Scene::open("always").await;
    for _ in 0..KILLS {
        scene.more_is_sold().await;
        scene.kill().await;
        scene.server.restart().await;
    }
    scene.more_is_sold().await;
    let acknowledged = scene.over().await;
    for (sku, acknowledged) in STRATEGIES.into_iter().zip(acknowledged) {
        let audit = settled(&scene.app, sku).await;
        let acknowledged: BTreeSet<_> = acknowledged.into_iter().collect();
        assert_eq!(scene.recorded(sku).await, acknowledged, "{sku}");
        let sold = count(acknowledged.len());
        assert_eq!(audit["on_hand"], STOCK - sold, "{sku}: {audit}");
        assert_eq!(audit["consistent"], true, "{sku}: {audit}");
    }
    scene.app.stop().await;
}

/// Goal: what Redis lost under `appendfsync everysec`, the audit counts: units sold that the counter
/// does not know of any more. Nobody is told of a defect.
///
/// Method: the machine crashes, so that the end of Redis' log never came to the disk. By then SQL
/// had some of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_redis_lost_in_a_crash_is_shown_as_drift() {
    let mut scene = Scene::open("everysec").await;
    scene.more_is_sold().await;
    let log = scene.log().await;
    let on_disk = fs::metadata(&log).expect("it is there").len();
    // Those before that point, with those that were under way.
    let before = scene.race.sold.load(Ordering::SeqCst) + 2 * BUYERS;
    until(
        "SQL has sales that are not on the disk",
        2 * SOON,
        || async {
            let mut recorded = 0;
            for sku in STRATEGIES {
                recorded += scene.recorded(sku).await.len();
            }
            recorded >= before + SALES
        },
    )
    .await;
    scene.kill().await;
    let file = OpenOptions::new().write(true).open(&log);
    let crash = file.expect("it is ours").set_len(on_disk);
    crash.expect("it can be cut");
    scene.server.restart().await;
    scene.more_is_sold().await;

    let acknowledged = scene.over().await;
    let mut drift = 0;
    for (sku, acknowledged) in STRATEGIES.into_iter().zip(acknowledged) {
        let audit = settled(&scene.app, sku).await;
        let recorded = scene.recorded(sku).await;
        let counted = STOCK - scene.on_hand(sku).await;
        assert_eq!(audit["sold"], count(recorded.len()), "{sku}: {audit}");
        assert_eq!(
            audit["drift"],
            count(recorded.len()) - counted,
            "{sku}: {audit}"
        );
        assert_eq!(audit["consistent"], audit["drift"] == 0, "{sku}: {audit}");
        drift += audit["drift"].as_i64().expect("a number");
        // What not even SQL has was lost by Redis, not on the way.
        let missing = acknowledged.iter().filter(|id| !recorded.contains(*id));
        let forgotten = count(acknowledged.len()) - counted;
        assert!(
            count(missing.count()) <= forgotten,
            "{sku}: {forgotten} forgotten"
        );
    }
    assert!(drift >= count(SALES), "only {drift}");
    scene.app.stop().await;
}
