//! A Redis that says nothing any more: what needs it is refused in time, and the rest goes on.

use std::time::Duration;

use reqwest::Method;
use rstest::rstest;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::faults::{Answer, SOON, send, until};
use crate::support::process::Process;
use crate::support::proxy::{Mode, Proxy};
use crate::support::services::{Backend, TestDatabase, TestRedis, fresh_database, fresh_redis};

/// The service's own default for the longest wait for a connection, or for an answer.
const LIMIT: Duration = Duration::from_secs(2);
/// For a request that does not need Redis: who waits for it, waits for the limit.
const AT_ONCE: Duration = Duration::from_millis(1_500);
const BUYERS: usize = 400;
/// More than there are connections for those who watch a level; each of them starts anew whenever
/// another one was first.
const EACH_FOR_ITSELF: usize = 64;
const PROBES: usize = 20;
/// Between two sales that need no Redis.
const PAUSE: Duration = Duration::from_millis(20);

/// A replica that sells in Redis, through a proxy, and in SQL.
struct Scene {
    replica: Process,
    proxy: Proxy,
    _redis: TestRedis,
    _database: TestDatabase,
}

impl Scene {
    async fn open() -> Self {
        let (database, redis) = (fresh_database(Backend::Sqlite).await, fresh_redis().await);
        let (proxy, url) = Proxy::before(&redis.url).await;
        let variables = [("REDIS_URL", &*url), ("STRATEGY", "redis-lua")];
        let replica = Process::lab(&database.url, &variables).await;
        for (sku, home) in [("hot", "redis"), ("cold", "sql")] {
            let put = replica.request(Method::PUT, &format!("/stock/{sku}"));
            let put = put.json(&json!({"on_hand": 100_000, "home": home}));
            assert_eq!(put.send().await.expect("it answers").status(), 201);
        }
        let scene = Self {
            replica,
            proxy,
            _redis: redis,
            _database: database,
        };
        assert_eq!(scene.sell("hot", "redis-lua").await.status, 200);
        scene
    }

    fn sell(&self, sku: &str, strategy: &str) -> impl Future<Output = Answer> + 'static {
        let path = format!("/stock/deduct?strategy={strategy}");
        let order = self.replica.request(Method::POST, &path);
        let sent = send(order.json(&json!({ "sku": sku })));
        async { sent.await.expect("it answers") }
    }

    /// All of them at once.
    fn crowd(&self, size: usize, strategy: &str) -> JoinSet<Told> {
        let buyer = || {
            let (sale, started) = (self.sell("hot", strategy), Instant::now());
            async move { (sale.await, started.elapsed()) }
        };
        (0..size).map(|_| buyer()).collect()
    }

    /// How long all of them need on this machine, at this hour, while Redis answers.
    async fn usual(&self, size: usize, strategy: &str) -> Duration {
        let told = self.crowd(size, strategy).join_all().await;
        assert!(told.iter().all(|(answer, _)| answer.status == 200));
        slowest(&told)
    }

    /// Sells in SQL until the others are done; answers what they were told.
    async fn sell_in_sql(&self, others: &mut JoinSet<Told>) -> Vec<Told> {
        let mut told = Vec::new();
        while !others.is_empty() {
            let sold = timeout(AT_ONCE, self.sell("cold", "single-sql")).await;
            assert_eq!(sold.expect("it needs no Redis").status, 200);
            sleep(PAUSE).await;
            while let Some(other) = others.try_join_next() {
                told.push(other.expect("no panic"));
            }
        }
        told
    }
}

/// An answer, and how long it took.
type Told = (Answer, Duration);

fn slowest(told: &[Told]) -> Duration {
    told.iter().map(|&(_, took)| took).max().expect("somebody")
}

/// Goal: where no connection can be had, nothing was sent; everybody is told so after one limit,
/// however many they are, and stock in SQL is sold meanwhile as ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_redis_costs_each_request_its_limit_and_those_of_sql_nothing() {
    let scene = Scene::open().await;
    let usual = scene.usual(BUYERS, "redis-lua").await;
    scene.proxy.set(Mode::Blackhole).await;
    // This one finds the connection that has died; what it has sent may have arrived.
    let unknown = scene.sell("hot", "redis-lua").await;
    assert!(matches!(unknown.status, 503 | 504), "{unknown:?}");

    let mut probes: JoinSet<_> = (0..PROBES)
        .map(|_| send(scene.replica.request(Method::GET, "/readyz")))
        .collect();
    let mut buyers = scene.crowd(BUYERS, "redis-lua");
    let refused = scene.sell_in_sql(&mut buyers).await;
    assert_eq!(refused.len(), BUYERS);
    for (answer, _) in &refused {
        assert_eq!(answer.status, 503, "{answer:?}");
        assert!(answer.retry_after, "{answer:?}");
    }
    let slowest = slowest(&refused);
    assert!(
        slowest < LIMIT * 3 / 2 + 3 * usual,
        "{slowest:?}, {usual:?}"
    );
    while let Some(probe) = probes.join_next().await {
        let probe = probe.expect("no panic").expect("it answers");
        assert_eq!(probe.status, 503, "{probe:?}");
    }

    scene.proxy.set(Mode::Pass).await;
    until("it sells again", SOON, || async {
        scene.sell("hot", "redis-lua").await.status == 200
    })
    .await;
    assert_eq!(
        scene
            .replica
            .counted("http_responses_total{status=\"500\"}")
            .await,
        0
    );
}

/// Nobody knows of it yet when they all come: those whom no message has carried are told as soon as
/// the first ones know.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_wait_for_their_turn_learn_of_the_silence_with_the_first() {
    let scene = Scene::open().await;
    let usual = scene.usual(BUYERS, "redis-lua").await;
    scene.proxy.set(Mode::Blackhole).await;
    let told = scene.crowd(BUYERS, "redis-lua").join_all().await;
    assert!(
        told.iter()
            .all(|(answer, _)| matches!(answer.status, 503 | 504)),
        "{told:?}"
    );
    let early = |&&(ref answer, took): &&Told| answer.status == 503 && took < LIMIT * 3 / 2 + usual;
    let early = told.iter().filter(early).count();
    // Two messages of a script may have been under way, with 64 deductions each.
    assert!(early >= BUYERS - 128, "{early}, {usual:?}");
}

/// The connections of before are dead without a sign, new ones are fine.
#[rstest]
#[case("redis-lua", BUYERS)]
#[case("redis-watch", EACH_FOR_ITSELF)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_fell_silent_are_given_up(#[case] strategy: &str, #[case] buyers: usize) {
    let scene = Scene::open().await;
    let usual = scene.usual(buyers, strategy).await;
    scene.proxy.set(Mode::Strand).await;
    let started = Instant::now();
    until("it sells in a row", SOON, || async {
        let row = scene.crowd(buyers, strategy).join_all().await;
        assert!(
            row.iter()
                .all(|(answer, _)| matches!(answer.status, 200 | 503 | 504)),
            "{row:?}"
        );
        row.iter().all(|(answer, _)| answer.status == 200)
    })
    .await;
    let took = started.elapsed();
    assert!(took < 3 * LIMIT + 3 * usual, "{took:?}, {usual:?}");
}
