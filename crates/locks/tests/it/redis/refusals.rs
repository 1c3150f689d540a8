//! What Redis says when it will not: a lock attempt waits while that may pass, and says why.

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use stocklock_locks::redis::RedisBackend;
use stocklock_locks::{LockError, LockManager};
use stocklock_testkit::ports::free_port;
use stocklock_testkit::servers::{PrivateServer, ask};

use super::run;
use crate::rig::redis::RedisRig;
use crate::rig::{Counts, Rig, RigExt, eventually};

/// The line that a refused attempt is reported with; it was not permanent.
fn transient(error: &LockError) -> String {
    let LockError::Unavailable(source) = error else {
        panic!("{error}");
    };
    assert!(!source.is_permanent(), "{error}");
    error.to_string()
}

/// While the server refuses, a short wait ends with the reason and a long one goes on; when it does
/// not any more, the long one has the lock.
async fn waits_out(rig: &RedisRig, code: &str, end: impl AsyncFnOnce()) {
    let counts = Counts::default();
    // One slot, for the server that is a cluster.
    let backend = RedisBackend::builder(&rig.url()).prefix("{lock}");
    let manager = LockManager::builder(backend.build().unwrap())
        .hooks(counts.clone())
        .build();
    let lock = manager.lock("refused");
    let short = lock.clone().wait(Duration::from_millis(200));
    let said = transient(&short.acquire().await.unwrap_err());
    let start = "the lock server is unavailable: redis: acquire \"refused\": ";
    assert!(said.starts_with(start) && said.contains(code), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    let before = counts.attempts();
    let long = tokio::spawn(lock.wait(Duration::from_secs(30)).acquire());
    let asks = async || counts.attempts() >= before + 3;
    eventually("it asks again", Duration::from_secs(5), asks).await;
    assert!(!long.is_finished());
    end().await;
    long.await.unwrap().unwrap().release().await;
}

async fn told(rig: &RedisRig, command: &str) {
    assert_eq!(run::<String>(&mut rig.direct().await, command).await, "OK");
}

#[tokio::test]
async fn a_full_memory_is_waited_out() {
    let rig = RedisRig::start().await;
    told(&rig, "CONFIG SET maxmemory 1").await;
    let end = async || told(&rig, "CONFIG SET maxmemory 0").await;
    waits_out(&rig, "OOM", end).await;
}

#[tokio::test]
async fn a_replica_is_waited_out() {
    let rig = RedisRig::start().await;
    told(&rig, "REPLICAOF 127.0.0.1 1").await;
    let end = async || told(&rig, "REPLICAOF NO ONE").await;
    waits_out(&rig, "READONLY", end).await;
}

#[tokio::test]
async fn a_master_with_too_few_replicas_is_waited_out() {
    let rig = RedisRig::start().await;
    told(&rig, "CONFIG SET min-replicas-to-write 1").await;
    let end = async || told(&rig, "CONFIG SET min-replicas-to-write 0").await;
    waits_out(&rig, "NOREPLICAS", end).await;
}

/// A disk that cannot be written to.
#[tokio::test]
async fn a_failed_snapshot_is_waited_out() {
    let rig = RedisRig::start().await;
    let mut direct = rig.direct().await;
    let mut set = redis::cmd("CONFIG");
    set.arg("SET").arg("save").arg("3600 1");
    let set: String = set.query_async(&mut direct).await.unwrap();
    assert_eq!(set, "OK");
    let directory = rig.server.directory();
    let saves = async |mode: u32, status: &str| {
        set_permissions(directory, Permissions::from_mode(mode)).unwrap();
        let mut direct = rig.direct().await;
        run::<String>(&mut direct, "BGSAVE").await;
        let line = format!("rdb_last_bgsave_status:{status}");
        eventually("it has tried", Duration::from_secs(10), async || {
            let info: String = run(&mut rig.direct().await, "INFO persistence").await;
            info.lines().any(|said| said == line)
        })
        .await;
    };
    saves(0o500, "err").await;
    waits_out(&rig, "MISCONF", async || saves(0o700, "ok").await).await;
}

#[tokio::test]
async fn a_cluster_that_is_down_is_waited_out() {
    let port = free_port().to_string();
    let settings = ["--cluster-enabled", "yes", "--cluster-port", &port];
    let rig = RedisRig::before(PrivateServer::redis(&settings).await).await;
    let end = async || told(&rig, "CLUSTER ADDSLOTSRANGE 0 16383").await;
    waits_out(&rig, "CLUSTERDOWN", end).await;
}

/// A server that has just been started reads its data, here slowly.
#[tokio::test]
async fn a_server_that_loads_its_data_is_waited_out() {
    // A millisecond for each key; commands are answered after every kilobyte, thus after each key.
    let settings = "--key-load-delay 1000 --loading-process-events-interval-bytes 1024 \
                    --rdbcompression no";
    let settings: Vec<_> = settings.split(' ').collect();
    let rig = RedisRig::before(PrivateServer::redis(&settings).await).await;
    let mut fill = redis::cmd("EVAL");
    fill.arg("for i = 1, 4000 do redis.call('SET', 'k' .. i, string.rep('x', 1024)) end")
        .arg(0);
    let filled: () = fill.query_async(&mut rig.direct().await).await.unwrap();
    assert_eq!(filled, ());
    told(&rig, "SAVE").await;
    rig.server.kill9();
    let loading = async || {
        let loads = async || {
            let said = ask(&rig.server.address(), "PING\r\nQUIT\r\n").await;
            said.is_ok_and(|said| said.starts_with("-LOADING"))
        };
        eventually("it loads", Duration::from_secs(10), loads).await;
        waits_out(&rig, "LOADING", async || {}).await;
    };
    tokio::join!(rig.server.restart(), loading());
}

/// What nobody but the operator can mend is told at once, however long the wait limit is.
#[tokio::test]
async fn a_missing_password_and_a_foreign_key_are_told_at_once() {
    let rig = RedisRig::start().await;
    let mut direct = rig.direct().await;
    let refused = async |code: &str| {
        let begin = rig.now();
        let error = rig.manager().lock("refused").acquire().await.unwrap_err();
        assert!(
            matches!(&error, LockError::Unavailable(source) if source.is_permanent()),
            "{error}"
        );
        assert!(error.to_string().contains(code), "{error}");
        assert!(rig.now().since(begin) < rig.moment());
    };
    run::<i64>(&mut direct, "HSET lock{refused} no string").await;
    refused("WRONGTYPE").await;
    told(&rig, "CONFIG SET requirepass secret").await;
    refused("NOAUTH").await;
}
