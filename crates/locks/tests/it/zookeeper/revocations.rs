//! Revocations of a nonce that is not aware of its place, and of one that was revoked before.

use stocklock_locks::Nonce;
use stocklock_locks::backend::{Attempt, Backend as _, Claim, Request};
use stocklock_testkit::assert_matches;
use zookeeper_client::{Acls, CreateMode};

use crate::rig::zookeeper::ZooKeeperRig;
use crate::rig::{Rig as _, RigExt as _, use_lock};

/// Its node is the first one, but it has not read that yet.
#[tokio::test]
async fn revoked_waiter_does_not_queue_again() {
    let rig = ZooKeeperRig::start().await;
    let (backend, operator) = (rig.backend(), rig.manager());
    let guard = operator.lock("first").acquire().await.unwrap();
    let nonce = Nonce::random();
    let mut contender = backend.contender(Request {
        name: "first".into(),
        nonce,
        lease: rig.lease(),
        claim: Claim::Exclusive,
    });
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
    let view = operator.lock("again").inspect().await.unwrap();
    let nonce = view.holders[0].nonce;
    // The note of the first revocation.
    let note = format!("{}/.revoked/{nonce}", rig.root);
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    let direct = rig.direct().await;
    direct.create(&note, b"", &options).await.unwrap();
    assert!(operator.lock("again").revoke(nonce).await.unwrap());
    use_lock(&operator, "again").await;
}
