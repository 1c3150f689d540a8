//! Who dies on the way from the journals to the ledger: every entry is in SQL once all the same.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD_NO_PAD as BASE64;
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use crate::faults::{Ledger, SOON, send, until};
use crate::support::process::Process;
use crate::support::proxy::{Hold, Mode, Proxy};
use crate::support::services::{Backend, PrivateServer, TestRedis, fresh_redis};

const SKU: &str = "hot";
const STOCK: i64 = 1_000_000;
/// How often each of the three dies.
const CYCLES: usize = 7;
/// How many units are sold at once.
const AT_ONCE: usize = 8;
/// Consumers take over what another one has read for two seconds; the rest is slack.
const SETTLED_WITHIN: Duration = Duration::from_secs(10);

/// The request that lets entries depart from a journal: the second of its keys, and the group.
const DEPARTURE: &[u8] = b":journal\r\n$6\r\nledger\r\n";

/// Who dies, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Death {
    /// A consumer that has committed entries and not acknowledged them.
    BeforeTheAcknowledgement,
    /// A consumer that has read entries, and is about to commit them.
    BeforeTheCommit,
    /// The database under a transaction that is about to be committed.
    OfTheDatabase,
}

/// Two replicas that share the work, one of them behind proxies, where it can be caught.
struct Scene {
    backend: Backend,
    server: PrivateServer,
    redis: TestRedis,
    to_database: (Proxy, String),
    to_redis: (Proxy, String),
    survivor: Process,
    /// The operations that were acknowledged.
    sold: Vec<String>,
    /// How many of the dead left entries in the journals that were in SQL already, and that were not.
    left_recorded: usize,
    left_missing: usize,
}

impl Scene {
    async fn open(backend: Backend) -> Self {
        let server = PrivateServer::start(backend).await;
        let redis = fresh_redis().await;
        let to_database = Proxy::before(server.url()).await;
        let to_redis = Proxy::before(&redis.url).await;
        let survivor = Process::lab(server.url(), &[("REDIS_URL", &redis.url)]).await;
        let put = survivor.request(Method::PUT, &format!("/stock/{SKU}"));
        let put = put.json(&json!({"on_hand": STOCK, "home": "redis"}));
        assert_eq!(put.send().await.expect("it answers").status(), 201);
        Self {
            backend,
            server,
            redis,
            to_database,
            to_redis,
            survivor,
            sold: Vec::new(),
            left_recorded: 0,
            left_missing: 0,
        }
    }

    /// Sells some units, all at once.
    async fn sell(&mut self) {
        let mut orders = JoinSet::new();
        for _ in 0..AT_ONCE {
            let order = self
                .survivor
                .request(Method::POST, "/stock/deduct?strategy=redis-lua");
            orders.spawn(send(order.json(&json!({"sku": SKU}))));
        }
        for answer in orders.join_all().await {
            let answer = answer.expect("it answers");
            assert_eq!(answer.status, 200, "{answer:?}");
            self.sold.push(answer.id);
        }
    }

    /// Sells until the consumer behind the proxies is held where it shall be.
    async fn sell_until(&mut self, held: &Hold) {
        let started = Instant::now();
        while timeout(Duration::from_millis(5), held.held())
            .await
            .is_err()
        {
            self.sell().await;
            assert!(started.elapsed() < SOON, "it takes no part in the work");
        }
    }

    /// Lets one of them die in the middle of its work.
    async fn survive(&mut self, death: Death) {
        let variables = [("REDIS_URL", &*self.to_redis.1)];
        let mut victim = Process::lab(&self.to_database.1, &variables).await;
        let held = match death {
            Death::BeforeTheAcknowledgement => self.to_redis.0.hold_request(DEPARTURE),
            Death::BeforeTheCommit | Death::OfTheDatabase => {
                let commit = self.backend.commit_message();
                self.to_database.0.hold_request(commit)
            }
        };
        self.sell_until(&held).await;
        if death == Death::OfTheDatabase {
            self.server.kill9();
            held.let_go();
            self.sell().await;
            self.server.restart().await;
            self.settled().await;
            return;
        }
        victim.kill9();
        // Nor does what it has sent arrive.
        for proxy in [&self.to_database.0, &self.to_redis.0] {
            proxy.set(Mode::Refuse).await;
        }
        drop(held);
        let (recorded, missing) = self.journaled().await;
        match death {
            Death::BeforeTheAcknowledgement => self.left_recorded += usize::from(recorded > 0),
            _ => self.left_missing += usize::from(missing > 0),
        }
        for proxy in [&self.to_database.0, &self.to_redis.0] {
            proxy.set(Mode::Pass).await;
        }
    }

