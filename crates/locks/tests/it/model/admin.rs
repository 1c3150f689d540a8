//! Revocations with lost requests and answers, on the model.

use std::time::Duration;

use stocklock_locks::memory::Question;
use stocklock_locks::{LockError, LockManager, LostReason};
use stocklock_testkit::assert_matches;
use tokio::time::{Instant, sleep};

use super::{LEASE, RESPONSE, manager, server};
use crate::rig::{holder, lost_reason, revoke_holder};

/// The waiter is woken, and the holder learns of it at its next renewal.
#[tokio::test(start_paused = true)]
async fn revocation_wakes_waiter_before_the_holder_learns_it() {
    let server = server();
    let [one, other, operator] = [manager(&server), manager(&server), manager(&server)];
    for lock in [LockManager::lock, LockManager::write] {
        let guard = lock(&one, "a").acquire().await.unwrap();
        let next = tokio::spawn(lock(&other, "a").acquire());
        sleep(Duration::from_millis(300)).await;
        let nonce = holder(lock(&operator, "a")).await.nonce;
        let begin = Instant::now();
        assert!(lock(&operator, "a").revoke(nonce).await.unwrap());
        let next = next.await.unwrap().unwrap();
        assert!(begin.elapsed() < Duration::from_millis(50));
        assert!(guard.check().is_ok(), "it does not know it yet");
        assert_eq!(guard.lost().await, LostReason::Revoked);
        assert!(begin.elapsed() < LEASE / 3 + Duration::from_millis(50));
        next.release().await;
    }
}

/// The operator repeats its request while the next client has the lock.
#[tokio::test(start_paused = true)]
async fn revocation_with_lost_answer_can_be_repeated() {
    let server = server();
    let [one, other, operator] = [manager(&server), manager(&server), manager(&server)];
    let guard = one.lock("a").acquire().await.unwrap();
    let next = tokio::spawn(other.lock("a").wait(LEASE).acquire());
    let nonce = holder(operator.lock("a")).await.nonce;
    server.lose_answers(Question::Revoke, 1);
    let unclear = operator.lock("a").revoke(nonce).await;
    assert_matches!(unclear, Err(LockError::Unavailable(_)));
    let next = next.await.unwrap().unwrap();
    assert!(operator.lock("a").revoke(nonce).await.unwrap());
    next.verify().await.unwrap();
    assert_eq!(guard.lost().await, LostReason::Revoked);
    assert!(guard.token() < next.token());
}

/// The answer to the renewal contains the reason: no other request delays the loss.
#[tokio::test(start_paused = true)]
async fn reason_of_a_loss_needs_no_other_request() {
    let server = server();
    let [one, operator] = [manager(&server), manager(&server)];
    let guard = one.lock("a").acquire().await.unwrap();
    revoke_holder(operator.lock("a")).await;
    for question in [Question::Read, Question::Verify, Question::Release] {
        server.lose_requests(question, 9);
    }
    let begin = Instant::now();
    let error = guard.extend(LEASE).await.unwrap_err();
    assert_eq!(lost_reason(&error), Some(LostReason::Revoked));
    assert!(begin.elapsed() < RESPONSE / 2, "{:?}", begin.elapsed());
    guard.check().unwrap_err();
}

/// The lease is longer than two minutes, and so is the time until the next renewal.
#[tokio::test(start_paused = true)]
async fn revocation_is_remembered_until_the_end_of_a_long_lease() {
    let server = server();
    let [one, operator] = [manager(&server), manager(&server)];
    let lease = Duration::from_mins(10);
    let guard = one.lock("a").lease(lease).acquire().await.unwrap();
    let nonce = revoke_holder(operator.lock("a")).await;
    let begin = Instant::now();
    assert_eq!(guard.lost().await, LostReason::Revoked);
    assert!(begin.elapsed() > lease / 4, "{:?}", begin.elapsed());
    sleep(lease).await;
    let again = operator.lock("a").revoke(nonce).await;
    assert!(!again.unwrap(), "forgotten");
}

/// A holder of the manager that revokes it learns of it before its next renewal.
#[tokio::test(start_paused = true)]
async fn holder_of_the_same_manager_learns_it_at_once() {
    let server = server();
    let manager = manager(&server);
    let guard = manager.lock("a").acquire().await.unwrap();
    let begin = Instant::now();
    revoke_holder(manager.lock("a")).await;
    assert_eq!(guard.lost().await, LostReason::Revoked);
    assert!(begin.elapsed() < RESPONSE);
}
