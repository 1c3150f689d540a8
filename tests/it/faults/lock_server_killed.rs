//! The server of the locks killed in the middle of a race, and started again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use reqwest::{Method, RequestBuilder};
use serde_json::json;
use stocklock::strategy::{Service, Strategy};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::{Answer, KEY, Ledger, SOON, lock_servers, new_key, send, until};
use crate::support::process::Process;
use crate::support::services::{Backend, PrivateServer, fresh_database};

/// How many buy at once under a lock.
const LOCKING: usize = 24;
/// How many buy at once without one.
const OTHERS: usize = 6;
const STOCK: i64 = 100_000;
/// What must be sold under the lock before, between and after the kills.
const SALES: usize = 60;
/// What must be sold without it while the server is away.
const OTHER_SALES: usize = 20;
const KILLS: usize = 2;
/// The service's own default, from its command line.
const WAIT_LIMIT: Duration = Duration::from_secs(2);
const SECOND: Duration = Duration::from_secs(1);
/// What a busy machine may add to a wait: on one that built something meanwhile, it was 1.5 s.
const DELAY: Duration = Duration::from_millis(2_500);

/// What the buyers of one SKU share.
#[derive(Debug, Default)]
struct Race {
    sold: AtomicUsize,
    over: AtomicBool,
}

impl Race {
    async fn goes_on(&self, sales: usize) {
        let before = self.sold.load(Ordering::SeqCst);
        until("buyers buy", 2 * SOON, || async {
            self.sold.load(Ordering::SeqCst) >= before + sales
        })
        .await;
    }

    /// Buys until it is over, each unit under a key of its own. Answers the operations that were
    /// acknowledged.
    async fn buyer(self: Arc<Self>, order: RequestBuilder, protection: Protection) -> Vec<String> {
        let mut acknowledged = Vec::new();
        while !self.over.load(Ordering::SeqCst) {
            acknowledged.push(buy(&order, &new_key(), protection).await);
            self.sold.fetch_add(1, Ordering::SeqCst);
        }
        acknowledged
    }
}

/// What a buyer relies on.
#[derive(Debug, Clone, Copy)]
enum Protection {
    /// A lock of this service, which goes away.
    Lock(Service),
    /// The database, which stays.
    Database,
}

