//! One process of a run of `make bench-locks`: its tasks use a lock until the time is over. `bench/locks.py` starts
//! it, and compares the libraries.
//!
//! Arguments: library, addresses of Redis and ZooKeeper, name of the lock, tasks; how long a task holds the lock,
//! how long it then does something else, and how long the run takes, in ms. When everything is connected, it prints
//! `ready`. It begins when it reads a line, and prints the result of each task as JSON.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::json;
use stocklock_locks::redis::RedisBackend;
use stocklock_locks::zookeeper::ZooKeeperBackend;
use stocklock_locks::{LockBuilder, LockManager};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use zookeeper_client::{Acls, Client, CreateMode, LockPrefix};

const LEASE: Duration = Duration::from_secs(10);
/// Longer than a run.
const WAIT: Duration = Duration::from_mins(1);
/// A worker that takes longer hangs. It ends, so that the bench does not wait for it.
const LIMIT: Duration = Duration::from_mins(2);

/// A connected lock library.
enum Library {
    Mutex(Mutex<()>),
    Ours(LockManager),
    Fair(LockManager),
    Rslock(rslock::LockManager),
    ZooKeeper(Client),
}

impl Library {
    async fn connect(library: &str, redis: &str, zookeeper: &str) -> Result<Self> {
        Ok(match library {
            "tokio Mutex" => Self::Mutex(Mutex::new(())),
            "ours, Redis" => Self::Ours(LockManager::new(RedisBackend::new(redis)?)),
            "ours, Redis, fair" => Self::Fair(LockManager::new(RedisBackend::new(redis)?)),
            "ours, ZooKeeper" => Self::Ours(LockManager::new(ZooKeeperBackend::new(zookeeper)?)),
            "rslock" => Self::Rslock(rslock::LockManager::new(vec![redis])),
            "zookeeper-client" => Self::ZooKeeper(Client::connect(zookeeper).await?),
            other => bail!("no library {other}"),
        })
    }

    /// Acquires the lock, holds it, and releases it. Reports the wait.
    async fn hold(&self, name: &str, time: Duration, waited: impl FnOnce()) -> Result<()> {
        match self {
            Self::Mutex(mutex) => {
                let guard = mutex.lock().await;
                waited();
                pause(time).await;
                drop(guard);
                // Otherwise a task alone would never give way to the others.
                tokio::task::yield_now().await;
            }
            Self::Ours(manager) => hold(manager.lock(name), time, waited).await?,
            Self::Fair(manager) => hold(manager.write(name), time, waited).await?,
            Self::Rslock(manager) => {
                let guard = manager.acquire(name, LEASE).await;
                let guard = guard.map_err(|error| anyhow::anyhow!("{error}"))?;
                waited();
                pause(time).await;
                guard.release().await;
            }
            Self::ZooKeeper(client) => {
                let directory = format!("/{name}");
                let prefix = LockPrefix::new_curator(&directory, "lock-")?;
                let lock = client.lock(prefix, b"", Acls::anyone_all()).await?;
                waited();
                pause(time).await;
                drop(lock);
            }
        }
        Ok(())
    }

    /// Creates what the lock needs, and uses another lock once.
    async fn warm_up(&self, name: &str) -> Result<()> {
        let other = format!("{name}-warm-{}", std::process::id());
        if let Self::ZooKeeper(client) = self {
            let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
            for name in [name, &other] {
                client.mkdir(&format!("/{name}"), &options).await?;
            }
        }
        self.hold(&other, Duration::ZERO, || {}).await
    }
}

async fn hold(lock: LockBuilder, time: Duration, waited: impl FnOnce()) -> Result<()> {
    let guard = lock.wait(WAIT).lease(LEASE).acquire().await?;
    waited();
    pause(time).await;
    guard.release().await;
    Ok(())
}

async fn pause(time: Duration) {
    if !time.is_zero() {
        sleep(time).await;
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let ended = timeout(LIMIT, use_library(&arguments)).await;
    ended.context("the worker hangs")?
}

async fn use_library(arguments: &[String]) -> Result<()> {
    let [library, redis, zookeeper, name, tasks, hold, think, run] = arguments else {
        bail!("`make bench-locks` starts this program");
    };
    let milliseconds = |number: &String| number.parse().map(Duration::from_millis);
    let (hold, think, run) = (
        milliseconds(hold)?,
        milliseconds(think)?,
        milliseconds(run)?,
    );
    let library = Library::connect(library, redis, zookeeper).await?;
    library.warm_up(name).await?;
    println!("ready");
    let mut line = String::new();
    BufReader::new(tokio::io::stdin())
        .read_line(&mut line)
        .await?;
    let end = Instant::now() + run;
    let library = Arc::new(library);
    let mut running = JoinSet::new();
    for _ in 0..tasks.parse::<usize>()? {
        let (library, name) = (Arc::clone(&library), name.clone());
        running.spawn(async move { use_lock(&library, &name, hold, think, end).await });
    }
    let (mut counts, mut waits) = (Vec::new(), Vec::new());
    for task in running.join_all().await {
        let (count, waited) = task?;
        counts.push(count);
        waits.extend(waited);
    }
    println!("{}", json!({"counts": counts, "waits": waits}));
    Ok(())
}

/// Uses the lock until `end`. Returns how often it was released before that, and the waits in µs.
///
/// At the end, the waiting tasks get the lock one after the other, each for a moment. These locks do not
/// count.
async fn use_lock(
    library: &Library,
    name: &str,
    hold: Duration,
    think: Duration,
    end: Instant,
) -> Result<(u64, Vec<u64>)> {
    let mut waits = Vec::new();
    let mut count = 0;
    while Instant::now() < end {
        let begin = Instant::now();
        let mut waited = None;
        let cycle = library.hold(name, hold, || waited = Some(begin.elapsed()));
        let result = timeout_at(end, cycle).await;
        let wait = waited.unwrap_or_else(|| begin.elapsed());
        waits.push(u64::try_from(wait.as_micros()).context("a long wait")?);
        match result {
            Ok(done) => done?,
            Err(_) => break,
        }
        count += 1;
        let pause_end = (Instant::now() + think).min(end);
        if !think.is_zero() {
            tokio::time::sleep_until(pause_end).await;
        }
    }
    Ok((count, waits))
}
