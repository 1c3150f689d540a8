//! Permits on a Redis that refuses some of their writes.

use stocklock_locks::backend::{
    Attempt, Backend, Claim, Release, ReleaseRequest, Renewal, Renewed,
};
use stocklock_locks::redis::RedisBackend;
use stocklock_testkit::assert_matches;

use super::run;
use crate::rig::redis::RedisRig;
use crate::rig::{Rig, RigExt, renewal, request};

/// Acquires a lock, and returns its renewal.
async fn acquired(rig: &RedisRig, backend: &RedisBackend, claim: Claim) -> Renewal {
    let mut request = request("kept", rig.lease() * 60);
    request.claim = claim;
    let attempt = backend.contender(request.clone()).attempt().await.unwrap();
    assert_matches!(attempt, Attempt::Held(_));
    request.lease *= 2;
    renewal(&request)
}

#[tokio::test]
async fn locks_and_permits_are_renewed_while_memory_is_full() {
    let rig = RedisRig::start().await;
    let backend = rig.backend();
    let renewals = [
        acquired(&rig, &backend, Claim::READ).await,
        acquired(&rig, &backend, Claim::Exclusive).await,
    ];
    run::<String>(&mut rig.direct().await, "CONFIG SET maxmemory 1").await;
    let renewed = backend.renew(&renewals).await.unwrap();
    let lease = renewals[0].lease;
    assert_eq!(renewed, [Renewed::Held(lease), Renewed::Held(lease)]);
}

/// Both remember the nonce, and free memory first.
#[tokio::test]
async fn locks_and_permits_are_freed_while_memory_is_full() {
    let rig = RedisRig::start().await;
    let backend = rig.backend();
    let mut direct = rig.direct().await;
    for claim in [Claim::Exclusive, Claim::READ] {
        let revoked = acquired(&rig, &backend, claim).await;
        run::<String>(&mut direct, "CONFIG SET maxmemory 1").await;
        let admin = backend.admin().unwrap();
        let revoke = admin.revoke("kept", revoked.nonce, claim).await;
        assert!(revoke.unwrap(), "{claim:?}");
        run::<String>(&mut direct, "CONFIG SET maxmemory 0").await;
        let released = acquired(&rig, &backend, claim).await;
        run::<String>(&mut direct, "CONFIG SET maxmemory 1").await;
        let request = ReleaseRequest {
            name: released.name,
            nonce: released.nonce,
            unclear: true,
            claim,
        };
        let release = backend.release(&request).await;
        assert_eq!(release.unwrap(), Release::Released, "{claim:?}");
        run::<String>(&mut direct, "CONFIG SET maxmemory 0").await;
    }
    assert_eq!(rig.left().await, 0);
}

/// Another program has replaced the permits of one lock. The permits are renewed in one request, and the
/// locks with one holder in another.
#[tokio::test]
async fn failed_renewal_of_permits_leaves_other_locks_alone() {
    let rig = RedisRig::start().await;
    let backend = rig.backend();
    let permits = acquired(&rig, &backend, Claim::READ).await;
    let lock = acquired(&rig, &backend, Claim::Exclusive).await;
    run::<String>(&mut rig.direct().await, "SET lock{kept}:holders other").await;
    let renewals = [permits.clone(), lock.clone()];
    let renewed = backend.renew(&renewals).await.unwrap();
    assert_eq!(renewed, [Renewed::Unknown, Renewed::Held(lock.lease)]);
    let error = backend.renew(&[permits]).await.unwrap_err();
    assert!(error.to_string().contains("WRONGTYPE"), "{error}");
}
