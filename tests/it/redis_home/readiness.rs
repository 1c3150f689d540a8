//! Whether a replica is ready depends on Redis where its strategy does.

use reqwest::Method;
use rstest::rstest;

use crate::faults::{SOON, send, until};
use crate::support::process::Process;
use crate::support::services::{Backend, PrivateServer, fresh_database};

async fn start(database: &str, redis: &PrivateServer, strategy: &str) -> Process {
    let variables = [("REDIS_URL", redis.url()), ("STRATEGY", strategy)];
    Process::lab(database, &variables).await
}

/// The status that it tells of itself, and why.
async fn ready(replica: &Process) -> (u16, String) {
    let answer = send(replica.request(Method::GET, "/readyz")).await;
    let answer = answer.expect("it answers");
    (answer.status, answer.detail)
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_sells_in_redis_is_not_ready_without(
    #[values("redis-lua", "redis-watch")] strategy: &str,
) {
    let database = fresh_database(Backend::Sqlite).await;
    let redis = PrivateServer::redis(&[]).await;
    let needy = start(&database.url, &redis, strategy).await;
    let other = start(&database.url, &redis, "single-sql").await;
    redis.kill9();
    let refused = (503, "Redis refuses".to_owned());
    assert_eq!(ready(&needy).await, refused);
    assert_eq!(ready(&other).await, (200, String::new()));
    assert_eq!(ready(&needy).await, refused);
    redis.restart().await;
    until("it is ready again", SOON, || async {
        ready(&needy).await.0 == 200
    })
    .await;
}
