//! Revocations on Redis: the last token stays, the note expires, and a request without an answer can be
//! repeated.

use std::time::Duration;

use stocklock_locks::{LostReason, Nonce};

use super::run;
use crate::rig::redis::RedisRig;
use crate::rig::{RigExt, holder, revoke_holder};

/// A busy machine renews it in time.
const LEASE: Duration = Duration::from_secs(6);

/// Long enough for a busy machine.
const SOON: Duration = Duration::from_secs(20);

#[tokio::test]
async fn revocation_keeps_last_token_and_expires() {
    let rig = RedisRig::start().await;
    let mut direct = rig.direct().await;
    let (one, operator) = (rig.manager(), rig.manager());
    let guard = one.lock("sku:42").lease(LEASE).acquire().await.unwrap();
    // The last token is an hour ahead of the clock, as if the clock was set back by an hour.
    let ahead = guard.token().get() + 3_600_000_000;
    let set = format!("SET lock{{sku:42}}:token {ahead}");
    run::<String>(&mut direct, &set).await;
    let nonce = revoke_holder(operator.lock("sku:42")).await;
    let next = operator.lock("sku:42").acquire().await.unwrap();
    assert_eq!(next.token().get(), ahead + 1);
    assert_eq!(guard.lost().await, LostReason::Revoked);
    let left = format!("PTTL lock{{sku:42}}:gone:{nonce}");
    let left: i64 = run(&mut direct, &left).await;
    assert!((60_000..=120_000).contains(&left), "{left}");
    next.release().await;
}

#[tokio::test]
async fn revocation_without_answer_can_be_repeated() {
    let rig = RedisRig::start().await;
    let (one, other) = (rig.past_the_proxy(), rig.past_the_proxy());
    let operator = rig.manager();
    let guard = one.lock("sku:42").lease(LEASE).acquire().await.unwrap();
    let next = tokio::spawn(other.lock("sku:42").wait(SOON).acquire());
    let lock = operator.lock("sku:42");
    let nonce = holder(lock.clone()).await.nonce;
    // The server knows the script then.
    assert!(!lock.revoke(Nonce::random()).await.unwrap());
    rig.proxy.cut_after(b"EVALSHA", 1);
    lock.revoke(nonce).await.unwrap_err();
    let next = next.await.unwrap().unwrap();
    assert!(lock.revoke(nonce).await.unwrap());
    next.verify().await.unwrap();
    assert_eq!(guard.lost().await, LostReason::Revoked);
    next.release().await;
}
