//! Refusals of Redis: an acquisition repeats its request as long as the refusal may pass, and then
//! reports the reason. A refusal costs the server one request, and nothing afterwards.

use std::time::Duration;

use rstest::rstest;
use stocklock_locks::backend::{Backend as _, Change, Left, Numbers as _};
use stocklock_locks::redis::RedisBackend;
use stocklock_locks::{LockError, LockManager};
use stocklock_testkit::assert_matches;
use tokio::time::Instant;

use super::run;
use crate::rig::redis::RedisRig;
use crate::rig::{Counts, Rig, RigExt, change, eventually, request};

/// Returns the message of an error. Checks that the error is transient.
fn transient(error: &LockError) -> String {
    let LockError::Unavailable(source) = error else {
        panic!("{error}");
    };
    assert!(!source.is_permanent(), "{error}");
    error.to_string()
}

/// While the server refuses, a short wait fails with the reason, and a long one continues. After
/// `end`, which stops the refusals, the long wait acquires the lock.
async fn check_refusal(rig: &RedisRig, code: &str, end: impl AsyncFnOnce()) {
    let counts = Counts::default();
    let manager = LockManager::builder(RedisBackend::new(&rig.url()).unwrap());
    let manager = manager.hooks(counts.clone()).build();
    let lock = manager.lock("refused");
    let short = lock.clone().wait(Duration::from_millis(200));
    let message = transient(&short.acquire().await.unwrap_err());
    let start = "the lock server is unavailable: redis: acquire \"refused\": ";
    assert!(message.starts_with(start), "{message}");
    assert!(message.contains(code), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    let before = counts.attempts();
    let long = tokio::spawn(lock.wait(Duration::from_secs(30)).acquire());
    let asks_again = async || counts.attempts() >= before + 3;
    eventually("more attempts", Duration::from_secs(15), asks_again).await;
    assert!(!long.is_finished());
    end().await;
    long.await.unwrap().unwrap().release().await;
}

async fn execute(rig: &RedisRig, command: &str) {
    assert_eq!(run::<String>(&mut rig.direct().await, command).await, "OK");
}

/// Neither the acquisition nor a release of what it might have left is sent again and again.
#[rstest]
#[case::full_memory("CONFIG SET maxmemory 1")]
#[case::replica("REPLICAOF 127.0.0.1 1")]
#[tokio::test]
async fn refused_acquisition_costs_one_script(#[case] refuse: &str) {
    const TIMES: u64 = 50;
    let rig = RedisRig::start().await;
    let manager = rig.manager();
    // The server knows the scripts then.
    for lock in [LockManager::lock, LockManager::write] {
        let guard = lock(&manager, "warm").acquire().await.unwrap();
        guard.release().await;
    }
    execute(&rig, refuse).await;
    let before = (rig.scripts().await, rig.proxy.connections());
    let begin = Instant::now();
    for number in 0..TIMES {
        for lock in [LockManager::lock, LockManager::write] {
            let lock = lock(&manager, &format!("n{number}"));
            transient(&lock.try_acquire().await.unwrap_err());
        }
    }
    // It waits for all releases.
    manager.shutdown().await;
    let connections = rig.proxy.connections() - before.1;
    let sent = rig.scripts().await - before.0;
    // One per second at most.
    assert!(
        connections <= 1 + begin.elapsed().as_secs(),
        "{connections}"
    );
    // Another one over each new connection.
    let expected = 2 * TIMES..=2 * TIMES + connections;
    assert!(
        expected.contains(&sent),
        "{sent}, {connections} connections"
    );
}

/// The address may lead to another server after a failover.
#[tokio::test]
async fn connection_to_a_replica_is_replaced() {
    let rig = RedisRig::start().await;
    let backend = rig.backend();
    let add = || change("hits", Change::Add(1));
    backend.change(&add()).await.unwrap();
    execute(&rig, "REPLICAOF 127.0.0.1 1").await;
    let before = rig.proxy.connections();
    let replaced = async || {
        backend.change(&add()).await.unwrap_err();
        rig.proxy.connections() > before
    };
    eventually("a new connection", Duration::from_secs(20), replaced).await;
}

/// The command that makes a server refuse writes, the one that ends that, and the code of its answers.
type Refusal = [&'static str; 3];

const FULL_MEMORY: Refusal = ["CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0", "OOM"];
const REPLICA: Refusal = ["REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE", "READONLY"];
const TOO_FEW_REPLICAS: Refusal = [
    "CONFIG SET min-replicas-to-write 1",
    "CONFIG SET min-replicas-to-write 0",
    "NOREPLICAS",
];

#[rstest]
#[tokio::test]
async fn refused_change_of_a_number_can_be_repeated(
    #[values(FULL_MEMORY, REPLICA, TOO_FEW_REPLICAS)] refusal: Refusal,
) {
    let [refuse, accept, code] = refusal;
    let rig = RedisRig::start().await;
    let backend = rig.backend();
    let change = change("hits", Change::Add(1));
    execute(&rig, refuse).await;
    let error = backend.change(&change).await.unwrap_err();
    assert!(!error.is_permanent(), "{error}");
    assert!(error.to_string().contains(code), "{error}");
    execute(&rig, accept).await;
    for _ in 0..2 {
        assert_eq!(backend.change(&change).await.unwrap().value, 1);
    }
}

#[rstest]
#[tokio::test]
async fn acquire_waits_while_writes_are_refused(
    #[values(FULL_MEMORY, REPLICA, TOO_FEW_REPLICAS)] refusal: Refusal,
) {
    let [refuse, accept, code] = refusal;
    let rig = RedisRig::start().await;
    execute(&rig, refuse).await;
    check_refusal(&rig, code, async || execute(&rig, accept).await).await;
}

/// What a script has done before it was stopped is not undone.
#[rstest]
#[case::in_a_script("-set", true)]
#[case::before_it("-evalsha -eval", false)]
#[tokio::test]
async fn script_stopped_by_a_missing_permission_is_unclear(
    #[case] missing: &str,
    #[case] is_unclear: bool,
) {
    let rig = RedisRig::start().await;
    let user = format!("ACL SETUSER shop on >s3cr3t ~* &* +@all {missing}");
    execute(&rig, &user).await;
    let url = format!("redis://shop:s3cr3t@{}/", rig.server().address());
    let backend = RedisBackend::new(&url).unwrap();
    let mut contender = backend.contender(request("own", rig.lease()));
    let error = contender.attempt().await.unwrap_err();
    // Redis 7.0 has no code of its own for it in a script.
    assert_eq!(error.is_permanent(), error.to_string().contains("NOPERM"));
    assert_eq!(contender.left() == Left::Unclear, is_unclear, "{error}");
}

/// Errors that an operator must fix are reported at once, even if the wait limit is long.
#[tokio::test]
async fn missing_password_and_foreign_key_fail_at_once() {
    let rig = RedisRig::start().await;
    let mut direct = rig.direct().await;
    let refused = async |code: &str| {
        let begin = rig.now();
        let lock = rig.manager().lock("refused").wait(Duration::from_mins(1));
        let error = lock.acquire().await.unwrap_err();
        assert_matches!(error, LockError::Unavailable(source) if source.is_permanent());
        assert!(error.to_string().contains(code), "{error}");
        assert!(rig.now().since(begin) < rig.soon());
    };
    run::<i64>(&mut direct, "HSET lock{refused} no string").await;
    refused("WRONGTYPE").await;
    execute(&rig, "CONFIG SET requirepass secret").await;
    refused("NOAUTH").await;
}
