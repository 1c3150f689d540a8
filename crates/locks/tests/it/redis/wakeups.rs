//! Wake-ups of waiters over pub/sub, and the cost of a lost one.

use std::time::Duration;

use futures_util::future::join_all;
use rstest::rstest;
use stocklock_locks::backend::Backend as _;
use stocklock_locks::redis::RedisBackend;
use stocklock_locks::{LockManager, ReleaseOutcome};
use stocklock_testkit::assert_matches;
use stocklock_testkit::proxy::Mode;
use tokio::runtime::Builder;
use tokio::time::timeout;

use super::run;
use crate::rig::redis::RedisRig;
use crate::rig::{Counts, Faults, RigExt, eventually, hand_over, request, wait_until_left};

const LONG: Duration = Duration::from_mins(1);

/// A back end whose fallback is so long that only a wake-up can wake a waiter in time.
fn no_fallback(url: &str) -> RedisBackend {
    let builder = RedisBackend::builder(url).fallback(LONG);
    builder.build().unwrap()
}

/// Waits until a waiter for the lock `loud` has subscribed to its channel.
async fn wait_for_subscription(rig: &RedisRig, within: Duration) {
    let subscribed = async || rig.channels().await == ["lock{loud}"];
    eventually("the waiter subscribed", within, subscribed).await;
}

/// A waiter of another client is woken by a release.
async fn wake(rig: &RedisRig, [one, other]: &[LockManager; 2], within: Duration) {
    let guard = one.lock("loud").lease(LONG).acquire().await.unwrap();
    let waiter = tokio::spawn(other.lock("loud").wait(LONG).acquire());
    wait_for_subscription(rig, within).await;
    let begin = rig.now();
    hand_over(guard, waiter).await;
    assert!(rig.now().since(begin) < within);
}

/// The pub/sub connection is idle, or lost with the server, while no task waits. The next waiter is woken.
#[rstest]
#[tokio::test]
async fn wake_up_arrives_at_once(#[values(false, true)] restarts: bool) {
    let rig = RedisRig::start().await;
    let managers = [(); 2].map(|()| LockManager::new(no_fallback(&rig.url())));
    for _ in 0..3 {
        wake(&rig, &managers, rig.soon() * if restarts { 4 } else { 1 }).await;
        if restarts {
            rig.crash().await;
            rig.bring_up().await;
            let answers = async || {
                let pings = managers.iter().map(LockManager::ping);
                join_all(pings).await.iter().all(Result::is_ok)
            };
            eventually("the server answers", rig.soon() * 4, answers).await;
        } else {
            // The subscription stays for a while.
            let unsubscribed = async || rig.channels().await.is_empty();
            let soon = Duration::from_secs(10);
            eventually("the waiter unsubscribed", soon, unsubscribed).await;
        }
    }
}

/// A pub/sub connection that died silently is detected, even while other tasks of the process join
/// and leave the same channel. They need no answer from the server, so they cannot notice it.
#[tokio::test]
async fn dead_pubsub_connection_is_replaced() {
    let rig = RedisRig::start().await;
    let backend = no_fallback(&rig.url());
    let [waits, comes_and_goes] = [(); 2].map(|()| LockManager::new(backend.clone()));
    let held = LockManager::new(no_fallback(&rig.direct));
    let guard = held.lock("loud").lease(LONG).acquire().await.unwrap();
    let waiter = tokio::spawn(waits.lock("loud").wait(LONG).acquire());
    wait_for_subscription(&rig, rig.soon()).await;
    rig.proxy.set(Mode::Strand).await;
    let begin = rig.now();
    let subscribers = async || {
        let command = "PUBSUB NUMSUB lock{loud}";
        let (_, count): (String, u32) = run(&mut rig.direct().await, command).await;
        count
    };
    // The server still counts the dead connection as a subscriber.
    while subscribers().await < 2 {
        assert!(rig.now().since(begin) < LONG / 2);
        let lock = comes_and_goes.lock("loud").wait(Duration::from_millis(100));
        lock.acquire().await.unwrap_err();
    }
    let begin = rig.now();
    hand_over(guard, waiter).await;
    assert!(rig.now().since(begin) < rig.soon());
}

