//! Redis stops answering. The service refuses deductions that need Redis in time, and sells stock
//! in SQL as before.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::join_all;
use reqwest::Method;
use rstest::rstest;
use stocklock::ports::RedisMethod;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::{create, deduct, order};
use crate::faults::{Answer, send, until};
use crate::store_contract::fixture::{Fixture, WAIT_LIMIT, redis_options};
use crate::support::process::Process;
use crate::support::proxy::{Mode, Proxy};
use crate::support::services::{Backend, TestDatabase, TestRedis, fresh_database, fresh_redis};

/// The service's default time limit for getting a connection, and for an answer.
const LIMIT: Duration = Duration::from_secs(2);
/// Time limit of a request that does not need Redis. It is shorter than [`LIMIT`], so a request
/// that waits for Redis exceeds it.
const AT_ONCE: Duration = Duration::from_millis(1_500);
const BUYERS: usize = 400;
/// More buyers than connections for `WATCH`. There are fewer than [`BUYERS`], because each buyer
/// starts again after a conflict.
const WATCHING: usize = 64;
const PROBES: usize = 20;
/// The pause between two sales in SQL.
const PAUSE: Duration = Duration::from_millis(20);
/// The maximum number of deductions in flight when Redis stops answering: those of one script.
/// Their outcome is unknown.
const IN_FLIGHT: usize = 64;

/// An answer, and how long it took.
type Timed = (Answer, Duration);

/// A replica that sells stock in SQL, and stock in Redis through a proxy.
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
        let variables = [("REDIS_URL", &*url), ("STRATEGY_REDIS", "redis-lua")];
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

    /// Starts `size` concurrent buyers.
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

    /// Sells in SQL until all requests of the crowd are answered. Returns the answers of the crowd.
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

/// Goal: a request that gets no connection was not sent, so its answer is 503. All waiting requests
/// get their answer after one time limit. Stock in SQL is sold at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_redis_delays_its_requests_by_one_limit_and_no_others() {
    let scene = Scene::open().await;
    let usual = scene.usual(BUYERS, "redis-lua").await;
    scene.proxy.set(Mode::Blackhole).await;
    // The service sends this request on the silent connection, so Redis may have executed it.
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
    until("sales resume", async || {
        scene.sell("redis-lua").await.status == 200
    })
    .await;
    let errors = scene
        .replica
        .counted("http_responses_total{status=\"500\"}")
        .await;
    assert_eq!(errors, 0);
}

/// The requests arrive before the service has noticed that Redis is silent. When the first requests
/// time out, the service refuses those that it has not sent yet.
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

/// Both sides still see the old connections as open, but these no longer carry data. New
/// connections work.
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

/// Each caller waits for the decision which Redis has the stock, but only one task makes it.
#[tokio::test]
async fn callers_start_no_task_each_while_redis_hangs() {
    let redis = fresh_redis().await;
    let (proxy, url) = Proxy::before(&redis.url).await;
    let fixture = Fixture::new(Backend::Sqlite).await;
    let fixture = fixture.with(redis_options(&url));
    proxy.set(Mode::Blackhole).await;
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let sales = (0..BUYERS).map(|_| deduct(&fixture, "a", RedisMethod::Script));
    let mut sales = pin!(join_all(sales));
    let some_wait = timeout(WAIT_LIMIT / 2, &mut sales).await;
    assert!(some_wait.is_err(), "{some_wait:?}");
    assert!(tasks() < before + 20, "{before} tasks, then {}", tasks());
    assert!(sales.await.iter().all(Result::is_err));
}