/// Buys one unit, and repeats the request with its key for as long as it is not decided.
async fn buy(order: &RequestBuilder, key: &str, protection: Protection) -> String {
    let started = Instant::now();
    loop {
        let asked = Instant::now();
        let copy = order.try_clone().expect("the body is in memory");
        let answer = send(copy.header(KEY, key)).await;
        let answer = answer.expect("a replica always answers");
        if answer.status == 200 {
            return answer.id;
        }
        assert!(answer.asks_for_retry(), "{answer:?}");
        match protection {
            Protection::Lock(service) if answer.code == "strategy-unavailable" => {
                assert_names(&answer, service);
                let took = asked.elapsed();
                assert!(took < WAIT_LIMIT + DELAY, "{took:?}");
            }
            Protection::Lock(_) => {}
            // The database may be slow when all the machine is, whatever the locks do.
            Protection::Database => assert_eq!(answer.code, "contended", "{answer:?}"),
        }
        assert!(started.elapsed() < 2 * SOON, "still {answer:?}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// Whoever reads it knows what is down, where that is configured, and that it may come back.
#[track_caller]
fn assert_names(answer: &Answer, service: Service) {
    let told = (answer.status, answer.code.as_str(), answer.retry_after);
    assert_eq!(told, (503, "strategy-unavailable", true), "{answer:?}");
    assert!(answer.detail.contains(service.title()), "{answer:?}");
    assert!(answer.detail.contains(service.variable()), "{answer:?}");
}

/// Two replicas: one whose strategy needs the service, one whose strategy does not. Both are in lab
/// mode, and so sell under either.
struct Replicas {
    service: Service,
    needy: Process,
    other: Process,
}

impl Replicas {
    async fn start(database: &str, service: Service, server: &str) -> Self {
        let variables = [(service.variable(), server)];
        let strategy = ("STRATEGY", lock_servers::strategy(service).name());
        let needy = [variables[0], strategy];
        let (needy, other) = tokio::join!(
            Process::lab(database, &needy),
            Process::lab(database, &variables)
        );
        Self {
            service,
            needy,
            other,
        }
    }

    fn order(&self, number: usize, strategy: Strategy, sku: &str) -> RequestBuilder {
        let replica = if number.is_multiple_of(2) {
            &self.needy
        } else {
            &self.other
        };
        let path = format!("/stock/deduct?strategy={strategy}");
        let order = replica.request(Method::POST, &path);
        order.json(&json!({ "sku": sku }))
    }

    /// While the server is away: alive, ready or not as the replica's own strategy has it, and
    /// honest to who buys, from the first moment on and again and again.
    async fn tell_of_it(&self) {
        let mut asked = JoinSet::new();
        for number in 0..4 {
            for (replica, ready) in [(&self.needy, 503), (&self.other, 200)] {
                let health = replica.request(Method::GET, "/healthz");
                let readiness = replica.request(Method::GET, "/readyz");
                asked.spawn(lives_and_tells(health, readiness, ready));
            }
            let service = self.service;
            let order = self.order(number, lock_servers::strategy(service), "cold");
            asked.spawn(async move {
                let answer = timeout(WAIT_LIMIT + DELAY, send(order)).await;
                let answer = answer.expect("it comes in time").expect("it comes");
                assert_names(&answer, service);
            });
            sleep(SECOND / 4).await;
        }
        asked.join_all().await;
    }
}

/// A replica lives, and says at once whether it is ready: as fast as it says that it lives, which
/// depends on nothing but the machine.
async fn lives_and_tells(health: RequestBuilder, readiness: RequestBuilder, ready: u16) {
    let (alive, told) = tokio::join!(took(health, 200), took(readiness, ready));
    assert!(told < alive + SECOND, "{told:?}, {alive:?}");
}

/// How long the answer took, which has this status.
async fn took(request: RequestBuilder, status: u16) -> Duration {
    let asked = Instant::now();
    let answer = timeout(DELAY, send(request)).await;
    let answer = answer.expect("it comes in time").expect("it comes");
    assert_eq!(answer.status, status, "{answer:?}");
    asked.elapsed()
}

/// Goal: while the locks' server is away, who needs it is told so in time, and others are not
/// disturbed; when it is back, they sell again without anybody's help; nothing that was
/// acknowledged is lost, and nothing else is sold.
///
/// Method: 24 buyers under the lock and 6 without one at two replicas; `kill -9` of the server
/// while they buy, twice.
#[rstest::rstest]
#[case(Service::Redis, Backend::Mysql)]
#[case(Service::Redis, Backend::Postgres)]
#[case(Service::Zookeeper, Backend::Mysql)]
#[case(Service::Zookeeper, Backend::Postgres)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_sold_twice_when_the_locks_server_is_killed(
    #[case] service: Service,
    #[case] backend: Backend,
) {
    let server = match service {
        Service::Redis => PrivateServer::redis(&[]).await,
        _ => PrivateServer::zookeeper().await,
    };
    let database = fresh_database(backend).await;
    let replicas = Replicas::start(&database.url, service, server.url()).await;
    let locking = lock_servers::strategy(service);
    let races = [
        ("hot", locking, Protection::Lock(service), LOCKING),
        ("other", Strategy::SingleSql, Protection::Database, OTHERS),
    ];
    replicas.needy.set_level("cold", STOCK).await;
    let mut buyers: Vec<(Arc<Race>, JoinSet<Vec<String>>)> = Vec::new();
    for (sku, strategy, protection, count) in races {
        replicas.needy.set_level(sku, STOCK).await;
        let race = Arc::<Race>::default();
        let buying = |number| {
            let order = replicas.order(number, strategy, sku);
            Arc::clone(&race).buyer(order, protection)
        };
        let buying = (0..count).map(buying).collect();
        buyers.push((race, buying));
    }
    let (hot, others) = (Arc::clone(&buyers[0].0), Arc::clone(&buyers[1].0));
    for _ in 0..KILLS {
        hot.goes_on(SALES).await;
        server.kill9();
        tokio::join!(replicas.tell_of_it(), others.goes_on(OTHER_SALES));
        server.restart().await;
        until("the service is ready again", SOON, || async {
            let ready = replicas.needy.request(Method::GET, "/readyz");
            ready.send().await.is_ok_and(|ready| ready.status() == 200)
        })
        .await;
    }
    hot.goes_on(SALES).await;

    let ledger = Ledger::at(&database.url);
    for ((sku, ..), (race, buyers)) in races.into_iter().zip(buyers) {
        race.over.store(true, Ordering::SeqCst);
        let acknowledged = buyers.join_all().await.concat();
        let once: BTreeSet<_> = acknowledged.iter().cloned().collect();
        assert_eq!(once.len(), acknowledged.len(), "{sku}: answered twice");
        let recorded: BTreeSet<_> = ledger.sales(sku).await.into_iter().collect();
        assert_eq!(recorded, once, "{sku}");
        let audit = ledger.audit(sku).await;
        assert!(audit.consistent(), "{sku}: {audit:?}");
        assert_eq!(audit.on_hand, STOCK - audit.sold, "{sku}");
    }
    assert!(ledger.sales("cold").await.is_empty());
}
