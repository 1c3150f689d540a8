//! A Redis that answers nothing any more: deductions that need it are refused in time, and stock in
//! SQL is sold as before.

use std::time::Duration;

use reqwest::Method;
use rstest::rstest;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::{create, order};
use crate::faults::{Answer, send, until};
use crate::support::process::Process;
use crate::support::proxy::{Mode, Proxy};
use crate::support::services::{Backend, TestDatabase, TestRedis, fresh_database, fresh_redis};

/// The default limit of the service for the wait for a connection, and for an answer.
const LIMIT: Duration = Duration::from_secs(2);
/// For a request that does not need Redis. If it waited for Redis, it would wait for the limit.
const AT_ONCE: Duration = Duration::from_millis(1_500);
const BUYERS: usize = 400;
/// More than there are connections for `WATCH`. A buyer starts again after each conflict.
const WATCHING: usize = 64;
const PROBES: usize = 20;
/// Between two sales that need no Redis.
const PAUSE: Duration = Duration::from_millis(20);
/// The deductions of two scripts of 64 deductions each: so many may be on their way when Redis goes
/// silent. Their outcome is then unknown.
const IN_FLIGHT: usize = 128;

/// An answer, and how long it took.
type Timed = (Answer, Duration);

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
        create(&replica, "hot", 100_000).await;
        replica.set_level("cold", 100_000).await;
        assert_eq!(send(order(&replica, "redis-lua", "hot")).await.status, 200);
        Self {
            replica,
            proxy,
            _redis: redis,
            _database: database,
        }
    }

    fn sell(&self, strategy: &str) -> impl Future<Output = Answer> + 'static {
        send(order(&self.replica, strategy, "hot"))
    }

    /// Buyers that all buy at once.
    fn crowd(&self, size: usize, strategy: &str) -> JoinSet<Timed> {
        let buyer = || {
            let (sale, started) = (self.sell(strategy), Instant::now());
            async move { (sale.await, started.elapsed()) }
        };
        (0..size).map(|_| buyer()).collect()
    }

    /// How long a crowd takes on this machine while Redis answers.
    async fn usual(&self, size: usize, strategy: &str) -> Duration {
        let answers = self.crowd(size, strategy).join_all().await;
        assert!(answers.iter().all(|(answer, _)| answer.status == 200));
        slowest(&answers)
    }

    /// Sells in SQL until the requests of a crowd are answered; returns those answers.
    async fn sell_in_sql(&self, crowd: &mut JoinSet<Timed>) -> Vec<Timed> {
        let mut answers = Vec::new();
        while !crowd.is_empty() {
            let sale = send(order(&self.replica, "single-sql", "cold"));
            let sold = timeout(AT_ONCE, sale).await;
            assert_eq!(sold.expect("the sale needs no Redis").status, 200);
            sleep(PAUSE).await;
            while let Some(answer) = crowd.try_join_next() {
                answers.push(answer.expect("no panic"));
            }
        }
        answers
    }
}

fn slowest(answers: &[Timed]) -> Duration {
    let longest = answers.iter().map(|&(_, took)| took).max();
    longest.expect("there are buyers")
}

/// Goal: a request that gets no connection was not sent, so the answer is 503. Each of many
/// requests is answered after one limit, and stock in SQL is sold at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_redis_delays_its_requests_by_one_limit_and_no_others() {
    let scene = Scene::open().await;
    let usual = scene.usual(BUYERS, "redis-lua").await;
    scene.proxy.set(Mode::Blackhole).await;
    // This request is sent on the connection that has gone silent, and may have arrived.
    let unknown = scene.sell("redis-lua").await;
    assert_eq!(unknown.status, 504, "{unknown:?}");

    let probes: JoinSet<_> = (0..PROBES)
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
    let bound = LIMIT * 3 / 2 + 3 * usual;
    assert!(slowest < bound, "{slowest:?}, {usual:?}");
    for probe in probes.join_all().await {
        assert_eq!(probe.status, 503, "{probe:?}");
    }

    scene.proxy.set(Mode::Pass).await;
    until("sales resume", || async {
        scene.sell("redis-lua").await.status == 200
    })
    .await;
    let errors = scene
        .replica
        .counted("http_responses_total{status=\"500\"}")
        .await;
    assert_eq!(errors, 0);
}

/// The requests come before the service has noticed the silence. Those that were not sent yet are
/// refused as soon as the first ones have waited for the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queued_requests_are_refused_with_the_first_that_time_out() {
    let scene = Scene::open().await;
    let usual = scene.usual(BUYERS, "redis-lua").await;
    scene.proxy.set(Mode::Blackhole).await;
    let answers = scene.crowd(BUYERS, "redis-lua").join_all().await;
    let (mut early, mut unknown) = (0, 0);
    for (answer, took) in &answers {
        match answer.status {
            503 => early += usize::from(*took < LIMIT * 3 / 2 + 3 * usual),
            504 => unknown += 1,
            _ => panic!("{answer:?}"),
        }
    }
    assert!(unknown <= IN_FLIGHT, "{unknown} were sent");
    assert!(early >= BUYERS - IN_FLIGHT, "{early}, {usual:?}");
}

/// The open connections are dead although both sides still see them as open; new ones work.
#[rstest]
#[case("redis-lua", BUYERS)]
#[case("redis-watch", WATCHING)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_are_replaced(#[case] strategy: &str, #[case] buyers: usize) {
    let scene = Scene::open().await;
    let usual = scene.usual(buyers, strategy).await;
    scene.proxy.set(Mode::Strand).await;
    let started = Instant::now();
    until("all sales of a crowd succeed", || async {
        let answers = scene.crowd(buyers, strategy).join_all().await;
        let mut answers = answers.iter().map(|(answer, _)| answer);
        answers.all(|answer| {
            assert!(matches!(answer.status, 200 | 503 | 504), "{answer:?}");
            answer.status == 200
        })
    })
    .await;
    let took = started.elapsed();
    assert!(took < 3 * LIMIT + 3 * usual, "{took:?}, {usual:?}");
}
