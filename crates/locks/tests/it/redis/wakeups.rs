//! How a waiter hears that a lock is free, and what it costs when it does not.

use std::time::Duration;

use stocklock_locks::LockManager;
use stocklock_locks::redis::RedisBackend;
use stocklock_testkit::proxy::Mode;

use super::run;
use crate::rig::redis::RedisRig;
use crate::rig::{Counts, Faults, Rig, RigExt, eventually};

/// A back end that only a wake-up can wake in time.
fn no_fallback(url: &str) -> RedisBackend {
    let builder = RedisBackend::builder(url).fallback(Duration::from_mins(1));
    builder.build().unwrap()
}

/// A message that never came costs the fallback of one second, not the lease of ten.
#[tokio::test]
async fn a_lost_wake_up_costs_at_most_the_fallback() {
    let rig = RedisRig::start().await;
    let mut direct = rig.direct().await;
    let (one, other) = (rig.manager(), rig.manager());
    let lock = one.lock("quiet").lease(Duration::from_secs(10));
    let guard = lock.acquire().await.unwrap();
    let waiter = tokio::spawn(other.lock("quiet").wait(Duration::from_secs(9)).acquire());
    eventually("it listens", rig.moment(), async || {
        rig.channels().await.len() == 1
    })
    .await;
    // Freed without a word.
    let begin = rig.now();
    run::<i64>(&mut direct, "DEL lock{quiet}").await;
    waiter.await.unwrap().unwrap().release().await;
    assert!(rig.now().since(begin) < Duration::from_secs(1) + rig.moment());
    drop(guard);
}

/// And one that comes is heard at once: the lease is never waited for.
#[tokio::test]
async fn a_wake_up_is_heard_at_once_and_its_subscription_goes() {
    let rig = RedisRig::start().await;
    let backend = || {
        let builder = RedisBackend::builder(&rig.url()).fallback(Duration::from_mins(1));
        LockManager::new(builder.build().unwrap())
    };
    let (one, other) = (backend(), backend());
    for _ in 0..3 {
        let guard = one.lock("loud").acquire().await.unwrap();
        let waiter = tokio::spawn(other.lock("loud").acquire());
        eventually("it listens", rig.moment(), async || {
            rig.channels().await == ["lock{loud}"]
        })
        .await;
        let begin = rig.now();
        guard.release().await;
        waiter.await.unwrap().unwrap().release().await;
        assert!(rig.now().since(begin) < rig.moment());
        eventually("nobody listens", rig.moment(), async || {
            rig.channels().await.is_empty()
        })
        .await;
    }
}

/// The connection for wake-ups was lost while nobody waited, and the first one who waits again is
/// woken as ever.
#[tokio::test]
async fn a_wake_up_is_heard_at_once_after_the_server_came_back() {
    let rig = RedisRig::start().await;
    let one = LockManager::new(no_fallback(&rig.url()));
    let other = LockManager::new(no_fallback(&rig.url()));
    for _ in 0..3 {
        let begin = rig.now();
        let guard = one.lock("loud").acquire().await.unwrap();
        let waiter = tokio::spawn(other.lock("loud").acquire());
        let listens = async || rig.channels().await == ["lock{loud}"];
        eventually("it listens", rig.moment() * 4, listens).await;
        guard.release().await;
        waiter.await.unwrap().unwrap().release().await;
        assert!(rig.now().since(begin) < rig.moment() * 4);
        rig.crash().await;
        rig.bring_up().await;
        let answers = async || one.ping().await.is_ok() && other.ping().await.is_ok();
        eventually("it answers", rig.moment() * 4, answers).await;
    }
}

/// A connection for wake-ups that has died without a sign is found out, also while others of the
/// process come and go on the same channel, which needs no word of the server.
#[tokio::test]
async fn a_dead_connection_for_wake_ups_is_replaced() {
    let rig = RedisRig::start().await;
    let backend = no_fallback(&rig.url());
    let [waits, comes_and_goes] = [(); 2].map(|()| LockManager::new(backend.clone()));
    let held = LockManager::new(no_fallback(&format!("redis://{}/", rig.server.address())));
    let guard = held.lock("loud").acquire().await.unwrap();
    let waiter = tokio::spawn(waits.lock("loud").wait(Duration::from_mins(1)).acquire());
    let listens = async || rig.channels().await == ["lock{loud}"];
    eventually("it listens", rig.moment(), listens).await;
    rig.proxy.set(Mode::Strand).await;
    let begin = rig.now();
    let subscribers = async || {
        let command = "PUBSUB NUMSUB lock{loud}";
        let (_, count): (String, u32) = run(&mut rig.direct().await, command).await;
        count
    };
    // The server does not know that the old one is dead.
    while subscribers().await < 2 {
        assert!(rig.now().since(begin) < Duration::from_secs(10));
        let lock = comes_and_goes.lock("loud").wait(Duration::from_millis(100));
        lock.acquire().await.unwrap_err();
    }
    let begin = rig.now();
    guard.release().await;
    waiter.await.unwrap().unwrap().release().await;
    assert!(rig.now().since(begin) < rig.moment());
}

/// Somebody else's key without an end is not asked for again and again.
#[tokio::test]
async fn a_key_that_never_ends_is_waited_for_with_the_fallback() {
    let rig = RedisRig::start().await;
    let mut direct = rig.direct().await;
    run::<String>(&mut direct, "SET lock{foreign} theirs").await;
    let counts = Counts::default();
    let manager = rig.builder().hooks(counts.clone()).build();
    let waiter = tokio::spawn(manager.lock("foreign").acquire());
    tokio::time::sleep(Duration::from_millis(600)).await;
    // One at once, one or two when it listens, and none before the fallback of a second.
    assert!(counts.attempts() <= 3, "{}", counts.attempts());
    run::<i64>(&mut direct, "DEL lock{foreign}").await;
    waiter.await.unwrap().unwrap().release().await;
}
