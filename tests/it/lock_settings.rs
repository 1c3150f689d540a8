//! The settings of the locks, through the program itself: what is refused, what is warned of, and
//! what is waited for.

use std::time::Duration;

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::commands::assert_is_told_in_one_line;
use crate::support::process::Process;
use crate::support::services::{PrivateServer, fresh_redis};

/// What must never be seen.
const CANARY: &str = "c4n4ry-p4ssw0rd";
/// A bound for what takes a moment.
const SOON: Duration = Duration::from_secs(20);

#[rstest]
#[case("redis-lock", "REDIS_URL")]
#[case("zookeeper-lock", "ZOOKEEPER_CONNECT")]
#[tokio::test]
async fn a_lock_strategy_without_its_service_is_refused(
    #[case] strategy: &str,
    #[case] variable: &str,
    #[values("serve", "lab")] command: &str,
) {
    let refused = Process::run(&[command], &[("STRATEGY", strategy)]).await;
    assert_is_told_in_one_line(&refused, "STRATEGY");
    assert_is_told_in_one_line(&refused, variable);
}

#[rstest]
#[case("REDIS_URL", "")]
#[case("REDIS_URL", "c4n4ry-p4ssw0rd")]
#[case("REDIS_URL", "http://shop:c4n4ry-p4ssw0rd@127.0.0.1/")]
#[case("REDIS_URL", "redis://shop:c4n4ry-p4ssw0rd@127.0.0.1:nonsense/0")]
#[case("REDIS_URL", "redis://shop:c4n4ry-p4ssw0rd@127.0.0.1/nonsense")]
#[case("ZOOKEEPER_CONNECT", "")]
#[case("ZOOKEEPER_CONNECT", "127.0.0.1:nonsense")]
#[case("ZOOKEEPER_CONNECT", "127.0.0.1:2181,")]
#[case("ZOOKEEPER_CONNECT", "127.0.0.1:2181/chroot/")]
#[case("LOCK_LEASE_MS", "99")]
#[case("LOCK_LEASE_MS", "soon")]
#[tokio::test]
async fn a_wrong_value_is_told_in_one_line(#[case] variable: &str, #[case] value: &str) {
    let refused = Process::run(&["serve"], &[(variable, value)]).await;
    assert_is_told_in_one_line(&refused, variable);
    assert!(!refused.stderr.contains(CANARY), "{}", refused.stderr);
}

/// Where Redis is away, and so is spoken of, at start and for each request.
#[tokio::test]
async fn the_passwords_of_redis_are_never_seen() {
    let url = "redis://shop:c4n4ry-p4ssw0rd@127.0.0.1:1/0";
    let variables = [("REDIS_URL", url), ("LOG", "trace")];
    let lab = Process::serving(&["lab"], &variables).await;
    let (status, problem) = deduct(&lab, "?strategy=redis-lock").await;
    assert_eq!(status, 503, "{problem}");
    assert!(!problem.to_string().contains(CANARY), "{problem}");
    let said = lab.stderr();
    assert!(said.contains("Redis"), "{said}");
    assert!(!said.contains(CANARY), "{said}");

    let helped = Process::run(&["serve", "--help"], &variables).await;
    assert!(helped.stdout.contains("REDIS_URL"), "{}", helped.stdout);
    assert!(!helped.stdout.contains(CANARY), "{}", helped.stdout);
}

#[tokio::test]
async fn a_lease_shorter_than_the_deadline_is_warned_of() {
    let redis = fresh_redis().await;
    let url = ("REDIS_URL", &*redis.url);
    for (lease, is_warned_of) in [("4999", true), ("5000", false)] {
        let serve = Process::serving(&["serve"], &[url, ("LOCK_LEASE_MS", lease)]).await;
        let said = serve.stderr();
        let warned = warning(&said, &["LOCK_LEASE_MS", "REQUEST_DEADLINE_MS"]);
        assert_eq!(warned, is_warned_of, "{said}");
    }
    // Nobody has a lease.
    let serve = Process::serving(&["serve"], &[("LOCK_LEASE_MS", "1000")]).await;
    let said = serve.stderr();
    assert!(!said.contains("LOCK_LEASE_MS"), "{said}");
}

#[rstest]
#[case(&["--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"], true)]
#[case(&["--maxmemory", "64mb", "--maxmemory-policy", "volatile-ttl"], true)]
#[case(&["--maxmemory", "64mb", "--maxmemory-policy", "noeviction"], false)]
#[tokio::test]
async fn a_redis_that_may_evict_locks_is_warned_of(
    #[case] settings: &[&str],
    #[case] is_warned_of: bool,
) {
    let redis = PrivateServer::redis(settings).await;
    let serve = Process::serving(&["serve"], &[("REDIS_URL", redis.url())]).await;
    let said = serve.stderr();
    let warned = warning(&said, &["maxmemory-policy", settings[3]]);
    assert_eq!(warned, is_warned_of, "{said}");
}

/// Whether there is a warning with all of these words.
fn warning(said: &str, words: &[&str]) -> bool {
    let warns = |line: &str| line.contains("WARN") && words.iter().all(|word| line.contains(word));
    said.lines().any(warns)
}

/// Goal: a replica starts without the service that its locks are on, says so, and serves as soon as
/// that is there.
#[rstest]
#[case(
    "redis-lock",
    "REDIS_URL",
    "Redis, which REDIS_URL names, does not answer"
)]
#[case(
    "zookeeper-lock",
    "ZOOKEEPER_CONNECT",
    "ZooKeeper, which ZOOKEEPER_CONNECT names, does not answer"
)]
#[tokio::test]
async fn a_service_that_is_away_at_the_start_is_waited_for(
    #[case] strategy: &str,
    #[case] variable: &str,
    #[case] said_of_it: &str,
) {
    let server = match variable {
        "REDIS_URL" => PrivateServer::redis(&[]).await,
        _ => PrivateServer::zookeeper().await,
    };
    server.kill9();
    let variables = [(variable, server.url()), ("STRATEGY", strategy)];
    let mut serve = Process::start(&["serve"], &variables);
    is_alive(&mut serve).await;
    let set = serve.request(Method::PUT, "/stock/a");
    let set = set.json(&json!({ "on_hand": 1 })).send().await;
    assert_eq!(set.expect("it answers").status(), 201);
    let (status, problem) = deduct(&serve, "?sku=a").await;
    assert_eq!(status, 503, "{problem}");
    assert_eq!(problem["code"], "strategy-unavailable", "{problem}");
    let ready = serve.request(Method::GET, "/readyz").send().await;
    assert_eq!(ready.expect("it answers").status(), 503);
    let said = serve.stderr();
    assert!(warning(&said, &[said_of_it]), "{said}");

    server.restart().await;
    serve.is_ready().await;
    let (status, sold) = deduct(&serve, "?sku=a").await;
    assert_eq!(status, 200, "{sold}");
    assert_eq!(sold["strategy"], strategy);
}

async fn is_alive(process: &mut Process) {
    let begin = Instant::now();
    loop {
        let answer = process.request(Method::GET, "/healthz").send().await;
        if answer.is_ok_and(|answer| answer.status() == 200) {
            return;
        }
        let waits = process.is_running() && begin.elapsed() < SOON;
        assert!(waits, "{}", process.stderr());
        sleep(Duration::from_millis(10)).await;
    }
}

async fn deduct(process: &Process, query: &str) -> (u16, Value) {
    let request = process.request(Method::POST, &format!("/stock/deduct{query}"));
    let answer = request.send().await.expect("it answers");
    let status = answer.status().as_u16();
    (status, answer.json().await.expect("its body is JSON"))
}
