//! What only Redis can do wrong.

use redis::aio::MultiplexedConnection;
use stocklock_locks::backend::{Backend, Request};
use stocklock_locks::redis::RedisBackend;
use stocklock_locks::{LockManager, Nonce};
use stocklock_testkit::ports::free_port;

use crate::rig::redis::RedisRig;
use crate::rig::{Rig, RigExt};

mod refusals;
mod wakeups;

async fn run<T: redis::FromRedisValue>(to: &mut MultiplexedConnection, command: &str) -> T {
    let mut words = command.split(' ');
    let mut built = redis::cmd(words.next().unwrap());
    words.for_each(|word| {
        built.arg(word);
    });
    built.query_async(to).await.expect(command)
}

async fn token(manager: &LockManager, name: &str) -> i64 {
    let guard = manager.lock(name).acquire().await.unwrap();
    let token = guard.token().get();
    guard.release().await;
    token
}

#[tokio::test]
async fn tokens_grow_without_the_last_one_and_when_the_clock_goes_back() {
    let rig = RedisRig::start().await;
    let mut direct = rig.direct().await;
    let manager = rig.manager();
    let first = token(&manager, "fenced").await;
    assert_eq!(run::<i64>(&mut direct, "DEL lock{fenced}:token").await, 1);
    let second = token(&manager, "fenced").await;
    assert!(first < second);
    // An hour ahead of the clock, as after the clock was set back by an hour.
    let ahead = second + 3_600_000_000;
    run::<String>(&mut direct, &format!("SET lock{{fenced}}:token {ahead}")).await;
    assert_eq!(token(&manager, "fenced").await, ahead + 1);
    let memory: i64 = run(&mut direct, "PTTL lock{fenced}:token").await;
    assert!((1..=600_000).contains(&memory), "{memory}");
}

#[tokio::test]
async fn scripts_that_the_server_forgot_are_sent_again() {
    let rig = RedisRig::start().await;
    let guard = rig.manager().lock("flushed").acquire().await.unwrap();
    run::<String>(&mut rig.direct().await, "SCRIPT FLUSH").await;
    guard.extend(rig.lease()).await.unwrap();
    run::<String>(&mut rig.direct().await, "SCRIPT FLUSH").await;
    guard.release().await;
    assert_eq!(rig.left().await, 0);
}

/// Or each acquisition while Redis is away would cost a release and a tombstone when it is back.
#[tokio::test]
async fn what_was_never_sent_has_left_nothing() {
    let backend = RedisBackend::new(&format!("redis://127.0.0.1:{}/", free_port())).unwrap();
    let mut contender = backend.contender(Request {
        name: "away".into(),
        nonce: Nonce::random(),
        lease: std::time::Duration::from_secs(1),
    });
    contender.attempt().await.unwrap_err();
    assert!(!contender.may_have_left_something());
}

/// The request to acquire arrives after the release that gave it up.
#[tokio::test]
async fn an_acquire_that_arrives_after_its_release_takes_nothing() {
    let rig = RedisRig::start().await;
    let backend = rig.backend();
    let nonce = Nonce::random();
    backend.release("late", nonce).await.unwrap();
    let request = Request {
        name: "late".into(),
        nonce,
        lease: rig.lease(),
    };
    backend.contender(request).attempt().await.unwrap_err();
    assert_eq!(rig.left().await, 0);
}

#[tokio::test]
async fn a_ping_writes_nothing() {
    let rig = RedisRig::start().await;
    rig.manager().ping().await.unwrap();
    assert!(rig.keys("*").await.is_empty());
}

#[tokio::test]
async fn a_policy_that_may_evict_locks_is_warned_of() {
    let rig = RedisRig::start().await;
    let backend = RedisBackend::new(&rig.url()).unwrap();
    assert_eq!(backend.maxmemory_policy_warning().await.unwrap(), None);
    let set = "CONFIG SET maxmemory-policy volatile-lru";
    run::<String>(&mut rig.direct().await, set).await;
    let warning = backend
        .maxmemory_policy_warning()
        .await
        .unwrap()
        .expect("a warning");
    assert!(
        warning.contains("volatile-lru") && warning.contains("noeviction"),
        "{warning}"
    );
    backend.close().await;
}

/// What the documentation says that a lock costs: one round trip to acquire, one to release.
#[tokio::test]
async fn a_lock_that_is_free_costs_two_commands() {
    let rig = RedisRig::start().await;
    let manager = rig.manager();
    token(&manager, "first").await;
    run::<String>(&mut rig.direct().await, "CONFIG RESETSTAT").await;
    for name in ["one", "two", "one"] {
        token(&manager, name).await;
    }
    let stats: String = run(&mut rig.direct().await, "INFO commandstats").await;
    // Those of our own connection here, and the commands within the scripts, are others.
    let scripts: Vec<_> = stats.lines().filter(|line| line.contains("eval")).collect();
    assert_eq!(scripts.len(), 1, "{scripts:?}");
    assert!(
        scripts[0].starts_with("cmdstat_evalsha:calls=6,"),
        "{scripts:?}"
    );
}
