//! Looking into locks, and taking them away from their holders.

use std::time::Duration;

use stocklock_locks::backend::{Backend as _, Claim};
use stocklock_locks::clock::Clock as _;
use stocklock_locks::{LockBuilder, LockError, LockView, LostReason, Nonce, ReleaseOutcome};
use stocklock_testkit::assert_matches;

use crate::rig::{
    CLAIM, Rig, RigExt, TokenRig, eventually, hand_over, holder, loss, lost_reason, revoke_holder,
    use_lock, wait_until_nothing_is_left,
};

/// A busy machine renews it in time. Some servers grant a shorter one.
const LEASE: Duration = Duration::from_secs(6);

const SOON: Duration = Duration::from_secs(20);

/// The clocks of some servers count milliseconds.
const ROUNDING: Duration = Duration::from_millis(2);

async fn inspect<T>(lock: LockBuilder<T>) -> LockView {
    lock.inspect().await.unwrap()
}

pub(super) async fn holder_is_shown_with_token_age_and_lease(rig: &impl Rig) {
    let (one, other) = (rig.manager(), rig.manager());
    assert_eq!(inspect(other.lock("seen")).await, LockView::default());
    let (begin, pause) = (rig.now(), rig.lease() / 10);
    let guard = one.lock("seen").acquire().await.unwrap();
    let acquired = rig.now();
    rig.clock().sleep_until(acquired + pause).await;
    let view = inspect(other.lock("seen")).await;
    let most = rig.now().since(begin) + ROUNDING;
    let [holder] = &view.holders[..] else {
        panic!("{view:?}");
    };
    assert_eq!(holder.token, rig.token(&guard));
    assert_eq!(holder.permits, 1);
    // A server without tokens does not store the time either.
    assert_eq!(holder.age.is_some(), holder.token.is_some());
    let age = holder.age.unwrap_or(pause);
    assert!(age + ROUNDING >= pause && age <= most, "{age:?}, {most:?}");
    match holder.expires_in {
        Some(rest) => assert!(!rest.is_zero() && rest <= rig.lease(), "{rest:?}"),
        // There is no lease: the session decides.
        None => assert!(rig.backend().properties().session.is_some()),
    }
    assert_eq!((view.waiters.len(), view.local_waiters), (0, 0));
    guard.release().await;
    assert_eq!(inspect(other.lock("seen")).await, LockView::default());
}

pub(super) async fn revoked_holder_learns_it_and_next_one_enters(rig: &impl Rig) {
    let (one, other, operator) = (rig.manager(), rig.manager(), rig.manager());
    let guard = one.lock("revoked").lease(LEASE).acquire().await.unwrap();
    let wait = || tokio::spawn(other.lock("revoked").wait(SOON).acquire());
    let (next, last) = (wait(), wait());
    let both_wait = async || inspect(other.lock("revoked")).await.local_waiters == 2;
    eventually("both tasks wait", SOON, both_wait).await;
    assert_eq!(inspect(one.lock("revoked")).await.local_waiters, 0);
    revoke_holder(operator.lock("revoked")).await;
    let next = next.await.unwrap().unwrap();
    rig.assert_grows(rig.token(&guard), &next);
    assert_eq!(guard.lost().await, LostReason::Revoked);
    assert_eq!(loss(guard.release().await), Some(LostReason::Revoked));
    next.verify().await.unwrap();
    hand_over(next, last).await;
    use_lock(&one, "revoked").await;
    wait_until_nothing_is_left(rig, SOON).await;
}

/// The holder asks before its next renewal.
pub(super) async fn revoked_holder_learns_it_from_each_request(rig: &impl Rig) {
    let (one, operator) = (rig.manager(), rig.manager());
    for request in ["verify", "extend", "downgrade", "release"] {
        if request == "downgrade" && CLAIM.get() != Claim::WRITE {
            continue;
        }
        let lock = rig.lock(&one, "asked").lease(LEASE).wait(SOON);
        let guard = lock.acquire().await.unwrap();
        let nonce = revoke_holder(rig.lock(&operator, "asked")).await;
        let error = match request {
            "verify" => guard.verify().await,
            "extend" => guard.extend(LEASE).await,
            "downgrade" => guard.downgrade().await,
            _ => match guard.release().await {
                ReleaseOutcome::AlreadyLost { reason, .. } => Err(LockError::Lost { reason }),
                other => panic!("{other:?}"),
            },
        };
        let reason = lost_reason(&error.unwrap_err());
        assert_eq!(reason, Some(LostReason::Revoked), "{request}");
        // An operator that repeats its request still learns that the first one succeeded.
        let again = rig.lock(&operator, "asked").revoke(nonce).await;
        assert!(again.unwrap(), "{request}");
    }
    wait_until_nothing_is_left(rig, SOON).await;
}

