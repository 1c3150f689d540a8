//! A replica is ready only if the Redis that its strategy needs answers.

use reqwest::Method;
use rstest::rstest;

use super::{send, until};
use crate::support::process::Process;
use crate::support::services::{Backend, PrivateServer, fresh_database};

/// The status and the reason.
async fn readiness(replica: &Process) -> (u16, String) {
    let answer = send(replica.request(Method::GET, "/readyz")).await;
    (answer.status, answer.detail)
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_that_needs_redis_is_not_ready_without_it(
    #[values("redis-lua", "redis-watch", "redis-lock")] strategy: &str,
) {
    let database = fresh_database(Backend::Sqlite).await;
    let redis = PrivateServer::redis(&[]).await;
    let variables = |strategy| [("REDIS_URL", redis.url()), ("STRATEGY", strategy)];
    let needs_redis = Process::lab(&database.url, &variables(strategy)).await;
    let other = Process::lab(&database.url, &variables("single-sql")).await;
    redis.kill9();
    let refused = (503, "Redis refuses".to_owned());
    assert_eq!(readiness(&needs_redis).await, refused);
    assert_eq!(readiness(&other).await, (200, String::new()));
    assert_eq!(readiness(&needs_redis).await, refused);
    redis.restart().await;
    until("the replica is ready again", async || {
        readiness(&needs_redis).await.0 == 200
    })
    .await;
}
