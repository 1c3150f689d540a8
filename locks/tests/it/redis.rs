//! What only Redis can do wrong.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use stocklock_locks::backend::{Backend, Request};
use stocklock_locks::redis::RedisBackend;
use stocklock_locks::{LockError, LockManager, Nonce};

use crate::rig::redis::RedisRig;
use crate::rig::{Rig, RigExt, eventually};

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
        run::<Vec<String>>(&mut rig.direct().await, "PUBSUB CHANNELS")
            .await
            .len()
            == 1
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
            run::<Vec<String>>(&mut rig.direct().await, "PUBSUB CHANNELS").await == ["lock{loud}"]
        })
        .await;
        let begin = rig.now();
        guard.release().await;
        waiter.await.unwrap().unwrap().release().await;
        assert!(rig.now().since(begin) < rig.moment());
        eventually("nobody listens", rig.moment(), async || {
            run::<Vec<String>>(&mut rig.direct().await, "PUBSUB CHANNELS")
                .await
                .is_empty()
        })
        .await;
    }
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

/// `READONLY`, `OOM`, `MISCONF` and a wrong password are all "unavailable", with the cause.
#[tokio::test]
async fn refusals_of_the_server_are_unavailable() {
    let rig = RedisRig::start().await;
    let mut direct = rig.direct().await;
    for (set, reset, code) in [
        ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0", "OOM"),
        ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE", "READONLY"),
        (
            "CONFIG SET min-replicas-to-write 1",
            "CONFIG SET min-replicas-to-write 0",
            "NOREPLICAS",
        ),
    ] {
        let lock = rig
            .manager()
            .lock("refused")
            .wait(Duration::from_millis(200));
        run::<String>(&mut direct, set).await;
        let error = lock.clone().acquire().await.unwrap_err();
        let LockError::Unavailable(source) = &error else {
            panic!("{error}");
        };
        assert!(
            format!("{source:?}").to_uppercase().contains(code),
            "{source:?}"
        );
        run::<String>(&mut direct, reset).await;
        lock.acquire().await.unwrap().release().await;
    }
    run::<String>(&mut direct, "CONFIG SET requirepass secret").await;
    let begin = rig.now();
    let error = rig.manager().lock("refused").acquire().await.unwrap_err();
    assert!(
        matches!(&error, LockError::Unavailable(source) if source.is_permanent()),
        "{error:?}"
    );
    assert!(rig.now().since(begin) < rig.moment());
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

/// Ten thousand acquisitions of as many names leave only the tokens, which go by themselves.
#[tokio::test]
async fn ten_thousand_names_leave_nothing() {
    let rig = RedisRig::start().await;
    let builder = RedisBackend::builder(&rig.url()).token_memory(Duration::from_secs(1));
    let manager = LockManager::new(builder.build().unwrap());
    let alive = tokio::runtime::Handle::current().metrics();
    let tasks = alive.num_alive_tasks();
    for hundred in 0..100 {
        let lock = |number| manager.lock(&format!("n{hundred}-{number}")).acquire();
        let guards = futures_util::future::join_all((0..100).map(lock)).await;
        for guard in guards {
            guard.unwrap().release().await;
        }
    }
    assert_eq!((manager.held(), manager.names()), (0, 0));
    eventually("the tasks ended", rig.moment(), async || {
        // The watchdog's latest renewal may still be on its way.
        alive.num_alive_tasks() <= tasks + 4
    })
    .await;
    let keys = async || rig.keys("*").await;
    eventually("the keys went", Duration::from_secs(10), async || {
        keys().await.len() == 1
    })
    .await;
    assert_eq!(keys().await, ["lock:source"]);
    assert!(
        run::<Vec<String>>(&mut rig.direct().await, "PUBSUB CHANNELS")
            .await
            .is_empty()
    );
}