pub(super) async fn revocation_affects_only_its_holder(rig: &impl Rig) {
    let (one, operator) = (rig.manager(), rig.manager());
    let revoke = async |nonce| operator.lock("exact").revoke(nonce).await.unwrap();
    assert!(!revoke(Nonce::random()).await, "the lock is free");
    let first = one.lock("exact").lease(LEASE).acquire().await.unwrap();
    let released = holder(operator.lock("exact")).await.nonce;
    first.release().await;
    let second = one.lock("exact").lease(LEASE).acquire().await.unwrap();
    let nonce = holder(operator.lock("exact")).await.nonce;
    assert!(!revoke(released).await, "it has released the lock");
    second.verify().await.unwrap();
    assert!(revoke(nonce).await);
    let third = one.lock("exact").wait(SOON).acquire().await.unwrap();
    assert!(revoke(nonce).await, "the same request again");
    third.verify().await.unwrap();
    rig.assert_grows(rig.token(&second), &third);
    third.release().await;
    assert_eq!(second.lost().await, LostReason::Revoked);
    operator.shutdown().await;
    let closed = operator.lock("exact").revoke(nonce).await;
    assert_matches!(closed, Err(LockError::Shutdown));
}

pub(super) async fn readers_and_waiting_writer_are_shown(rig: &impl TokenRig) {
    let (one, other) = (rig.manager(), rig.manager());
    let reader = one.read("queue").acquire().await.unwrap();
    let writer = tokio::spawn(other.write("queue").wait(rig.lease() * 5).acquire());
    let waits = async || !inspect(one.read("queue")).await.waiters.is_empty();
    eventually("the writer waits", rig.soon() * 4, waits).await;
    let arrived = rig.now();
    let pause = rig.lease() / 10;
    rig.clock().sleep_until(arrived + pause).await;
    let view = inspect(one.read("queue")).await;
    let ([holder], [waiter]) = (&view.holders[..], &view.waiters[..]) else {
        panic!("{view:?}");
    };
    assert_eq!((holder.token, holder.permits), (Some(reader.token()), 1));
    assert_eq!(waiter.token, None);
    let (take, of) = (waiter.permits, waiter.permits);
    assert_eq!(Claim::Permits { take, of }, Claim::WRITE);
    let age = waiter.age.expect("the server knows it");
    assert!(age + ROUNDING >= pause, "{age:?}");
    assert!(holder.age >= waiter.age, "{view:?}");
    // The exclusive lock of this name is another one.
    assert_eq!(inspect(one.lock("queue")).await, LockView::default());
    hand_over(reader, writer).await;
}

pub(super) async fn revoked_writer_admits_readers(rig: &impl TokenRig) {
    let (one, other, operator) = (rig.manager(), rig.manager(), rig.manager());
    let writer = one.write("taken").lease(LEASE).acquire().await.unwrap();
    let reader = tokio::spawn(other.read("taken").wait(SOON).acquire());
    let waits = async || !inspect(operator.read("taken")).await.waiters.is_empty();
    eventually("the reader waits", SOON, waits).await;
    let nonce = holder(operator.read("taken")).await.nonce;
    let waiting = inspect(operator.read("taken")).await.waiters[0].nonce;
    assert!(!operator.read("taken").revoke(waiting).await.unwrap());
    assert!(operator.read("taken").revoke(nonce).await.unwrap());
    let reader = reader.await.unwrap().unwrap();
    assert!(reader.token() > writer.token());
    assert_eq!(writer.lost().await, LostReason::Revoked);
    reader.verify().await.unwrap();
    reader.release().await;
    wait_until_nothing_is_left(rig, SOON).await;
}
