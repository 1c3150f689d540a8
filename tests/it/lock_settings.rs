//! The settings of the lock strategies, in processes: refused values, warnings at start, and a
//! start while the lock's server is down.

use std::time::Duration;

use rstest::rstest;
use stocklock_locks::LockManager;
use stocklock_locks::redis::RedisBackend;
use stocklock_testkit::eventually;
use tokio::join;

use crate::commands::{PASSWORD, assert_one_line_error, deduct};
use crate::support::process::Process;
use crate::support::redis::command;
use crate::support::services::{PrivateServer, fresh_redis, vote};

/// The migration has copies, because applied files never change.
#[test]
fn migration_creates_the_tables_that_the_lock_needs() {
    use stocklock_locks::sql::{MYSQL_TABLES, POSTGRES_TABLES, SQLITE_TABLES};
    macro_rules! migration {
        ($database:literal) => {
            include_str!(concat!("../../migrations/", $database, "/0001_initial.sql"))
        };
    }
    assert!(migration!("postgres").contains(POSTGRES_TABLES));
    assert!(migration!("mysql").contains(MYSQL_TABLES));
    assert!(migration!("sqlite").contains(SQLITE_TABLES));
}

/// A bound for what usually takes a moment.
const SOON: Duration = Duration::from_secs(20);

#[rstest]
#[case("redis-lock", "REDIS_URL")]
#[case("redlock", "REDLOCK_URLS")]
#[case("zookeeper-lock", "ZOOKEEPER_CONNECT")]
#[tokio::test]
async fn lock_strategy_without_its_server_is_refused(
    #[case] strategy: &str,
    #[case] variable: &str,
    #[values("serve", "lab")] command: &str,
) {
    let refused = Process::run(&[command], &[("STRATEGY", strategy)]).await;
    assert_one_line_error(&refused, "STRATEGY");
    assert_one_line_error(&refused, variable);
}

#[tokio::test]
async fn locks_work_while_the_redis_of_counters_is_full() {
    let (counters, locks) = (PrivateServer::redis(&[]).await, fresh_redis().await);
    let variables = [
        ("REDIS_URL", counters.url()),
        ("LOCK_REDIS_URL", &locks.url),
        ("STRATEGY", "redis-lock"),
    ];
    let lab = Process::serving(&["lab"], &variables).await;
    command::<()>(counters.url(), &["CONFIG", "SET", "maxmemory", "1"]).await;
    let refused = deduct(&lab, "?strategy=redis-lua").await;
    assert_eq!(refused.status, 503, "{refused:?}");
    for _ in 0..3 {
        assert_eq!(deduct(&lab, "").await.ok()["strategy"], "redis-lock");
    }
    let pattern = ["KEYS", "stocklock:lock*"];
    let found = command::<Vec<String>>(&locks.url, &pattern).await;
    assert!(!found.is_empty());
    let found = command::<Vec<String>>(counters.url(), &pattern).await;
    assert!(found.is_empty());
}

/// Another client holds the lock of the level that is sold.
#[rstest]
#[case(&[], 1)]
#[case(&[("LOCK_POLL_MS", "20")], 0)]
#[tokio::test]
async fn waiters_poll_redis_if_told_to(#[case] poll: &[(&str, &str)], #[case] channels: usize) {
    // Databases of one server share their channels.
    let redis = PrivateServer::redis(&[]).await;
    let variables = [
        ("REDIS_URL", redis.url()),
        ("STRATEGY", "redis-lock"),
        ("WAIT_LIMIT_MS", "20000"),
        ("REQUEST_DEADLINE_MS", "30000"),
    ];
    let variables = [&variables, poll].concat();
    let lab = Process::serving(&["lab"], &variables).await;
    let backend = RedisBackend::builder(redis.url()).prefix("stocklock:lock");
    let other = LockManager::new(backend.build().expect("a valid URL"));
    let lock = other.lock("stock:1001:main").lease(SOON);
    let held = lock.acquire().await.expect("it is free");
    let release = async {
        let busy = "stock_lock_attempts_total{strategy=\"redis-lock\",outcome=\"busy\"";
        let asks = async || lab.counted(busy).await >= 2;
        eventually("it waits and asks again", SOON, asks).await;
        let pattern = ["PUBSUB", "CHANNELS", "stocklock:lock*"];
        let subscribed: Vec<String> = command(redis.url(), &pattern).await;
        assert_eq!(subscribed.len(), channels, "{subscribed:?}");
        held.release().await;
    };
    let (sold, ()) = join!(deduct(&lab, ""), release);
    assert_eq!(sold.ok()["strategy"], "redis-lock");
}

