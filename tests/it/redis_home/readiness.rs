//! A replica is ready only if the Redis that its strategy needs answers.

use reqwest::Method;
use rstest::rstest;

use crate::faults::{send, until};
use crate::support::process::Process;
use crate::support::services::{Backend, PrivateServer, fresh_database};

async fn start(database: &str, redis: &PrivateServer, strategy: (&str, &str)) -> Process {
    Process::lab(database, &[("REDIS_URL", redis.url()), strategy]).await
}

/// The status and the reason.
async fn readiness(replica: &Process) -> (u16, String) {
    let answer = send(replica.request(Method::GET, "/readyz")).await;
    (answer.status, answer.detail)
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_that_sells_in_redis_is_not_ready_without_it(
    #[values("redis-lua", "redis-watch", "redis-lock")] strategy: &str,
) {
    let database = fresh_database(Backend::Sqlite).await;
    let redis = PrivateServer::redis(&["--appendonly", "yes"]).await;
    let in_redis = start(&database.url, &redis, ("STRATEGY_REDIS", strategy)).await;
    let in_sql = start(&database.url, &redis, ("STRATEGY", "single-sql")).await;
    redis.kill9();
    let refused = (503, "Redis refuses".to_owned());
    assert_eq!(readiness(&in_redis).await, refused);
    assert_eq!(readiness(&in_sql).await, (200, String::new()));
    assert_eq!(readiness(&in_redis).await, refused);
    redis.restart().await;
    until("the replica is ready again", async || {
        readiness(&in_redis).await.0 == 200
    })
    .await;
}
