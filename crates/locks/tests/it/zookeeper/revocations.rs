//! Revocations of a nonce that is not aware of its place, and of one that was revoked before.

use stocklock_locks::backend::{Attempt, Backend as _};
use stocklock_testkit::assert_matches;

use crate::rig::zookeeper::ZooKeeperRig;
use crate::rig::{Rig as _, RigExt as _, holder, request, use_lock};

/// Its node is the first one, but it has not read that yet.
#[tokio::test]
async fn revoked_waiter_does_not_queue_again() {
    let rig = ZooKeeperRig::start().await;
    let (backend, operator) = (rig.backend(), rig.manager());
    let guard = operator.lock("first").acquire().await.unwrap();
    let request = request("first", rig.lease());
    let nonce = request.nonce;
    let mut contender = backend.contender(request);
    assert_matches!(contender.attempt().await.unwrap(), Attempt::Busy { .. });
    guard.release().await;
    assert!(operator.lock("first").revoke(nonce).await.unwrap());
    let error = contender.attempt().await.unwrap_err();
    assert!(error.is_permanent(), "{error}");
    assert_eq!(rig.left().await, 0);
}

#[tokio::test]
async fn second_revocation_of_a_nonce_takes_its_place_away() {
    let rig = ZooKeeperRig::start().await;
    let (one, operator) = (rig.manager(), rig.manager());
    let _guard = one.lock("again").acquire().await.unwrap();
    let nonce = holder(operator.lock("again")).await.nonce;
    // The note of the first revocation.
    rig.create(&format!(".revoked/{nonce}"), b"").await;
    assert!(operator.lock("again").revoke(nonce).await.unwrap());
    use_lock(&operator, "again").await;
}