#[tokio::test]
async fn messages_name_the_variable_of_the_locks() {
    let counters = fresh_redis().await;
    let (redis, strategy) = (("REDIS_URL", &*counters.url), ("STRATEGY", "redis-lock"));
    // That the password is not printed is checked at the end of each process.
    let away = "redis://shop:c4n4ry-p4ssw0rd@127.0.0.1:1";
    let (away, log) = (("LOCK_REDIS_URL", away), ("LOG", "trace"));
    let mut lab = Process::start(&["lab"], &[redis, away, strategy, log]);
    lab.answers("/healthz").await;
    let refused = deduct(&lab, "").await;
    assert_eq!(refused.status_and_code(), (503, "strategy-unavailable"));
    assert!(refused.detail.contains("LOCK_REDIS_URL"), "{refused:?}");
    assert!(!format!("{refused:?}").contains(PASSWORD), "{refused:?}");
    let log = lab.log().await;
    let warns = has_warning(&log, &["Redis, which LOCK_REDIS_URL names"]);
    assert!(warns, "{log}");
    for variables in [&[away][..], &[redis, ("LOCK_REDIS_URL", "http://a")]] {
        let refused = Process::run(&["lab"], variables).await;
        assert_one_line_error(&refused, "LOCK_REDIS_URL");
    }
}

#[tokio::test]
async fn lease_shorter_than_the_request_deadline_is_warned_about() {
    let redis = fresh_redis().await;
    let url = ("REDIS_URL", &*redis.url);
    for (lease, expected) in [("4999", true), ("5000", false)] {
        let serve = Process::serving(&["serve"], &[url, ("LOCK_LEASE_MS", lease)]).await;
        let log = serve.log().await;
        let warned = has_warning(&log, &["LOCK_LEASE_MS", "REQUEST_DEADLINE_MS"]);
        assert_eq!(warned, expected, "{log}");
    }
    let sql_lock = [("STRATEGY", "sql-lock"), ("LOCK_LEASE_MS", "4999")];
    let log = Process::serving(&["serve"], &sql_lock).await.log().await;
    assert!(has_warning(&log, &["LOCK_LEASE_MS"]), "{log}");
    // Without a server for locks there is no lease, unless the locks are in the database.
    let serve = Process::serving(&["serve"], &[("LOCK_LEASE_MS", "1000")]).await;
    let log = serve.log().await;
    assert!(!log.contains("LOCK_LEASE_MS"), "{log}");
}

#[rstest]
#[case("allkeys-lru", true)]
#[case("volatile-ttl", true)]
#[case("noeviction", false)]
#[tokio::test]
async fn redis_that_may_evict_locks_is_warned_about(#[case] policy: &str, #[case] expected: bool) {
    let settings = ["--maxmemory", "64mb", "--maxmemory-policy", policy];
    let redis = PrivateServer::redis(&settings).await;
    let serve = Process::serving(&["serve"], &[("REDIS_URL", redis.url())]).await;
    let log = serve.log().await;
    let warned = has_warning(&log, &["maxmemory-policy", policy]);
    assert_eq!(warned, expected, "{log}");

    command::<()>(redis.url(), &["ACL", "SETUSER", "default", "-info"]).await;
    let serve = Process::serving(&["serve"], &[("REDIS_URL", redis.url())]).await;
    let log = serve.log().await;
    let warned = has_warning(&log, &["maxmemory-policy", "could not be checked"]);
    assert!(warned, "{log}");
}

