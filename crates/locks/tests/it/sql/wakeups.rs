//! Notifications of PostgreSQL, and waiting without them.

use std::time::Duration;

use sqlx::postgres::PgListener;
use stocklock_locks::LockManager;
use stocklock_testkit::proxy::Mode;
use stocklock_testkit::servers::Backend::Postgres;

use crate::rig::sql::SqlRig;
use crate::rig::{Faults, RigExt, Served as _, eventually, hand_over, use_lock};

const LONG: Duration = Duration::from_mins(1);

/// A manager whose fallback is so long that only a wake-up can wake a waiter in time.
fn no_fallback(rig: &SqlRig) -> LockManager {
    let builder = rig.builder_of_backend().fallback(LONG);
    LockManager::new(builder.build().unwrap())
}

/// Waits until the holder of a lock knows that a client waits for it.
async fn wait_until_awaited(rig: &SqlRig, within: Duration) {
    let awaited = "SELECT count(*) FROM distributed_lock WHERE is_awaited";
    let is_awaited = async || rig.number(awaited).await == 1;
    eventually("the waiter listens", within, is_awaited).await;
}

#[tokio::test]
async fn release_wakes_the_waiter_at_once() {
    let rig = SqlRig::start(Postgres).await;
    let [one, other] = [(); 2].map(|()| no_fallback(&rig));
    for _ in 0..3 {
        let guard = one.lock("loud").lease(LONG).acquire().await.unwrap();
        let waiter = tokio::spawn(other.lock("loud").wait(LONG).acquire());
        wait_until_awaited(&rig, rig.soon() * 2).await;
        let begin = rig.now();
        hand_over(guard, waiter).await;
        assert!(rig.now().since(begin) < rig.soon());
    }
}

/// Notifications serialise the commits of a database, so there is none without a waiter.
#[tokio::test]
async fn release_without_waiter_sends_no_notification() {
    let rig = SqlRig::start(Postgres).await;
    let mut listener = PgListener::connect(&rig.url()).await.unwrap();
    listener.listen("distributed_lock").await.unwrap();
    let [one, other] = [(); 2].map(|()| no_fallback(&rig));
    use_lock(&one, "quiet").await;
    let guard = one.lock("loud").acquire().await.unwrap();
    let waiter = tokio::spawn(other.lock("loud").acquire());
    wait_until_awaited(&rig, rig.soon() * 2).await;
    hand_over(guard, waiter).await;
    let first = listener.recv().await.unwrap();
    assert_eq!(first.payload(), "loud");
    use_lock(&one, "quiet").await;
    // This notification is sent after all others.
    rig.number("SELECT count(*) FROM (SELECT pg_notify('distributed_lock', 'last')) AS sent")
        .await;
    assert_eq!(listener.recv().await.unwrap().payload(), "last");
}

/// A lost message delays a waiter by the fallback of one second, not by the lease.
#[tokio::test]
async fn lost_notification_costs_at_most_the_fallback() {
    let rig = SqlRig::start(Postgres).await;
    let (one, other) = (rig.manager(), rig.manager());
    let lock = one.lock("quiet").lease(LONG);
    let guard = lock.acquire().await.unwrap();
    // It could not wait for the end of the lease.
    let waiter = tokio::spawn(other.lock("quiet").wait(LONG / 3).acquire());
    wait_until_awaited(&rig, rig.soon() * 2).await;
    // This frees the lock without a message.
    let begin = rig.now();
    rig.take_away("quiet").await;
    waiter.await.unwrap().unwrap().release().await;
    assert!(rig.now().since(begin) < Duration::from_secs(1) + rig.soon());
    drop(guard);
}

/// A connection that died silently is detected, and the waiter is woken over the next one.
#[tokio::test]
async fn dead_connection_for_wake_ups_is_replaced() {
    let rig = SqlRig::start(Postgres).await;
    let waits = no_fallback(&rig);
    let held = rig.past_the_proxy();
    let guard = held.lock("loud").lease(LONG).acquire().await.unwrap();
    let waiter = tokio::spawn(waits.lock("loud").wait(LONG).acquire());
    wait_until_awaited(&rig, rig.soon() * 2).await;
    rig.proxy().set(Mode::Strand).await;
    let begin = rig.now();
    hand_over(guard, waiter).await;
    assert!(rig.now().since(begin) < LONG / 2);
}
