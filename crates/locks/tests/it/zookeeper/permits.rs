//! Faults of read-write locks: sessions that end, lost answers, lost connections.

use std::time::Duration;

use stocklock_locks::LockError;
use stocklock_testkit::assert_matches;

use crate::rig::zookeeper::ZooKeeperRig;
use crate::rig::{Faults as _, RigExt as _, eventually, wait_until_left};

/// How long a waiter waits. The session of another client ends long before.
const WAIT: Duration = Duration::from_mins(1);

/// Waits until the queue has this many places.
async fn until_queued(rig: &ZooKeeperRig, places: usize) {
    wait_until_left(rig, places, WAIT / 2).await;
}

/// The session of a reader ends while a writer waits for it. The reader knows of its loss before the
/// writer has the lock.
#[tokio::test]
async fn end_of_a_readers_session_wakes_the_writer() {
    let rig = ZooKeeperRig::start().await;
    let (reader, other) = (rig.manager(), rig.past_the_proxy());
    let reading = reader.read("a").acquire().await.unwrap();
    let second = other.read("a").acquire().await.unwrap();
    let writing = tokio::spawn(other.write("a").wait(WAIT).acquire());
    until_queued(&rig, 3).await;
    // The writer watched this one.
    second.release().await;
    until_queued(&rig, 2).await;
    assert!(!writing.is_finished());
    rig.block().await;
    let writer = writing.await.unwrap().unwrap();
    assert_matches!(reading.check().unwrap_err(), LockError::Lost { .. });
    rig.unblock().await;
    assert!(other.read("a").try_acquire().await.unwrap().is_none());
    writer.release().await;
    let again = reader.read("a").wait(WAIT).acquire().await;
    again.unwrap().release().await;
}

/// The session of a writer ends while it waits behind a reader. The reader behind it gets the lock beside
/// the first one. The writer waits again, in a new session, behind both.
#[tokio::test]
async fn end_of_a_waiting_writers_session_wakes_the_reader() {
    let rig = ZooKeeperRig::start().await;
    let (writer, other) = (rig.manager(), rig.past_the_proxy());
    let third = rig.past_the_proxy();
    let first = other.read("a").acquire().await.unwrap();
    let writing = tokio::spawn(writer.write("a").wait(WAIT).acquire());
    until_queued(&rig, 2).await;
    let reading = tokio::spawn(third.read("a").wait(WAIT).acquire());
    until_queued(&rig, 3).await;
    assert!(!reading.is_finished());
    rig.block().await;
    let second = reading.await.unwrap().unwrap();
    first.check().unwrap();
    rig.unblock().await;
    until_queued(&rig, 3).await;
    assert!(!writing.is_finished());
    first.release().await;
    second.release().await;
    let written = writing.await.unwrap().unwrap();
    assert!(third.read("a").try_acquire().await.unwrap().is_none());
    written.release().await;
}

/// The ensemble executes a downgrade, and its answer is lost. The reader that waits gets the lock, and the
/// repeated downgrade succeeds. No writer gets it before both have left.
#[tokio::test]
async fn lost_answer_of_a_downgrade_is_repeated() {
    // The data `1` and any version, as only this request sends them.
    const REDUCE: &[u8] = b"\0\0\0\x011\xff\xff\xff\xff";
    let rig = ZooKeeperRig::start().await;
    let (writer, other) = (rig.manager(), rig.past_the_proxy());
    let guard = writer.write("a").acquire().await.unwrap();
    let token = guard.token();
    let reading = tokio::spawn(other.read("a").wait(WAIT).acquire());
    until_queued(&rig, 2).await;
    rig.proxy.cut_after(REDUCE, 1);
    let error = guard.downgrade().await.unwrap_err();
    assert_matches!(error, LockError::Unavailable(_));
    let reader = reading.await.unwrap().unwrap();
    eventually(
        "the downgrade is answered",
        WAIT / 2,
        async || match guard.downgrade().await {
            Err(LockError::Unavailable(_)) => false,
            answer => {
                answer.unwrap();
                true
            }
        },
    )
    .await;
    assert_eq!(guard.token(), token);
    let third = rig.past_the_proxy();
    for holder in [guard, reader] {
        assert!(third.write("a").try_acquire().await.unwrap().is_none());
        holder.release().await;
    }
    let next = third.write("a").wait(WAIT).acquire().await.unwrap();
    assert!(next.token() > token);
    next.release().await;
}
