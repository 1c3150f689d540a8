//! One deployment sells from both homes, each with its own strategy.

use reqwest::Method;
use rstest::rstest;
use serde_json::json;

use crate::commands::{assert_one_line_error, deduct};
use crate::faults::send;
use crate::support::process::Process;
use crate::support::services::fresh_redis;

#[rstest]
#[case::configured(&[("STRATEGY", "for-update"), ("STRATEGY_REDIS", "redis-watch")], ["for-update", "redis-watch"])]
#[case::default(&[], ["group-commit", "redis-lua"])]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn home_of_the_sku_decides_the_strategy(
    #[case] variables: &[(&str, &str)],
    #[case] strategies: [&str; 2],
    #[values("serve", "lab")] command: &str,
) {
    let redis = fresh_redis().await;
    let mut all = vec![("REDIS_URL", &*redis.url)];
    all.extend(variables);
    let replica = Process::serving(&[command], &all).await;
    for (home, strategy) in ["sql", "redis"].into_iter().zip(strategies) {
        let level = json!({"on_hand": 5, "home": home});
        let put = replica.request(Method::PUT, &format!("/stock/in-{home}"));
        assert_eq!(send(put.json(&level)).await.status, 201);
        let sold = deduct(&replica, &format!("?sku=in-{home}")).await;
        assert_eq!(sold.ok()["strategy"], strategy);
    }
    let unknown = deduct(&replica, "?sku=absent").await;
    assert_eq!(unknown.status_and_code(), (404, "unknown-sku"));
}

#[rstest]
#[case(
    "STRATEGY",
    "redis-lua",
    "works only on stock in Redis; set STRATEGY_REDIS"
)]
#[case(
    "STRATEGY",
    "redis-watch",
    "works only on stock in Redis; set STRATEGY_REDIS"
)]
#[case(
    "STRATEGY_REDIS",
    "single-sql",
    "works only on stock in SQL; set STRATEGY"
)]
#[case(
    "STRATEGY_REDIS",
    "no-lock",
    "oversells; choose another one such as redis-lua"
)]
#[case("STRATEGY_REDIS", "zookeeper-lock", "is not available")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strategy_that_cannot_serve_its_home_is_refused(
    #[case] variable: &str,
    #[case] strategy: &str,
    #[case] reason: &str,
) {
    let redis = fresh_redis().await;
    let variables = [("REDIS_URL", &*redis.url), (variable, strategy)];
    let refused = Process::run(&["serve"], &variables).await;
    assert_one_line_error(&refused, variable);
    let expected = format!("{variable}: {strategy} {reason}");
    assert!(refused.stderr.contains(&expected), "{}", refused.stderr);
}
