//! Holds a lock on a real server for some seconds. Start it in two terminals to see one wait:
//! `cargo run -p stocklock-locks --example hold -- redis://127.0.0.1/ sku:42 10`
//! With the environment variable `PERMITS=2/3`, it holds two of three permits.
//! With a period in seconds as the fourth argument, it does so at most once per period over all
//! processes, like a job of `cron`.
//! The URL of a ZooKeeper server is `zookeeper://127.0.0.1:2181/`. The URL of a database is that of
//! `sql::SqlBackend`; the example creates the tables.
//!
//! Output: `waiting`, `held <token>`, then `lost <reason>` or `released`; or `not due` with a period.

use std::error::Error;
use std::time::Duration;

use stocklock_locks::redis::RedisBackend;
use stocklock_locks::sql::SqlBackend;
use stocklock_locks::zookeeper::ZooKeeperBackend;
use stocklock_locks::{LockGuard, LockManager, OncePer};

const LEASE: Duration = Duration::from_secs(2);

#[expect(
    clippy::disallowed_methods,
    reason = "an example has no module for its settings"
)]
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, name, seconds, period @ ..] = arguments.as_slice() else {
        return Err("usage: hold URL NAME SECONDS [PERIOD]".into());
    };
    let hold = Duration::from_secs(seconds.parse()?);
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
    println!("waiting");
    let lock = match std::env::var("PERMITS") {
        Ok(permits) => {
            let (take, of) = permits.split_once('/').ok_or("PERMITS has no `/`")?;
            locks.permits(name, take.parse()?, of.parse()?)
        }
        Err(_) => locks.lock(name),
    };
    let lock = lock.lease(LEASE).wait(Duration::from_mins(1));
    if let Some(period) = period.first() {
        let period = Duration::from_secs(period.parse()?);
        match lock.once_per(period, |guard| work(guard, hold)).await? {
            OncePer::Ran(_) => {}
            OncePer::NotDue { .. } | OncePer::Running => println!("not due"),
        }
    } else {
        work(lock.acquire().await?, hold).await;
    }
    locks.shutdown().await;
    Ok(())
}

async fn work(guard: LockGuard, time: Duration) {
    println!("held {}", guard.token());
    tokio::select! {
        reason = guard.lost() => println!("lost {}", reason.name()),
        () = tokio::time::sleep(time) => {
            guard.release().await;
            println!("released");
        }
    }
}
