//! Guarded writes: a holder that is paused past its lease, and wakes up, changes nothing.
//!
//! The paused holder does not ask its guard whether it still holds the lock.

use std::future::{pending, ready};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rstest::rstest;
use stocklock_locks::backend::Admin as _;
use stocklock_locks::clock::{Clock, Moment};
use stocklock_locks::redis::FENCED_COMMAND;
use stocklock_locks::{LockError, LockGuard, LockManager, LostReason};
use stocklock_testkit::servers::Backend::{self as Database, Mysql, Postgres, Sqlite};
use tokio::runtime;

use crate::rig::redis::RedisRig;
use crate::rig::sql::SqlRig;
use crate::rig::zookeeper::ZooKeeperRig;
use crate::rig::{
    Faults as _, Rig as _, RigExt as _, TokenRig, eventually, holder, lost_reason, revoke_holder,
};

/// Acquires a lock that expires without renewal, and then again by another client.
async fn paused_holder_and_next(rig: &impl TokenRig) -> [LockGuard; 2] {
    let lock = |manager: &LockManager| manager.lock("account").wait(rig.lease() * 5);
    let paused = lock(&rig.manager()).max_renewals(0).acquire().await;
    let next = lock(&rig.manager()).acquire().await;
    [paused.unwrap(), next.unwrap()]
}

#[rstest]
#[tokio::test]
async fn write_of_paused_holder_is_refused_by_sql(
    #[values(Sqlite, Mysql, Postgres)] kind: Database,
) {
    let rig = SqlRig::start(kind).await;
    rig.create_account().await;
    let [paused, next] = paused_holder_and_next(&rig).await;
    assert_eq!(rig.write_account(&paused, 1).await, 1);
    assert_eq!(rig.write_account(&next, 2).await, 1);
    assert_eq!(rig.write_account(&paused, 3).await, 0);
    assert_eq!(rig.number("SELECT balance FROM account").await, 2);
    assert_eq!(rig.write_account(&next, 4).await, 1);
}

/// The owner is visible, the last token stays, and the note is not kept for long.
#[rstest]
#[tokio::test]
async fn write_of_revoked_holder_is_refused(#[values(Sqlite, Mysql, Postgres)] kind: Database) {
    let rig = SqlRig::start(kind).await;
    rig.create_account().await;
    let backend = rig.builder_of_backend().owner("shop-1 上海").build();
    let one = rig.builder_for(backend.unwrap()).build();
    let guard = one.lock("sku:42").acquire().await.unwrap();
    let operator = rig.manager();
    let holder = holder(operator.lock("sku:42")).await;
    assert_eq!(holder.owner.as_deref(), Some("shop-1 上海"));
    // The last token is an hour ahead of the clock, as if the clock was set back by an hour.
    let ahead = guard.token().get() + 3_600_000_000;
    let move_on = format!("UPDATE distributed_lock SET token = {ahead}");
    assert_eq!(rig.change(move_on).await, 1);
    assert!(operator.lock("sku:42").revoke(holder.nonce).await.unwrap());
    let now = rig.clock().await;
    let noted = format!(
        "SELECT count(*) FROM distributed_lock WHERE nonce = '' AND length(gone) = 64
            AND gone_until BETWEEN {now} + 110000000 AND {now} + 121000000"
    );
    assert_eq!(rig.number(noted).await, 1);
    let next = operator.lock("sku:42").acquire().await.unwrap();
    assert!(next.token().get() > ahead, "the token of the row counts");
    assert_eq!(rig.write_account(&next, 1).await, 1);
    assert_eq!(rig.write_account(&guard, 2).await, 0);
    guard.release().await;
    next.verify().await.unwrap();
    next.release().await;
}

async fn fenced(rig: &RedisRig, guard: &LockGuard, command: &[&str]) -> (bool, redis::Value) {
    redis::Script::new(FENCED_COMMAND)
        .key("{account}:fence")
        .key("{account}")
        .arg(guard.token().get())
        .arg(guard.source())
        .arg(command)
        .invoke_async(&mut rig.direct().await)
        .await
        .unwrap()
}