/// One of three masters evicts locks, and one is down. The replica sells nevertheless.
#[tokio::test]
async fn unsafe_redis_masters_are_warned_about() {
    let evicting = ["--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"];
    let masters = [
        PrivateServer::redis(&[]).await,
        PrivateServer::redis(&evicting).await,
        PrivateServer::redis(&[]).await,
    ];
    masters[2].kill9();
    let urls = masters.each_ref().map(PrivateServer::url);
    vote(&urls[..2], Duration::from_secs(10)).await;
    let urls = urls.join(",");
    let variables = [("REDLOCK_URLS", &*urls), ("STRATEGY", "redlock")];
    let lab = Process::serving(&["lab"], &variables).await;
    let sold = deduct(&lab, "").await;
    assert_eq!(sold.ok()["strategy"], "redlock");
    let log = lab.log().await;
    let [_, evicting, away] = masters.each_ref().map(PrivateServer::address);
    for words in [
        ["REDLOCK_URLS", &evicting, "maxmemory-policy"],
        ["REDLOCK_URLS", &away, "refused"],
    ] {
        assert!(has_warning(&log, &words), "{words:?}: {log}");
    }
}

fn has_warning(log: &str, words: &[&str]) -> bool {
    let warns = |line: &str| line.contains("WARN") && words.iter().all(|word| line.contains(word));
    log.lines().any(warns)
}

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
async fn replica_starts_without_its_lock_server_and_serves_later(
    #[case] strategy: &str,
    #[case] variable: &str,
    #[case] warning: &str,
) {
    let server = match variable {
        "REDIS_URL" => PrivateServer::redis(&[]).await,
        _ => PrivateServer::zookeeper().await,
    };
    server.kill9();
    let variables = [(variable, server.url()), ("STRATEGY", strategy)];
    let mut serve = Process::start(&["serve"], &variables);
    serve.answers("/healthz").await;
    serve.set_level("a", 1).await;
    let refused = deduct(&serve, "?sku=a").await;
    assert_eq!(refused.status_and_code(), (503, "strategy-unavailable"));
    assert_eq!(serve.get("/readyz").await.status, 503);
    let log = serve.log().await;
    assert!(has_warning(&log, &[warning]), "{log}");

    server.restart().await;
    serve.is_ready().await;
    assert_eq!(deduct(&serve, "?sku=a").await.ok()["strategy"], strategy);
}

/// The other replica starts, because the password could be corrected at the server.
#[tokio::test]
async fn zookeeper_locks_admit_only_replicas_with_the_password() {
    let server = PrivateServer::zookeeper().await;
    let auth = format!("shop:{PASSWORD}");
    let variables = [
        ("ZOOKEEPER_CONNECT", server.url()),
        ("STRATEGY", "zookeeper-lock"),
        ("ZOOKEEPER_AUTH", &auth),
    ];
    let inside = Process::serving(&["lab"], &variables).await;
    assert_eq!(deduct(&inside, "").await.ok()["strategy"], "zookeeper-lock");
    let mut outside = Process::start(&["lab"], &variables[..2]);
    outside.answers("/healthz").await;
    let refused = deduct(&outside, "").await;
    assert_eq!(refused.status_and_code(), (503, "strategy-unavailable"));
    assert_eq!(outside.get("/readyz").await.status, 503);
    let log = outside.log().await;
    let warns = has_warning(&log, &["ZOOKEEPER_CONNECT", "(NoAuth)"]);
    assert!(warns, "{log}");
    assert!(!inside.stderr().contains(PASSWORD), "{}", inside.stderr());
    let no_user = [variables[0], ("ZOOKEEPER_AUTH", PASSWORD)];
    let refused = Process::run(&["serve"], &no_user).await;
    assert_one_line_error(&refused, "ZOOKEEPER_AUTH");
}