    /// How many of the entries that stand in the journals are in SQL, and how many are not.
    async fn journaled(&self) -> (usize, usize) {
        let client = redis::Client::open(&*self.redis.url).expect("its URL is one");
        let connection = client.get_multiplexed_async_connection().await;
        let mut connection = connection.expect("it lets the test in");
        let mut keys = redis::cmd("KEYS");
        let journals: Vec<String> = keys
            .arg("journal:*}")
            .query_async(&mut connection)
            .await
            .expect("it answers");
        let mut waiting = Vec::new();
        for journal in journals {
            let mut range = redis::cmd("XRANGE");
            let range = range.arg(journal).arg("-").arg("+");
            let entries: Vec<(String, HashMap<String, String>)> = range
                .query_async(&mut connection)
                .await
                .expect("it answers");
            for (_, fields) in entries {
                waiting.extend(fields["movements"].lines().map(operation));
            }
        }
        let recorded = Ledger::at(self.server.url()).sales(SKU).await;
        let recorded: BTreeSet<_> = recorded.into_iter().collect();
        let found = waiting.iter().filter(|id| recorded.contains(*id)).count();
        (found, waiting.len() - found)
    }

    /// What the surviving replica says of the stock.
    async fn audit(&self) -> Option<Value> {
        let path = format!("/stock/{SKU}/audit");
        let answer = self.survivor.request(Method::GET, &path).send().await;
        let answer = answer.expect("it answers");
        // The database may have come back just now.
        if answer.status() != 200 {
            assert_eq!(answer.status(), 503);
            return None;
        }
        let audit: Value = answer.json().await.expect("JSON");
        Some(audit["warehouses"][0].clone())
    }

    /// Nothing waits any more, and all agree.
    async fn settled(&self) {
        until("nothing is pending", SETTLED_WITHIN, || async {
            let audit = self.audit().await;
            audit.is_some_and(|audit| audit["pending"] == 0)
        })
        .await;
        let sold = i64::try_from(self.sold.len()).expect("not so many");
        let audit = self.audit().await.expect("it is back");
        assert_eq!(audit["consistent"], true, "{audit}");
        assert_eq!(
            (&audit["sold"], &audit["on_hand"]),
            (&json!(sold), &json!(STOCK - sold))
        );
        let ledger = Ledger::at(self.server.url());
        let mut recorded = ledger.sales(SKU).await;
        let mut acknowledged = self.sold.clone();
        recorded.sort();
        acknowledged.sort();
        assert_eq!(recorded, acknowledged, "each once");
        let mirror = ledger.audit(SKU).await;
        assert_eq!(mirror.on_hand, STOCK - sold, "{mirror:?}");
        // In SQL a moment before they depart.
        until("the journals are empty", SOON, || async {
            self.journaled().await == (0, 0)
        })
        .await;
    }
}

/// Goal: an entry of the journals is in SQL once, whoever died with it in hand, and it is there
/// soon, for another replica takes over.
///
/// Method: two replicas consume side by side while units are sold; again and again one of them is
/// caught between two steps and killed, or the database is.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_entry_is_recorded_once_whoever_dies_with_it(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let mut scene = Scene::open(backend).await;
    for _ in 0..CYCLES {
        scene.survive(Death::BeforeTheAcknowledgement).await;
        scene.survive(Death::BeforeTheCommit).await;
        scene.settled().await;
        scene.survive(Death::OfTheDatabase).await;
    }
    // Now and then a slow machine looks only after the survivor has taken over.
    for (left, step) in [
        (scene.left_recorded, "an acknowledgement"),
        (scene.left_missing, "a commit"),
    ] {
        assert!(
            2 * left > CYCLES,
            "only {left} of {CYCLES} died before {step}"
        );
    }
}

/// The operation of a journal's line: the units that were left, and a movement that begins with it.
fn operation(line: &str) -> String {
    let (_, movement) = line.split_once(' ').expect("two words");
    let movement: Value = serde_json::from_str(movement).expect("JSON");
    let text = movement[0].as_str().expect("an operation");
    let bytes = BASE64.decode(text).expect("Base64");
    Uuid::from_slice(&bytes).expect("16 bytes").to_string()
}
