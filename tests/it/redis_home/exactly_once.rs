//! A process that dies on the way from the journal to the ledger: every entry is applied once.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD_NO_PAD as BASE64;
use rstest::rstest;
use stocklock_testkit::eventually;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use super::{assert_sold, audit, command, create, journals, order, try_audit};
use crate::faults::{Ledger, SOON, send, until};
use crate::support::process::Process;
use crate::support::proxy::{Hold, Mode, Proxy};
use crate::support::services::{Backend, PrivateServer, TestRedis, fresh_redis};

const SKU: &str = "hot";
const STOCK: i64 = 1_000_000;
/// How often each fault is hit.
const CYCLES: usize = 3;
/// How often a fault is tried until it is hit. On a slow machine the surviving consumer may take
/// over the entries before the test has looked at them.
const TRIES: usize = 4;
/// How many units are sold at once.
const AT_ONCE: usize = 8;
/// A consumer takes over what another one has read after three seconds; the rest is slack.
const APPLIED_WITHIN: Duration = Duration::from_secs(10);

/// What dies, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Death {
    /// A consumer that has committed entries but not acknowledged them.
    BeforeAck,
    /// A consumer that has read entries and is about to commit them.
    BeforeCommit,
    /// The database, while a consumer is about to commit.
    OfDatabase,
}

/// Two replicas whose consumers share the journals. One of them is behind proxies, which can hold
/// its requests.
struct Scene {
    backend: Backend,
    server: PrivateServer,
    redis: TestRedis,
    to_database: (Proxy, String),
    to_redis: (Proxy, String),
    survivor: Process,
    /// The operations that were acknowledged to clients.
    sold: Vec<String>,
}

impl Scene {
    async fn open(backend: Backend) -> Self {
        let server = PrivateServer::start(backend).await;
        let redis = fresh_redis().await;
        let to_database = Proxy::before(server.url()).await;
        let to_redis = Proxy::before(&redis.url).await;
        let survivor = Process::lab(server.url(), &[("REDIS_URL", &redis.url)]).await;
        create(&survivor, SKU, STOCK).await;
        let mut scene = Self {
            backend,
            server,
            redis,
            to_database,
            to_redis,
            survivor,
            sold: Vec::new(),
        };
        // Creates the journal.
        scene.sell().await;
        scene
    }

    /// Sells some units, all at once.
    async fn sell(&mut self) {
        let orders = (0..AT_ONCE).map(|_| send(order(&self.survivor, "redis-lua", SKU)));
        for answer in orders.collect::<JoinSet<_>>().join_all().await {
            assert_eq!(answer.status, 200, "{answer:?}");
            self.sold.push(answer.id);
        }
    }

    /// Sells until the proxy holds the request of the consumer behind it.
    async fn sell_until(&mut self, held: &Hold) {
        let started = Instant::now();
        while timeout(Duration::from_millis(5), held.held())
            .await
            .is_err()
        {
            self.sell().await;
            assert!(started.elapsed() < SOON, "the consumer reads no entries");
        }
    }

    /// Lets one of them die in the middle of its work; returns whether the journals show that it
    /// was between the two steps.
    async fn die(&mut self, death: Death) -> bool {
        let variables = [("REDIS_URL", &*self.to_redis.1)];
        let mut victim = Process::lab(&self.to_database.1, &variables).await;
        let commit = self.backend.commit_message();
        let held = match death {
            Death::BeforeAck => self.to_redis.0.hold_request(&ack(&self.redis.url).await),
            Death::BeforeCommit | Death::OfDatabase => self.to_database.0.hold_request(commit),
        };
        self.sell_until(&held).await;
        if death == Death::OfDatabase {
            self.server.kill9();
            held.let_go();
            self.sell().await;
            self.server.restart().await;
            self.assert_all_applied().await;
            return true;
        }
        victim.kill9();
        // What the victim has sent does not arrive either.
        self.set_proxies(Mode::Refuse).await;
        drop(held);
        let (recorded, missing) = self.in_journals().await;
        self.set_proxies(Mode::Pass).await;
        match death {
            Death::BeforeAck => recorded > 0,
            _ => missing > 0,
        }
    }

    async fn set_proxies(&self, mode: Mode) {
        for proxy in [&self.to_database.0, &self.to_redis.0] {
            proxy.set(mode).await;
        }
    }

    /// Repeats a death until it is proven.
    async fn die_in_the_middle(&mut self, death: Death) {
        for _ in 0..TRIES {
            if self.die(death).await {
                return;
            }
        }
        panic!("{death:?} was not hit in {TRIES} tries");
    }

    /// How many movements in the journals are also in SQL, and how many are not.
    async fn in_journals(&self) -> (usize, usize) {
        let mut waiting = Vec::new();
        for journal in journals(&self.redis.url).await {
            let range = ["XRANGE", &journal, "-", "+"];
            let entries: Vec<(String, HashMap<String, String>)> =
                command(&self.redis.url, &range).await;
            for (_, fields) in entries {
                waiting.extend(fields["movements"].lines().map(operation));
            }
        }
        let recorded = Ledger::at(self.server.url()).sold(SKU).await;
        let recorded: BTreeSet<_> = recorded.into_iter().collect();
        let found = waiting.iter().filter(|id| recorded.contains(*id)).count();
        (found, waiting.len() - found)
    }

    /// Returns when no entry waits; asserts that SQL has each acknowledged sale once.
    async fn assert_all_applied(&self) {
        // The database may have been started just now.
        eventually("nothing is pending", APPLIED_WITHIN, || async {
            let audit = try_audit(&self.survivor, SKU).await;
            audit.is_some_and(|audit| audit["pending"] == 0)
        })
        .await;
        let sold = i64::try_from(self.sold.len()).expect("not so many");
        let audit = audit(&self.survivor, SKU).await;
        assert_sold(&audit, sold);
        assert_eq!(audit["on_hand"], STOCK - sold, "{audit}");
        let ledger = Ledger::at(self.server.url());
        ledger.assert_sold(SKU, &self.sold).await;
        assert_eq!(ledger.audit(SKU).await.on_hand, STOCK - sold);
        // An entry is acknowledged a moment after its commit.
        until("the journals are empty", async || {
            self.in_journals().await == (0, 0)
        })
        .await;
    }
}

/// Goal: an entry of the journals is in SQL once, whatever dies while it is applied. It is there
/// soon, because another replica takes over.
///
/// Method: the consumers of two replicas work side by side while units are sold. One of them is
/// held between two steps and killed, or the database is; several times each.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_entry_is_recorded_once_although_processes_die(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let mut scene = Scene::open(backend).await;
    for _ in 0..CYCLES {
        scene.die_in_the_middle(Death::BeforeAck).await;
        scene.die_in_the_middle(Death::BeforeCommit).await;
        scene.assert_all_applied().await;
        scene.die_in_the_middle(Death::OfDatabase).await;
    }
}

/// Part of the request that acknowledges entries: the end of its second key, and its third key. There
/// must be one journal.
pub(super) async fn ack(redis: &str) -> Vec<u8> {
    let journal = &journals(redis).await[0];
    let lease = journal.replace("journal", "consumer");
    format!(":journal\r\n${}\r\n{lease}", lease.len()).into_bytes()
}

/// The operation in a line of an entry: after the key, the units left, and the units added.
fn operation(line: &str) -> String {
    let text = line.split('\t').nth(3).expect("an operation");
    let bytes = BASE64.decode(text).expect("Base64");
    Uuid::from_slice(&bytes).expect("16 bytes").to_string()
}