/// Clones of a back end share their wake-ups. The first one was used in a runtime that has ended.
#[tokio::test(flavor = "multi_thread")]
async fn wake_ups_outlive_the_runtime_that_started_them() {
    let rig = RedisRig::start().await;
    let backend = no_fallback(&rig.url());
    let managers = [no_fallback(&rig.url()), backend.clone()].map(LockManager::new);
    let short = tokio::task::spawn_blocking(move || {
        let mut runtime = Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        runtime.block_on(async {
            let latch = LockManager::new(backend).latch("parts", 1);
            latch.wait(Duration::from_secs(1)).await.unwrap_err();
        });
    });
    short.await.unwrap();
    wake(&rig, &managers, rig.soon()).await;
}

/// The runtime that started the wake-ups ends while a task of another one waits.
#[tokio::test(flavor = "multi_thread")]
async fn waiter_subscribes_again_after_the_end_of_a_runtime() {
    let rig = RedisRig::start().await;
    let backend = no_fallback(&rig.url());
    let mut runtime = Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).enable_all().build().unwrap();
    let mut first = backend.contender(request("loud", LONG));
    let first = runtime.spawn(async move {
        first.wait().await.unwrap();
        first
    });
    let _first = first.await.unwrap();
    let mut waiter = backend.contender(request("loud", LONG));
    waiter.wait().await.unwrap();
    runtime.shutdown_background();
    let is_gone = async || rig.channels().await.is_empty();
    eventually("the subscription is gone", LONG, is_gone).await;
    let subscribed = timeout(rig.soon() * 4, waiter.wait()).await;
    subscribed
        .expect("it does not wait for the lost one")
        .unwrap();
    wait_for_subscription(&rig, rig.soon()).await;
}

#[tokio::test]
async fn foreign_key_without_expiry_is_polled_with_fallback() {
    let rig = RedisRig::start().await;
    let mut direct = rig.direct().await;
    run::<String>(&mut direct, "SET lock{foreign} theirs").await;
    let (manager, counts) = rig.counted();
    let begin = rig.now();
    let waiter = tokio::spawn(manager.lock("foreign").wait(LONG).acquire());
    tokio::time::sleep(Duration::from_millis(600)).await;
    // One attempt at once, one or two after the subscription, and one for each fallback of about a second.
    let attempts = counts.attempts() - counts.failed();
    let fallbacks = rig.now().since(begin).as_millis() / 700;
    assert!(u128::from(attempts) <= 3 + fallbacks, "{attempts}");
    run::<i64>(&mut direct, "DEL lock{foreign}").await;
    waiter.await.unwrap().unwrap().release().await;
}

/// A user may use all keys, but no channel. Its locks are released, and its waiters ask again after
/// the fallback.
#[tokio::test]
async fn user_without_channel_rights_polls() {
    let rig = RedisRig::start().await;
    let set = "ACL SETUSER poll on >secret ~* +@all resetchannels";
    run::<String>(&mut rig.direct().await, set).await;
    let url = format!("redis://poll:secret@{}/", rig.server().address());
    let counts = Counts::default();
    let manager = || {
        let backend = RedisBackend::new(&url).unwrap();
        LockManager::builder(backend).hooks(counts.clone()).build()
    };
    let (one, other) = (manager(), manager());
    let guard = one.lock("quiet").lease(LONG).acquire().await.unwrap();
    let begin = rig.now();
    let waiter = tokio::spawn(other.lock("quiet").wait(LONG).acquire());
    let asks_again = async || counts.attempts() >= 4;
    eventually("it asks again and again", rig.soon() * 8, asks_again).await;
    // One attempt for each fallback of about a second, not one for each refused subscription.
    let attempts = counts.attempts() - counts.failed();
    let fallbacks = rig.now().since(begin).as_millis() / 700;
    assert!(u128::from(attempts) <= 3 + fallbacks, "{attempts}");
    assert_matches!(guard.release().await, ReleaseOutcome::Released { .. });
    waiter.await.unwrap().unwrap().release().await;
}

