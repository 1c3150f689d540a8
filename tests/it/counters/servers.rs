//! The counters while their Redis is silent, fails over, or is a cluster.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use stocklock::ports::CounterAnswer::{Admitted, Refused};
use stocklock::ports::CounterError;
use stocklock::ports::CounterMethod::{self, GetSet, Script, Watch};
use stocklock_testkit::assert_matches;
use stocklock_testkit::run::rng;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::store::Subject;
use super::{SAFE, SKU, full_size};
use crate::faults::until;
use crate::support::app::{TestApp, send};
use crate::support::distant::distant;
use crate::support::process::Process;
use crate::support::redis::{RedisCluster, command};
use crate::support::services::Backend::Sqlite;
use crate::support::services::{PrivateServer, fresh_database};

/// Each call may take a quarter of it.
const WAIT_LIMIT: Duration = Duration::from_secs(2);
/// The same, for a silent Redis: four times as long is longer than [`HANGS`].
const SILENT_LIMIT: Duration = Duration::from_secs(3);
/// After this time a call hangs.
const HANGS: Duration = Duration::from_secs(10);

/// Waits until a counter can be loaded and asked.
async fn until_asked(subject: &Subject, method: CounterMethod) {
    until("a counter is loaded and asked", async || {
        let is_loaded = subject.load(5).await.is_ok();
        let taken = subject.take(1, method).await;
        is_loaded && matches!(taken, Ok(Admitted { .. } | Refused { .. }))
    })
    .await;
}

#[tokio::test]
async fn replica_of_redis_lua_is_ready_only_while_redis_is_up() {
    let server = PrivateServer::redis(&[]).await;
    let database = fresh_database(Sqlite).await;
    let variables = [("REDIS_URL", server.url()), ("STRATEGY", "redis-lua")];
    let mut replica = Process::lab(&database.url, &variables).await;
    assert_eq!(replica.get("/readyz").await.status, 200);
    server.kill9();
    assert_eq!(replica.get("/readyz").await.status, 503);
    server.restart().await;
    replica.is_ready().await;
}

#[tokio::test]
async fn call_of_a_silent_redis_ends_within_its_share_of_the_limit() {
    let server = PrivateServer::redis(&[]).await;
    let subject = Subject::with_limit(server.url(), SILENT_LIMIT, 8).await;
    until_asked(&subject, Watch).await;
    server.stop().await;
    for method in [GetSet, Watch, Script] {
        let began = Instant::now();
        let taken = timeout(HANGS, subject.take(1, method)).await;
        assert_matches!(taken, Ok(Err(CounterError::Unavailable(_))));
        let took = began.elapsed();
        assert!(
            took >= SILENT_LIMIT / 4,
            "{method:?} gave up after {took:?}"
        );
        let is_late = full_size().is_some() && took > SILENT_LIMIT / 2;
        assert!(!is_late, "{method:?} took {took:?}");
    }
    let given = timeout(HANGS, subject.give_back(1)).await;
    given.expect("the call ends");
    server.resume();
    until_asked(&subject, Watch).await;
}

async fn clients(server: &PrivateServer) -> usize {
    let clients: String = command(server.url(), &["CLIENT", "LIST"]).await;
    clients.lines().count()
}

/// More calls wait for the connection than it can serve in time, and Redis answers each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_without_a_free_connection_opens_no_more() {
    let server = PrivateServer::redis(&[]).await;
    let (_proxy, url) = distant(server.url(), Duration::from_millis(100)).await;
    let subject = Arc::new(Subject::with_limit(&url, 4 * WAIT_LIMIT, 1).await);
    until_asked(&subject, Watch).await;
    let before = clients(&server).await;
    // Three round trips of 100 ms: all calls need three times their share of the limit.
    let call = |subject: Arc<Subject>| async move { subject.take(1, Watch).await };
    let calls: JoinSet<_> = (0..20).map(|_| call(Arc::clone(&subject))).collect();
    let answers = calls.join_all().await;
    let is_busy = |answer: &Result<_, _>| matches!(answer, Err(CounterError::Busy));
    assert!(answers.iter().any(is_busy), "{answers:?}");
    assert!(clients(&server).await <= before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_has_counters_but_no_watch() {
    let cluster = RedisCluster::start(&[]).await;
    let url = cluster.url();
    let subject = Subject::with_limit(&url, WAIT_LIMIT, 8).await;
    let watched = subject.take(1, Watch).await;
    assert_matches!(watched, Err(CounterError::Unavailable(_)));
    until_asked(&subject, Script).await;
    until_asked(&subject, GetSet).await;

    let app = TestApp::with_flags(Sqlite, 1, &["--redis-url", &url]).await;
    app.set_level(SKU, 1_000).await;
    let order = |strategy| send(app.deduct(0, strategy, &json!({"sku": SKU})));
    // The locks are in the cluster, too.
    let sells = async || {
        let sales = [order("redis-lua").await, order("redis-lock").await];
        sales.iter().all(|sale| sale.status == 200)
    };
    until("the service sells", sells).await;
    let refused = order("redis-watch").await;
    assert_eq!(refused.status_and_code(), (503, "strategy-unavailable"));
    assert!(refused.detail.contains("cluster"), "{}", refused.detail);

    let slot = cluster.slot_of(subject.key()).await;
    let (master, kill) = (cluster.master_of(slot).await, rng().bool());
    cluster.fail_over(master, kill).await;
    until_asked(&subject, Script).await;
    until("the service sells again", sells).await;
}

#[tokio::test]
async fn watch_on_a_cluster_is_refused_at_start() {
    let variables = [
        ("STRATEGY", "redis-watch"),
        ("REDIS_URL", "redis+cluster://127.0.0.1:1"),
    ];
    let ended = Process::run(&["serve"], &variables).await;
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    let names_both = ["STRATEGY", "cluster"].map(|name| ended.stderr.contains(name));
    assert_eq!(names_both, [true; 2], "{}", ended.stderr);
}

/// Other strategies and changes of levels go on.
#[tokio::test]
async fn silent_redis_stops_only_its_strategies() {
    let server = PrivateServer::redis(&[]).await;
    let app = TestApp::with_flags(Sqlite, 1, &["--redis-url", server.url()]).await;
    app.set_level(SKU, 5).await;
    let order = |strategy| send(app.deduct(0, strategy, &json!({"sku": SKU})));
    server.stop().await;
    for strategy in SAFE {
        let refused = order(strategy).await;
        assert_eq!(refused.status_and_code(), (503, "strategy-unavailable"));
        let says_why = refused.retry_after && refused.detail.contains("REDIS_URL");
        assert!(says_why, "{refused:?}");
    }
    order("group-commit").await.ok();
    app.set_level(SKU, 7).await;
    server.resume();
    for strategy in SAFE {
        let sells = async || order(strategy).await.status == 200;
        until("it sells again", sells).await;
    }
    assert_eq!(app.audit(SKU).await["on_hand"], 5);
}
