//! Holds a lock on a real server for some seconds. Start it in two terminals to see one wait:
//! `cargo run -p stocklock-locks --example hold -- redis://127.0.0.1/ sku:42 10`
//! The URL of a ZooKeeper server is `zookeeper://127.0.0.1:2181/`. The URL of a database is that of
//! `sql::SqlBackend`; the example creates the tables. Several `redis://` URLs with commas between them
//! are the masters of `RedLock`.
//!
//! Output: `waiting`, `held <token>` (`held` with `RedLock`), then `lost <reason>` or `released`.

use std::error::Error;
use std::time::Duration;

use stocklock_locks::redis::RedisBackend;
use stocklock_locks::redis::redlock::RedLockBackend;
use stocklock_locks::sql::SqlBackend;
use stocklock_locks::zookeeper::ZooKeeperBackend;
use stocklock_locks::{LockGuard, LockManager};

const LEASE: Duration = Duration::from_secs(2);
const WAIT: Duration = Duration::from_mins(1);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, name, seconds] = arguments.as_slice() else {
        return Err("usage: hold URL NAME SECONDS".into());
    };
    let hold = Duration::from_secs(seconds.parse()?);
    println!("waiting");
    if url.contains(',') {
        let masters = RedLockBackend::builder(url.split(',')).max_lease(LEASE);
        let locks = LockManager::new(masters.node_limit(LEASE / 4).build()?);
        let guard = locks.lock(name).wait(WAIT).acquire().await?;
        work(guard, "held", hold).await;
        locks.shutdown().await;
        return Ok(());
    }
    let locks = if let Some(rest) = url.strip_prefix("zookeeper://") {
        let (cluster, root) = rest.split_once('/').unwrap_or((rest, ""));
        let root = if root.is_empty() { "locks" } else { root };
        let backend = ZooKeeperBackend::builder(cluster)
            .root(format!("/{root}"))
            .session_timeout(LEASE);
        LockManager::new(backend.build()?)
    } else if url.starts_with("redis") {
        LockManager::new(RedisBackend::new(url)?)
    } else {
        let backend = SqlBackend::new(url)?;
        backend.create_tables().await?;
        LockManager::new(backend)
    };
    let guard = locks.lock(name).lease(LEASE).wait(WAIT).acquire().await?;
    let line = format!("held {}", guard.token());
    work(guard, &line, hold).await;
    locks.shutdown().await;
    Ok(())
}

async fn work<T>(guard: LockGuard<T>, line: &str, time: Duration) {
    println!("{line}");
    tokio::select! {
        reason = guard.lost() => println!("lost {}", reason.name()),
        () = tokio::time::sleep(time) => {
            guard.release().await;
            println!("released");
        }
    }
}
