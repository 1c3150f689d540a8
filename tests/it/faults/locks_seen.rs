//! `/lab/locks` and the metrics of locks: one replica holds a lock, another one waits for it, and an
//! operator takes it away.

use std::time::Duration;

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use stocklock::strategy::Dependency;
use stocklock_testkit::eventually;

use super::lock_holder::Scene;
use super::{send, try_send};
use crate::support::process::Process;
use crate::support::services::Backend;

const LEASE: Duration = Duration::from_secs(3);
/// How long a busy machine may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// The lock of the scene's strategy, as this replica shows it.
async fn seen(scene: &Scene, replica: &Process) -> Value {
    let path = format!("/lab/locks?sku={}", scene.sku);
    let answer = replica.get(&path).await;
    let name = format!("stock:{}:main", scene.sku);
    assert_eq!(answer.ok()["name"], name);
    let locks = answer.body["locks"].as_array().expect("a list");
    let is_it = |lock: &&Value| lock["strategy"] == scene.strategy();
    locks.iter().find(is_it).expect("its strategy").clone()
}

fn length(list: &Value) -> usize {
    list.as_array().expect("a list").len()
}

/// Whether the lock is taken away from this holder.
async fn revoke(scene: &Scene, nonce: &str) -> bool {
    let (sku, strategy) = (&scene.sku, scene.strategy());
    let path = format!("/lab/locks?sku={sku}&strategy={strategy}&holder={nonce}");
    let answer = send(scene.other.request(Method::DELETE, &path)).await;
    answer.ok()["revoked"].as_bool().expect("a boolean")
}

#[rstest]
#[case::sql_lock(Backend::Mysql, Dependency::Database)]
#[case::sql_lock_with_wake_up(Backend::Postgres, Dependency::Database)]
#[case::redis_lock(Backend::Postgres, Dependency::Redis)]
#[case::redlock(Backend::Postgres, Dependency::RedisMasters)]
#[case::zookeeper_lock(Backend::Mysql, Dependency::Zookeeper)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holder_and_waiter_are_seen_and_holder_is_revoked(
    #[case] backend: Backend,
    #[case] service: Dependency,
) {
    let scene = Scene::open((service, backend), LEASE, 2, "").await;
    let waiting = tokio::spawn(try_send(scene.others_order()));
    let waits = async || seen(&scene, &scene.other).await["local_waiters"] == 1;
    eventually("the other replica waits", PATIENCE, waits).await;
    let queue = usize::from(service == Dependency::Zookeeper);
    let is_queued = async || length(&seen(&scene, &scene.other).await["waiters"]) == queue;
    eventually("the server knows it, if it can", PATIENCE, is_queued).await;

    let lock = seen(&scene, &scene.holder).await;
    assert_eq!(length(&lock["holders"]), 1, "{lock}");
    assert_eq!(
        (&lock["local_waiters"], &lock["error"]),
        (&json!(0), &json!(null))
    );
    let holder = &lock["holders"][0];
    let has_tokens = service != Dependency::RedisMasters;
    assert_eq!(holder["token"].is_i64(), has_tokens, "{lock}");
    assert_eq!(holder["age_ms"].is_u64(), has_tokens, "{lock}");
    let knows_owner = matches!(service, Dependency::Database | Dependency::Zookeeper);
    assert_eq!(holder["owner"].is_string(), knows_owner, "{lock}");
    let lease = holder["expires_in_ms"].as_u64();
    assert_eq!(lease.is_some(), service != Dependency::Zookeeper, "{lock}");
    assert!(lease.unwrap_or(0) <= 3_000, "{lock}");

    let labels = format!("{{strategy=\"{}\"", scene.strategy());
    let (at_holder, at_other) = (&scene.holder, &scene.other);
    let count = async |replica: &Process, series: &str, label: &str| {
        replica.counted(&format!("{series}{labels}{label}")).await
    };
    assert_eq!(count(at_holder, "stock_locks_held", "").await, 1);
    assert_eq!(count(at_holder, "stock_lock_waiters", "").await, 0);
    assert_eq!(count(at_other, "stock_lock_waiters", "").await, 1);
    assert_eq!(count(at_other, "stock_locks_held", "").await, 0);
    let attempts = "stock_lock_attempts_total";
    assert!(count(at_holder, attempts, ",outcome=\"held\"").await >= 1);
    // It waits before its first attempt is answered.
    let is_busy = async || count(at_other, attempts, ",outcome=\"busy\"").await >= 1;
    eventually("an attempt of the waiter is refused", PATIENCE, is_busy).await;
    let renewed = async || {
        count(
            at_holder,
            "stock_lock_renewals_total",
            ",outcome=\"answered\"",
        )
        .await
            >= 1
    };
    eventually("the lock is renewed", PATIENCE, renewed).await;

    let nonce = holder["nonce"].as_str().expect("a text");
    assert!(!revoke(&scene, &"0".repeat(32)).await);
    assert!(revoke(&scene, nonce).await);
    let sale = waiting.await.unwrap().expect("the other replica answers");
    assert_eq!(sale.status, 200, "{sale:?}");
    let lost =
        async || count(at_holder, "stock_locks_lost_total", ",reason=\"revoked\"").await == 1;
    eventually("the holder hears it", PATIENCE, lost).await;
    assert!(revoke(&scene, nonce).await, "the same request again");

    scene.read.let_go();
    let answer = scene.answer.await.unwrap().expect("the holder answers");
    assert_eq!(answer.status, 200, "it acquires the lock again: {answer:?}");
    let audit = scene.ledger.audit(&scene.sku).await;
    assert!(audit.consistent(), "{audit:?}");
    assert_eq!((audit.sold, audit.on_hand), (2, 0), "{audit:?}");
}
