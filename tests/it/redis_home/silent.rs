//! A Redis that says nothing any more: what needs it is refused in time, and the rest goes on.

use std::time::Duration;

use reqwest::Method;
use rstest::rstest;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::faults::{Answer, SOON, send, until};
use crate::support::process::Process;
use crate::support::proxy::{Mode, Proxy};
use crate::support::services::{Backend, TestDatabase, TestRedis, fresh_database, fresh_redis};

/// The service's own default for the longest wait for a connection, or for an answer.
const LIMIT: Duration = Duration::from_secs(2);
/// For a request that does not need Redis.
const AT_ONCE: Duration = Duration::from_secs(1);
const BUYERS: usize = 400;
const PROBES: usize = 20;

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
            let put = put.json(&json!({"on_hand": 1_000, "home": home}));
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

    /// Sells in SQL until the others are done; answers how often.
    async fn sell_in_sql(&self, others: &mut JoinSet<Answer>) -> Vec<Answer> {
        let mut answers = Vec::new();
        loop {
            let sold = timeout(AT_ONCE, self.sell("cold", "single-sql")).await;
            assert_eq!(sold.expect("it needs no Redis").status, 200);
            match timeout(Duration::from_millis(20), others.join_next()).await {
                Ok(Some(answer)) => answers.push(answer.expect("no panic")),
                Ok(None) => return answers,
                Err(_elapsed) => {}
            }
        }
    }
}

/// Goal: where no connection can be had, nothing was sent; everybody is told so after one limit,
/// however many they are, and stock in SQL is sold meanwhile as ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_redis_costs_each_request_its_limit_and_those_of_sql_nothing() {
    let scene = Scene::open().await;
    scene.proxy.set(Mode::Blackhole).await;
    // This one finds the connection that has died; what it has sent may have arrived.
    let unknown = scene.sell("hot", "redis-lua").await;
    assert!(matches!(unknown.status, 503 | 504), "{unknown:?}");

    let started = Instant::now();
    let mut probes: JoinSet<_> = (0..PROBES)
        .map(|_| send(scene.replica.request(Method::GET, "/readyz")))
        .collect();
    let mut buyers: JoinSet<_> = (0..BUYERS)
        .map(|_| scene.sell("hot", "redis-lua"))
        .collect();
    let refused = scene.sell_in_sql(&mut buyers).await;
    let took = started.elapsed();
    assert_eq!(refused.len(), BUYERS);
    for answer in refused {
        assert_eq!(answer.status, 503, "{answer:?}");
        assert!(answer.retry_after, "{answer:?}");
    }
    assert!(took < 2 * LIMIT, "{took:?}");
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
    scene.proxy.set(Mode::Blackhole).await;
    let mut buyers: JoinSet<_> = (0..BUYERS)
        .map(|_| scene.sell("hot", "redis-lua"))
        .collect();
    let started = Instant::now();
    let mut told = 0;
    while let Some(answer) = buyers.join_next().await {
        let answer = answer.expect("no panic");
        assert!(matches!(answer.status, 503 | 504), "{answer:?}");
        told += usize::from(answer.status == 503 && started.elapsed() < LIMIT * 3 / 2);
    }
    // Two messages of a script may have been under way, with 64 deductions each.
    assert!(told >= BUYERS - 128, "{told}");
}

/// The connections of before are dead without a sign, new ones are fine.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_fell_silent_are_given_up(
    #[values("redis-lua", "redis-watch")] strategy: &str,
) {
    let scene = Scene::open().await;
    let mut buyers: JoinSet<_> = (0..BUYERS).map(|_| scene.sell("hot", strategy)).collect();
    while let Some(sold) = buyers.join_next().await {
        assert_eq!(sold.expect("no panic").status, 200);
    }
    scene.proxy.set(Mode::Strand).await;
    let started = Instant::now();
    until("it sells in a row", SOON, || async {
        let row: JoinSet<_> = (0..BUYERS).map(|_| scene.sell("hot", strategy)).collect();
        let row = row.join_all().await;
        assert!(
            row.iter()
                .all(|answer| matches!(answer.status, 200 | 503 | 504)),
            "{row:?}"
        );
        row.iter().all(|answer| answer.status == 200)
    })
    .await;
    let took = started.elapsed();
    assert!(took < 3 * LIMIT, "{took:?}");
}
