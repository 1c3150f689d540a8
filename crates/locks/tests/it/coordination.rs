//! Numbers, latches and barriers: what they leave behind, wake-ups, and processes that are killed.

use std::time::Duration;

use stocklock_locks::backend::{Change, Numbers as _};
use stocklock_locks::redis::RedisBackend;
use stocklock_locks::{LockError, LockManager};
use stocklock_testkit::assert_matches;
use stocklock_testkit::servers::Backend::Sqlite;

use crate::rig::memory::{LocalRig, MemoryRig};
use crate::rig::redis::{RedisRig, run};
use crate::rig::sql::SqlRig;
use crate::rig::zookeeper::ZooKeeperRig;
use crate::rig::{Faults as _, NumberFaults as _, Rig as _, RigExt as _, change, eventually, meet};

const LONG: Duration = Duration::from_mins(1);

#[tokio::test(start_paused = true)]
async fn latches_expire_and_barriers_leave_nothing_on_model() {
    let rig = MemoryRig::start().await;
    let (one, other) = (rig.manager(), rig.manager());
    for number in 0..200 {
        let name = format!("n{number}");
        meet(&one, &other, &name).await;
        one.latch(&name, 2).arrive().await.unwrap();
    }
    assert_eq!(rig.server.stored_numbers(), 200);
    let kept = one.latch("kept", 1);
    kept.arrive().await.unwrap();
    // Each arrival starts the hour again.
    tokio::time::sleep(Duration::from_mins(50)).await;
    kept.arrive().await.unwrap();
    tokio::time::sleep(Duration::from_mins(50)).await;
    assert_eq!(rig.server.stored_numbers(), 1);
    kept.wait(Duration::ZERO).await.unwrap();
    tokio::time::sleep(Duration::from_mins(11)).await;
    assert_eq!(rig.server.stored_numbers(), 0);
}

#[tokio::test(start_paused = true)]
async fn waiter_is_woken_at_once_and_lost_wake_up_costs_fallback() {
    let rig = MemoryRig::start().await;
    let (one, other) = (rig.manager(), rig.manager());
    for (lost, most) in [(0, Duration::from_millis(50)), (1, Duration::from_secs(2))] {
        let latch = other.latch(&format!("parts{lost}"), 1);
        let waiter = tokio::spawn(async move { latch.wait(LONG).await });
        tokio::time::sleep(Duration::from_millis(100)).await;
        rig.server.lose_wake_ups(lost);
        let begin = rig.now();
        let latch = one.latch(&format!("parts{lost}"), 1);
        latch.arrive().await.unwrap();
        waiter.await.unwrap().unwrap();
        let passed = rig.now().since(begin);
        assert!(passed < most, "{passed:?}");
    }
}

/// The fallback is an hour, so only the messages can wake the waiters.
#[tokio::test]
async fn waiters_on_redis_are_woken_by_messages() {
    let rig = RedisRig::start().await;
    let backend = || {
        let builder = RedisBackend::builder(&rig.url()).fallback(Duration::from_hours(1));
        builder.build().unwrap()
    };
    let (one, other) = (LockManager::new(backend()), LockManager::new(backend()));
    let latch = other.latch("parts", 1);
    let waiter = tokio::spawn(async move { latch.wait(LONG).await });
    let subscribed = async || rig.channels().await == ["lock{parts}:latch"];
    eventually("the waiter has subscribed", LONG, subscribed).await;
    one.latch("parts", 1).arrive().await.unwrap();
    waiter.await.unwrap().unwrap();
    for number in 0..5 {
        meet(&one, &other, &format!("round{}", number / 3)).await;
    }
}

/// Everything on Redis expires, except a number without a lifetime.
#[tokio::test]
async fn all_keys_expire_on_redis() {
    let rig = RedisRig::start().await;
    let (one, other) = (rig.manager(), rig.manager());
    meet(&one, &other, "round").await;
    one.latch("parts", 2).arrive().await.unwrap();
    // A change without a lifetime ends the one of an earlier change.
    let kept = one.number("kept");
    kept.clone().expires_after(LONG).add(1).await.unwrap();
    kept.add(1).await.unwrap();
    let endless = one.number("endless").expires_after(Duration::MAX);
    assert_eq!(endless.add(1).await.unwrap(), 1);
    let short = one.number("short").expires_after(Duration::from_secs(2));
    short.set(1).await.unwrap();
    assert!(!rig.keys("lock{parts}:latch").await.is_empty());
    assert!(rig.keys("lock{round}:gate").await.is_empty());
    let mut direct = rig.direct().await;
    for key in rig.keys("*").await {
        let left: i64 = run(&mut direct, &format!("PTTL {key}")).await;
        let stays = key == "lock{kept}:number" || key == "lock:source";
        assert_eq!(left == -1, stays, "{key}: {left} ms");
    }
    let expired = async || short.get().await.unwrap() == 0;
    eventually("the number expires", LONG, expired).await;
    // A key that another program has written is reported.
    run::<String>(&mut direct, "SET lock{foreign}:number text").await;
    let error = one.number("foreign").get().await.unwrap_err();
    assert_matches!(error, LockError::Unavailable(error) if error.is_permanent());
}