/// Waiters that poll subscribe to nothing, and ask about once per interval.
#[tokio::test]
async fn polling_waiters_subscribe_to_nothing() {
    const INTERVAL: Duration = Duration::from_millis(100);
    let rig = RedisRig::start().await;
    let counts = Counts::default();
    let backend = RedisBackend::builder(&rig.url()).polling(INTERVAL).build();
    let other = LockManager::builder(backend.unwrap());
    let (one, other) = (rig.manager(), other.hooks(counts.clone()).build());
    for lock in [LockManager::lock, LockManager::write] {
        let guard = lock(&one, "polled").lease(LONG).acquire().await.unwrap();
        let before = counts.attempts();
        let waiter = tokio::spawn(lock(&other, "polled").wait(LONG).acquire());
        let begin = rig.now();
        let asks_again = async || counts.attempts() >= before + 8;
        eventually("it asks again and again", rig.soon() * 4, asks_again).await;
        let intervals = rig.now().since(begin).as_millis() / INTERVAL.as_millis();
        assert!(intervals >= 4, "8 attempts in {intervals} intervals");
        assert!(rig.channels().await.is_empty());
        hand_over(guard, waiter).await;
    }
    // A latch is opened by a change of its number.
    let latch = other.latch("polled", 1);
    let opens = tokio::spawn(async move { latch.wait(Duration::from_mins(1)).await });
    // Usually it has found the latch closed by now.
    tokio::time::sleep(INTERVAL * 3).await;
    one.latch("polled", 1).arrive().await.unwrap();
    opens.await.unwrap().unwrap();
    assert!(rig.channels().await.is_empty());
}

/// Ten processes wait for one writer lock. Each release wakes only the process that is next, so the
/// number of requests does not grow with the number of waiters.
#[tokio::test]
async fn release_wakes_only_the_next_of_many_writers() {
    const PROCESSES: u64 = 10;
    let rig = RedisRig::start().await;
    let process = || LockManager::new(no_fallback(&rig.url()));
    let lock = |manager: &LockManager| manager.write("busy").lease(LONG).wait(LONG).acquire();
    let mut guard = lock(&process()).await.unwrap();
    let mut waiters = Vec::new();
    for number in 1..=PROCESSES {
        waiters.push(tokio::spawn(lock(&process())));
        wait_until_left(&rig, 1 + usize::try_from(number).unwrap(), rig.soon()).await;
    }
    let subscribed = async || rig.channels().await.len() as u64 == PROCESSES;
    eventually("all subscribed", rig.soon(), subscribed).await;
    let before = rig.scripts().await;
    for waiter in waiters {
        guard.release().await;
        guard = waiter.await.unwrap().unwrap();
    }
    // For each release its own request and one of the next process, and at most one of each process after
    // its subscription; and one more, because the server did not know the script of the release. If all were
    // woken each time, there would be 65.
    let requests = rig.scripts().await - before;
    let expected = 2 * PROCESSES..=3 * PROCESSES + 1;
    assert!(expected.contains(&requests), "{requests}");
    guard.release().await;
}

/// Many waiters subscribe at the same time, and then again and again.
#[tokio::test]
async fn subscriptions_share_requests_and_stay_for_a_while() {
    let rig = RedisRig::start().await;
    let [one, other] = [(); 2].map(|()| LockManager::new(no_fallback(&rig.url())));
    let requests = async || rig.calls().await["subscribe"];
    let names: Vec<_> = (0..200).map(|number| format!("n{number}")).collect();
    let held = names.iter().map(|name| one.lock(name).acquire());
    let held = join_all(held).await;
    let waiting = names.iter().map(|name| {
        let lock = other.lock(name).wait(Duration::from_mins(1));
        tokio::spawn(lock.acquire())
    });
    let waiting: Vec<_> = waiting.collect();
    let subscribed = async || rig.channels().await.len() == names.len();
    eventually("all subscribed", Duration::from_secs(10), subscribed).await;
    let first = requests().await;
    assert!(first <= 50, "{first}");
    for guard in held {
        guard.unwrap().release().await;
    }
    for waiter in waiting {
        waiter.await.unwrap().unwrap().release().await;
    }
    let before = requests().await;
    for _ in 0..20 {
        let guard = one.lock("n0").acquire().await.unwrap();
        let waiter = tokio::spawn(other.lock("n0").acquire());
        let waits = async || other.names() == 1;
        eventually("it waits", rig.soon(), waits).await;
        hand_over(guard, waiter).await;
    }
    let again = requests().await - before;
    assert!(again <= 1, "{again}");
}