#[tokio::test]
async fn write_of_paused_holder_is_refused_by_redis() {
    let rig = RedisRig::start().await;
    let [paused, next] = paused_holder_and_next(&rig).await;
    let (written, _) = fenced(&rig, &paused, &["SET", "{account}", "1"]).await;
    assert!(written);
    let (written, balance) = fenced(&rig, &next, &["INCRBY", "{account}", "2"]).await;
    assert_eq!((written, balance), (true, redis::Value::Int(3)));
    let (written, newest) = fenced(&rig, &paused, &["SET", "{account}", "9"]).await;
    assert!(!written);
    let newest: i64 = redis::from_redis_value(newest).unwrap();
    assert_eq!(newest, next.token().get());
    assert_eq!(rig.run::<i64>("GET {account}").await, 3);
}

async fn data(rig: &ZooKeeperRig, node: &str) -> Vec<u8> {
    let (data, _) = rig.direct().await.get_data(node).await.unwrap();
    data
}

/// The server refuses the write although the guard does not know of its loss yet, and no other client
/// has written. An outdated version is no loss.
#[rstest]
#[tokio::test]
async fn write_of_paused_holder_is_refused_by_zookeeper(
    #[values(LostReason::Stolen, LostReason::Revoked)] reason: LostReason,
) {
    let rig = ZooKeeperRig::start().await;
    let backend = rig.backend();
    let manager = rig.builder_for(backend.clone()).build();
    let guard = manager.lock("account").acquire().await.unwrap();
    let node = rig.create(".balance", b"0").await;
    let write = async |value, version| backend.write_if_held(&guard, &node, value, version).await;
    assert_eq!(write(b"1", None).await.unwrap(), Some(1));
    assert_eq!(write(b"2", Some(1)).await.unwrap(), Some(2));
    assert_eq!(write(b"3", Some(1)).await.unwrap(), None);
    guard.check().unwrap();

    if reason == LostReason::Revoked {
        revoke_holder(rig.manager().lock("account")).await;
    } else {
        rig.take_away("account").await;
    }
    let error = write(b"4", None).await.unwrap_err();
    assert_eq!(lost_reason(&error), Some(reason));
    assert_eq!(guard.lost().await, reason);
    assert_eq!(backend.places(), 0);
    assert_eq!(data(&rig, &node).await, b"2");
}

/// The time stands still for a holder that is paused.
#[derive(Debug)]
struct Paused(Moment);

impl Clock for Paused {
    fn now(&self) -> Moment {
        self.0
    }

    fn sleep_until(&self, moment: Moment) -> BoxFuture<'static, ()> {
        if moment <= self.0 {
            return ready(()).boxed();
        }
        pending().boxed()
    }
}

/// The session ends while the holder is cut off. The holder believes that it has the lock, and learns of the
/// loss by its write.
#[tokio::test]
async fn write_after_end_of_session_is_refused_by_zookeeper() {
    let rig = ZooKeeperRig::start().await;
    let backend = rig.backend();
    // Connects in the runtime of this test.
    backend.ping().await.unwrap();
    // The tasks of the manager do not run, so no renewal informs it that the session has ended.
    let mut stopped = runtime::Builder::new_current_thread();
    let stopped = stopped.enable_time().build().unwrap();
    let manager = {
        let _spawns_tasks_there = stopped.enter();
        let builder = LockManager::builder(backend.clone());
        builder.clock(Paused(rig.now())).build()
    };
    let guard = manager.lock("account").acquire().await.unwrap();
    let node = rig.create(".balance", b"0").await;
    let write = async |value| backend.write_if_held(&guard, &node, value, None).await;
    assert_eq!(write(b"1").await.unwrap(), Some(1));

    rig.block().await;
    let lock = rig.past_the_proxy().lock("account").wait(rig.lease() * 10);
    let next = lock.acquire().await.unwrap();
    rig.unblock().await;
    let mut refused = None;
    eventually("the write is answered", rig.lease() * 10, async || {
        guard.check().unwrap();
        let answer = write(b"2").await;
        // Until the client has connected again.
        let is_answered = !matches!(answer, Err(LockError::Unavailable(_)));
        refused = Some(answer);
        is_answered
    })
    .await;
    let error = refused.unwrap().unwrap_err();
    let reason = LostReason::SessionExpired;
    assert_eq!(lost_reason(&error), Some(reason));
    assert_eq!(guard.lost().await, reason);
    assert_eq!(data(&rig, &node).await, b"1");
    next.release().await;
    stopped.shutdown_background();
}
