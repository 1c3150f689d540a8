//! Permits and locks on a Redis that refuses some of their writes, or has keys of other programs.

use stocklock_locks::LostReason;
use stocklock_locks::backend::{Admin as _, Attempt, Backend, Claim, Release, Renewed, Request};
use stocklock_locks::redis::RedisBackend;
use stocklock_testkit::assert_matches;

use super::run;
use crate::rig::redis::RedisRig;
use crate::rig::{Rig, RigExt, request};

/// Acquires the lock `kept`, and returns its renewal.
async fn acquired(rig: &RedisRig, backend: &RedisBackend, claim: Claim) -> Request {
    acquired_as("kept", rig, backend, claim).await
}

async fn acquired_as(name: &str, rig: &RedisRig, backend: &RedisBackend, claim: Claim) -> Request {
    let mut request = request(name, rig.lease() * 60);
    request.claim = claim;
    let attempt = backend.contender(request.clone()).attempt().await.unwrap();
    assert_matches!(attempt, Attempt::Held(_));
    request.lease *= 2;
    request
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
        let revoke = backend.revoke("kept", revoked.nonce, claim).await;
        assert!(revoke.unwrap(), "{claim:?}");
        run::<String>(&mut direct, "CONFIG SET maxmemory 0").await;
        let released = acquired(&rig, &backend, claim).await;
        run::<String>(&mut direct, "CONFIG SET maxmemory 1").await;
        let release = backend.release(&released, true).await;
        assert_eq!(release.unwrap(), Release::Released, "{claim:?}");
        run::<String>(&mut direct, "CONFIG SET maxmemory 0").await;
    }
    assert_eq!(rig.left().await, 0);
}

/// The user loses a right. The permits are renewed in one request, and the locks with one holder in another.
#[tokio::test]
async fn failed_renewal_of_permits_leaves_other_locks_alone() {
    let rig = RedisRig::start().await;
    let backend = rig.backend();
    let permits = acquired(&rig, &backend, Claim::READ).await;
    let lock = acquired(&rig, &backend, Claim::Exclusive).await;
    run::<String>(&mut rig.direct().await, "ACL SETUSER default -zscore").await;
    let renewals = [permits.clone(), lock.clone()];
    let renewed = backend.renew(&renewals).await.unwrap();
    assert_eq!(renewed, [Renewed::Unknown, Renewed::Held(lock.lease)]);
    backend.renew(&[permits]).await.unwrap_err();
}

/// Another program has replaced a key of one lock. It was renewed together with another one.
#[tokio::test]
async fn foreign_key_loses_only_its_own_lock() {
    let rig = RedisRig::start().await;
    let backend = rig.backend();
    let mut direct = rig.direct().await;
    let keys = ["lock{foreign}", "lock{foreign}:holders"];
    for (claim, key) in [Claim::Exclusive, Claim::READ].into_iter().zip(keys) {
        let foreign = acquired_as("foreign", &rig, &backend, claim).await;
        let kept = acquired(&rig, &backend, claim).await;
        run::<i64>(&mut direct, &format!("DEL {key}")).await;
        run::<i64>(&mut direct, &format!("HSET {key} no lock")).await;
        let renewed = backend.renew(&[foreign.clone(), kept.clone()]).await;
        let gone = Renewed::Gone(LostReason::Stolen);
        assert_eq!(renewed.unwrap(), [gone, Renewed::Held(kept.lease)]);
        if claim == Claim::Exclusive {
            let verified = backend.verify("foreign", foreign.nonce).await;
            assert_eq!(verified.unwrap(), Some(LostReason::Stolen));
        }
    }
}

/// The clock of the server jumps, so the lease has ended. No other client has asked for permits since.
#[tokio::test]
async fn verify_of_permits_compares_the_end_of_the_lease() {
    let rig = RedisRig::start().await;
    let backend = rig.backend();
    let permits = acquired(&rig, &backend, Claim::READ).await;
    let verified = async || backend.verify("kept", permits.nonce).await.unwrap();
    assert_eq!(verified().await, None);
    let ended = format!("ZADD lock{{kept}}:holders XX CH 1 {}", permits.nonce);
    assert_eq!(rig.run::<i64>(&ended).await, 1);
    assert_eq!(verified().await, Some(LostReason::Stolen));
}