#[tokio::test]
async fn barrier_and_removed_latch_leave_no_node() {
    let rig = ZooKeeperRig::start_private().await;
    let (one, other) = (rig.manager(), rig.manager());
    for _ in 0..3 {
        meet(&one, &other, "round").await;
    }
    let latch = one.latch("parts", 1);
    let watched_latch = other.latch("parts", 1);
    let waiter = tokio::spawn(async move { watched_latch.wait(LONG).await });
    let watched = async || rig.counter("zk_watch_count").await == 1;
    eventually("the waiter watches", LONG, watched).await;
    latch.arrive().await.unwrap();
    waiter.await.unwrap().unwrap();
    let latch_of_other = other.latch("other", 1);
    let error = latch_of_other.wait(rig.moment()).await.unwrap_err();
    assert_matches!(error, LockError::Incomplete { .. });
    latch.remove().await.unwrap();
    let direct = rig.direct().await;
    let numbers = format!("{}/.numbers", rig.root);
    assert_eq!(direct.list_children(&numbers).await.unwrap(), [""; 0]);
    let no_watch = async || rig.counter("zk_watch_count").await == 0;
    eventually("no watch is left", LONG, no_watch).await;
}

/// The answer to a change is lost, and 40 other changes follow. The repetition must not guess.
#[tokio::test]
async fn change_forgotten_by_zookeeper_is_reported_as_unknown() {
    let rig = ZooKeeperRig::start().await;
    let (backend, other) = (rig.backend(), rig.past_the_proxy());
    let request = || change("hits", Change::Add(1));
    // Connects, and creates the node.
    backend.change(&request()).await.unwrap();
    other.number("hits").set(7_770).await.unwrap();
    for (changes, is_known) in [(20, true), (40, false)] {
        let before = other.number("hits").get().await.unwrap();
        let request = request();
        rig.lose_change_answer(before + 1).await;
        backend.change(&request).await.unwrap_err();
        for _ in 0..changes {
            other.number("hits").add(1).await.unwrap();
        }
        let repeated = async || match backend.change(&request).await {
            Ok(changed) => Some(changed.value == before + 1),
            Err(error) => error.is_permanent().then_some(false),
        };
        let mut outcome = None;
        eventually("the server answers", LONG, async || {
            outcome = repeated().await;
            outcome.is_some()
        })
        .await;
        assert_eq!(outcome, Some(is_known));
        let sum = other.number("hits").get().await.unwrap();
        assert_eq!(sum, before + 1 + changes);
    }
}

/// No message says that a number expires.
#[tokio::test(start_paused = true)]
async fn waiter_in_process_notices_expiry() {
    let rig = LocalRig::start().await;
    let number = rig.manager().number("short");
    let expiring = number.clone().expires_after(rig.moment());
    expiring.set(1).await.unwrap();
    let expired = number.wait_for(LONG, |number| number == 0).await.unwrap();
    assert_eq!(expired, Some(0));
}

/// The server is away for longer than one request may take.
#[tokio::test(start_paused = true)]
async fn leaving_participant_waits_for_server_on_model() {
    let rig = MemoryRig::start().await;
    let (one, other) = (rig.manager(), rig.past_the_proxy());
    let (first, second) = (one.barrier("round", 2), other.barrier("round", 2));
    let (first, second) = tokio::join!(first.enter(LONG), second.enter(LONG));
    let (first, second) = (first.unwrap(), second.unwrap());
    let leaving = tokio::spawn(first.leave(LONG));
    tokio::time::sleep(rig.moment()).await;
    rig.block().await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    rig.unblock().await;
    tokio::time::sleep(rig.moment()).await;
    assert!(!leaving.is_finished());
    second.leave(LONG).await.unwrap();
    leaving.await.unwrap().unwrap();
}

#[tokio::test]
async fn database_has_no_numbers_and_says_so() {
    let rig = SqlRig::start(Sqlite).await;
    let manager = rig.manager();
    let number = manager.number("hits").add(1).await.unwrap_err();
    let barrier = manager.barrier("round", 2).enter(LONG).await.unwrap_err();
    for error in [number, barrier] {
        assert_matches!(error, LockError::Unsupported { server: "sqlite" });
    }
}
