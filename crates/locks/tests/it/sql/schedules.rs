//! Schedules in which a statement waits for a row that another connection has changed and not yet
//! committed. Each test has a server of its own, which counts the statements that wait.

use std::time::Duration;

use futures_util::future::join_all;
use rstest::rstest;
use stocklock_locks::backend::{Attempt, Backend as _};
use stocklock_locks::sql::SqlBackend;
use stocklock_locks::{LockManager, ReleaseOutcome};
use stocklock_testkit::assert_matches;
use stocklock_testkit::servers::Backend::{self, Mysql, Postgres};

use super::dead_holder;
use crate::rig::sql::SqlRig;
use crate::rig::{Rig, eventually, request, try_lock};

/// How long a test waits for a statement that must make progress.
const PATIENCE: Duration = Duration::from_secs(30);

/// A client whose statements may wait for as long as a test.
fn patient(rig: &SqlRig) -> SqlBackend {
    let builder = rig.builder_of_backend().response_limit(PATIENCE);
    builder.build().unwrap()
}

async fn wait_until_blocked(rig: &SqlRig, statements: i64) {
    let blocked = async || rig.blocked().await == statements;
    eventually("the statements wait for a row", PATIENCE, blocked).await;
}

/// Another client buries its nonce while the holder releases the lock: the row must stay, but free.
#[rstest]
#[tokio::test]
async fn release_that_waits_for_a_burial_frees_the_lock(#[values(Mysql, Postgres)] kind: Backend) {
    let rig = SqlRig::start_private(kind).await;
    let manager = LockManager::new(patient(&rig));
    let guard = try_lock(&manager, "sku").await.unwrap();
    let bury = "UPDATE distributed_lock SET gone = 'other', gone_until = expires_at + 60000000";
    let burial = rig.begin(bury).await;
    let release = tokio::spawn(guard.release());
    wait_until_blocked(&rig, 1).await;
    burial.commit().await;
    assert_matches!(release.await.unwrap(), ReleaseOutcome::Released { .. });
    assert_eq!((rig.left().await, rig.rows().await), (0, 1));
}

/// The lease ended before a repeated request arrived, and another client takes the lock over.
#[rstest]
#[tokio::test]
async fn repeated_request_is_not_granted_by_an_old_row(#[values(Mysql, Postgres)] kind: Backend) {
    let rig = SqlRig::start_private(kind).await;
    let mut contender = patient(&rig).contender(request("sku", PATIENCE));
    assert_matches!(contender.attempt().await.unwrap(), Attempt::Held(_));
    rig.change("UPDATE distributed_lock SET expires_at = 1")
        .await;
    let take_over = "UPDATE distributed_lock SET nonce = 'other', token = token + 1,
        expires_at = token + 60000000";
    let other = rig.begin(take_over).await;
    let repeated = tokio::spawn(async move { contender.attempt().await });
    wait_until_blocked(&rig, 1).await;
    other.commit().await;
    assert_matches!(repeated.await.unwrap().unwrap(), Attempt::Busy { .. });
}

/// A request waits for the release of a row. A client that got the lock before it has a lower token.
#[rstest]
#[tokio::test]
async fn token_is_later_than_the_wait_for_the_row(#[values(Mysql, Postgres)] kind: Backend) {
    let rig = SqlRig::start_private(kind).await;
    let manager = LockManager::new(patient(&rig));
    rig.change(dead_holder("sku", 1, 1)).await;
    let release = rig.begin("DELETE FROM distributed_lock").await;
    let acquired = tokio::spawn(manager.lock("sku").wait(PATIENCE).acquire());
    wait_until_blocked(&rig, 1).await;
    let waited = rig.clock().await;
    release.commit().await;
    let guard = acquired.await.unwrap().unwrap();
    assert!(guard.token().get() > waited);
}

/// Acquisitions of other locks wait for the database. The connections are not all theirs.
#[rstest]
#[tokio::test]
async fn release_does_not_wait_behind_acquisitions(#[values(Mysql, Postgres)] kind: Backend) {
    let rig = SqlRig::start_private(kind).await;
    let manager = LockManager::new(patient(&rig));
    let guard = try_lock(&manager, "held").await.unwrap();
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    for name in names {
        rig.change(dead_holder(name, 1, 1)).await;
    }
    let others = "UPDATE distributed_lock SET token = 2 WHERE name <> 'held'";
    let others = rig.begin(others).await;
    let lock = |name| tokio::spawn(manager.lock(name).wait(PATIENCE).acquire());
    let waiting = names.map(lock);
    // All connections but one.
    wait_until_blocked(&rig, 4).await;
    assert_matches!(guard.release().await, ReleaseOutcome::Released { .. });
    assert_eq!(rig.blocked().await, 4);
    others.commit().await;
    for guard in join_all(waiting).await {
        guard.unwrap().unwrap().release().await;
    }
}
