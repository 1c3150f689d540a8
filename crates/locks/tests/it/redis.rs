//! Faults and costs that only Redis has.

use std::collections::BTreeMap;
use std::time::Duration;

use stocklock_locks::backend::{Backend, Left, Renewed, Request};
use stocklock_locks::redis::RedisBackend;
use stocklock_locks::{LockManager, LostReason};
use stocklock_testkit::assert_matches;
use stocklock_testkit::ports::free_port;
use stocklock_testkit::proxy::{Mode, Proxy};
use stocklock_testkit::servers::RedisSentinels;

use crate::rig::redis::{RedisRig, run};
use crate::rig::{Rig, RigExt, eventually, hand_over, request, revoke_holder, source_of};

mod client;
mod cluster;
mod permits;
mod refusals;
mod wakeups;

async fn token(manager: &LockManager, name: &str) -> i64 {
    let guard = manager.lock(name).acquire().await.unwrap();
    let token = guard.token().get();
    guard.release().await;
    token
}

#[tokio::test]
async fn tokens_grow_after_lost_token_and_clock_step_back() {
    let rig = RedisRig::start().await;
    let mut direct = rig.direct().await;
    let manager = rig.manager();
    let first = token(&manager, "fenced").await;
    assert_eq!(run::<i64>(&mut direct, "DEL lock{fenced}:token").await, 1);
    let second = token(&manager, "fenced").await;
    assert!(first < second);
    // The last token is an hour ahead of the clock, as if the clock was set back by an hour.
    let ahead = second + 3_600_000_000;
    run::<String>(&mut direct, &format!("SET lock{{fenced}}:token {ahead}")).await;
    assert_eq!(token(&manager, "fenced").await, ahead + 1);
    let memory: i64 = run(&mut direct, "PTTL lock{fenced}:token").await;
    assert!((1..=600_000).contains(&memory), "{memory}");
}

#[tokio::test]
async fn flushed_scripts_are_sent_again() {
    let rig = RedisRig::start().await;
    let guard = rig.manager().lock("flushed").acquire().await.unwrap();
    run::<String>(&mut rig.direct().await, "SCRIPT FLUSH").await;
    guard.extend(rig.lease()).await.unwrap();
    run::<String>(&mut rig.direct().await, "SCRIPT FLUSH").await;
    guard.release().await;
    assert_eq!(rig.left().await, 0);
}

/// Otherwise each acquisition during an outage would cost a release and a tombstone afterwards.
#[tokio::test]
async fn attempt_without_connection_needs_no_release() {
    let backend = RedisBackend::new(&format!("redis://127.0.0.1:{}/", free_port())).unwrap();
    let mut contender = backend.contender(request("away", Duration::from_secs(1)));
    contender.attempt().await.unwrap_err();
    assert_eq!(contender.left(), Left::Nothing);
}

/// The holder relies on the longest lease that a request was granted. A first attempt may arrive after that.
#[tokio::test]
async fn renewal_and_late_attempt_keep_the_longer_lease() {
    let rig = RedisRig::start().await;
    let (backend, long) = (rig.backend(), Duration::from_mins(1));
    let short = request("long", rig.lease());
    let renew = async |lease| {
        let renewal = Request {
            lease,
            ..short.clone()
        };
        let renewed = backend.renew(&[renewal]).await.unwrap();
        assert_matches!(renewed[..], [Renewed::Held(_)]);
    };
    let mut contender = backend.contender(short.clone());
    contender.attempt().await.unwrap();
    renew(long).await;
    renew(short.lease).await;
    let keeps = async || {
        let left: u64 = rig.run("PTTL lock{long}").await;
        assert!(Duration::from_millis(left) > long / 2, "{left} ms");
    };
    keeps().await;
    contender.attempt().await.unwrap();
    keeps().await;
}

/// The last token stays, and the tombstone expires.
#[tokio::test]
async fn revocation_keeps_last_token_and_expires() {
    let rig = RedisRig::start().await;
    let mut direct = rig.direct().await;
    let (one, operator) = (rig.manager(), rig.manager());
    let guard = one
        .lock("sku:42")
        .lease(Duration::from_secs(6))
        .acquire()
        .await
        .unwrap();
    // The last token is an hour ahead of the clock, as if the clock was set back by an hour.
    let ahead = guard.token().get() + 3_600_000_000;
    let set = format!("SET lock{{sku:42}}:token {ahead}");
    run::<String>(&mut direct, &set).await;
    let nonce = revoke_holder(operator.lock("sku:42")).await;
    let next = operator.lock("sku:42").acquire().await.unwrap();
    assert_eq!(next.token().get(), ahead + 1);
    assert_eq!(guard.lost().await, LostReason::Revoked);
    let left = format!("PTTL lock{{sku:42}}:gone:{nonce}");
    let left: i64 = run(&mut direct, &left).await;
    assert!((60_000..=120_000).contains(&left), "{left}");
    next.release().await;
}

/// Redis loses its data. Tokens that this process compares must stay comparable. The source that a client sets
/// is that of all clients.
#[tokio::test]
async fn source_outlives_loss_of_data() {
    let rig = RedisRig::start().await;
    let manager = rig.manager();
    // Another process gave the server its id.
    token(&rig.manager(), "other").await;
    let before = source_of(&manager, "fenced").await;
    run::<String>(&mut rig.direct().await, "FLUSHALL").await;
    assert_eq!(source_of(&manager, "fenced").await, before);
    let builder = RedisBackend::builder(&rig.url()).source("shop");
    let fixed = LockManager::new(builder.build().unwrap());
    for manager in [fixed, rig.manager()] {
        assert_eq!(source_of(&manager, "fenced").await, "redis:shop");
    }
}

#[tokio::test]
async fn ping_writes_nothing() {
    let rig = RedisRig::start().await;
    rig.manager().ping().await.unwrap();
    assert!(rig.keys("*").await.is_empty());
}

#[tokio::test]
async fn eviction_policy_causes_warning() {
    let rig = RedisRig::start().await;
    let backend = RedisBackend::new(&rig.url()).unwrap();
    assert_eq!(backend.maxmemory_policy_warning().await.unwrap(), None);
    let set = "CONFIG SET maxmemory-policy volatile-lru";
    run::<String>(&mut rig.direct().await, set).await;
    let warning = backend.maxmemory_policy_warning().await.unwrap();
    let warning = warning.expect("there is a warning");
    for policy in ["volatile-lru", "noeviction"] {
        assert!(warning.contains(policy), "{warning}");
    }
}

/// Checks the costs in the documentation: one round trip to acquire, one to release. The scripts run
/// four and three commands.
#[tokio::test]
async fn free_lock_costs_two_scripts_of_seven_calls() {
    let rig = RedisRig::start().await;
    let manager = rig.manager();
    token(&manager, "first").await;
    run::<String>(&mut rig.direct().await, "CONFIG RESETSTAT").await;
    for name in ["one", "two", "one"] {
        token(&manager, name).await;
    }
    let mut calls = rig.calls().await;
    // Ignore the commands of the direct connections.
    calls.retain(|command, _| !command.starts_with("client") && command != "config|resetstat");
    let expected = [
        ("del", 3),
        ("evalsha", 6),
        ("mget", 6),
        ("publish", 3),
        ("set", 6),
        ("time", 3),
    ];
    let expected = expected.map(|(command, calls)| (command.to_owned(), calls));
    assert_eq!(calls, BTreeMap::from(expected));
}

/// The first sentinel of the URL takes connections and never answers. The limits are shorter than the time
/// after which the driver gives it up.
#[tokio::test]
async fn silent_sentinel_delays_neither_locks_nor_wake_ups() {
    const LIMIT: Duration = Duration::from_millis(300);
    const LONG: Duration = Duration::from_mins(2);
    let (rig, replica) = (RedisRig::start().await, RedisRig::start().await);
    let port = rig.server().port();
    let command = format!("REPLICAOF 127.0.0.1 {port}");
    replica.run::<String>(&command).await;
    let sentinels = RedisSentinels::watching(port).await;
    let silent = Proxy::to(rig.server().address()).await;
    silent.set(Mode::Blackhole).await;
    let url = sentinels.url();
    let url = url.replacen("://", &format!("://{},", silent.address()), 1);
    let manager = || {
        let backend = RedisBackend::builder(&url).connect_limit(LIMIT);
        let backend = backend.response_limit(LIMIT).fallback(LONG);
        LockManager::new(backend.build().unwrap())
    };
    let (one, other) = (manager(), manager());
    let guard = one.lock("held").wait(LONG).acquire().await.unwrap();
    let waiter = tokio::spawn(other.lock("held").wait(LONG).acquire());
    let subscribed = async || rig.channels().await.iter().any(|name| name == "lock{held}");
    eventually("the waiter subscribes", LONG / 4, subscribed).await;
    hand_over(guard, waiter).await;
}
