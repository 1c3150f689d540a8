//! Shows each primitive on each server, with a second process that is kept out and then let in.
//! Each server is used whose address is in the environment:
//! `REDIS_URL=redis://127.0.0.1/ cargo run -p stocklock-locks --example tour`
//! The other variables are `ZOOKEEPER_CONNECT` (such as `127.0.0.1:2181`), `POSTGRES_URL`, `MARIADB_URL`,
//! `SQLITE_URL` (such as `sqlite:///tmp/locks.db?mode=rwc`), and `REDLOCK_URLS`: at least three Redis masters,
//! with commas between them. In a database, the example creates the tables.
//!
//! Output: a line `ok <server> <primitive>` for each pair. Databases and `RedLock` have no read-write
//! locks, permits, numbers, latches and barriers, and `RedLock` has no `once_per`. The back ends `local` and
//! `memory` are not in the list, because a second process cannot use them.
//!
//! The second process is this program with arguments. The example ends with an error if that process gets
//! in too early, or does not get in later.

use std::error::Error;
use std::future::ready;
use std::process::{Stdio, id};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{LocalBoxFuture, join_all};
use stocklock_locks::redis::RedisBackend;
use stocklock_locks::redis::redlock::RedLockBackend;
use stocklock_locks::sql::SqlBackend;
use stocklock_locks::zookeeper::ZooKeeperBackend;
use stocklock_locks::{LockError, LockGuard, LockManager, MultiLock, OncePer};
use tokio::process::Command;
use tokio::time::{sleep, timeout};

/// How long a process waits that must be kept out.
const SHORT: Duration = Duration::from_secs(2);
/// How long a process waits that must be let in.
const LONG: Duration = Duration::from_secs(30);
/// The period of the job. The second process is let in when it ends.
const PERIOD: Duration = Duration::from_secs(10);
/// The maximum lease on the masters of `RedLock`. They vote when they have been up for longer.
const MAX_LEASE: Duration = Duration::from_secs(3);

/// The servers, the variables with their addresses, and how many of the primitives each has.
const SERVERS: [(&str, &str, usize); 6] = [
    ("redis", "REDIS_URL", 9),
    ("zookeeper", "ZOOKEEPER_CONNECT", 9),
    ("postgres", "POSTGRES_URL", 4),
    ("mariadb", "MARIADB_URL", 4),
    ("sqlite", "SQLITE_URL", 4),
    ("redlock", "REDLOCK_URLS", 3),
];

/// `once-per` needs fencing tokens. Only Redis and ZooKeeper have those behind it.
const PRIMITIVES: [&str; 9] = [
    "lock",
    "multi-lock",
    "leader",
    "once-per",
    "read-write-lock",
    "permits",
    "number",
    "latch",
    "barrier",
];

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// What a process that was let in has to do at its end.
type Exit = LocalBoxFuture<'static, Result<()>>;

enum Locks {
    Fenced(LockManager),
    /// Without fencing tokens.
    RedLock(LockManager<()>),
}

#[expect(
    clippy::disallowed_methods,
    reason = "an example has no module for its settings"
)]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [server, primitive, name, limit] = arguments.as_slice() {
        return second(
            server,
            primitive,
            name,
            Duration::from_millis(limit.parse()?),
        )
        .await;
    }
    let present = SERVERS
        .iter()
        .filter(|(_, address, _)| variable(address).is_some());
    let rows = join_all(present.map(|(server, _, count)| tour(server, *count)))
        .await
        .concat();
    for (row, shown) in &rows {
        match shown {
            Ok(()) => println!("ok {row}"),
            Err(error) => eprintln!("failed {row}: {error}"),
        }
    }
    if rows.is_empty() {
        let variables = SERVERS.map(|(_, address, _)| address).join(", ");
        return Err(format!("no server: set at least one of {variables}").into());
    }
    let failed = rows.iter().filter(|(_, shown)| shown.is_err()).count();
    if failed > 0 {
        return Err(format!("{failed} of {} pairs failed", rows.len()).into());
    }
    Ok(())
}

/// Shows the primitives of one server at the same time. Returns a row for each.
async fn tour(server: &str, count: usize) -> Vec<(String, std::result::Result<(), String>)> {
    let locks = match connect(server).await {
        Ok(locks) => locks,
        Err(error) => return vec![(server.to_owned(), Err(error.to_string()))],
    };
    let rows = PRIMITIVES[..count].iter().map(async |primitive| {
        let shown = show(&locks, server, primitive).await;
        let shown = shown.map_err(|error| error.to_string());
        (format!("{server:9} {primitive}"), shown)
    });
    let rows = join_all(rows).await;
    shutdown(&locks).await;
    rows
}

async fn connect(server: &str) -> Result<Locks> {
    let address = SERVERS.iter().find(|(known, ..)| *known == server);
    let (_, address, _) = address.ok_or("unknown server")?;
    let address = variable(address).ok_or_else(|| format!("{address} is not set"))?;
    let locks = match server {
        "redis" => LockManager::new(RedisBackend::new(&address)?),
        "zookeeper" => LockManager::new(ZooKeeperBackend::new(&address)?),
        "redlock" => {
            let masters = RedLockBackend::builder(address.split(',')).max_lease(MAX_LEASE);
            let locks = LockManager::new(masters.node_limit(MAX_LEASE / 3).build()?);
            locks.ping().await?;
            return Ok(Locks::RedLock(locks));
        }
        _ => {
            // A busy machine may need longer than the default.
            let backend = SqlBackend::builder(&address).connect_limit(Duration::from_secs(10));
            let backend = backend.build()?;
            backend.create_tables().await?;
            LockManager::new(backend)
        }
    };
    locks.ping().await?;
    Ok(Locks::Fenced(locks))
}

async fn shutdown(locks: &Locks) {
    match locks {
        Locks::Fenced(locks) => locks.shutdown().await,
        Locks::RedLock(locks) => locks.shutdown().await,
    }
}

/// This process enters, another one is kept out, this one leaves, and the other one is let in.
async fn show(locks: &Locks, server: &str, primitive: &str) -> Result<()> {
    // No earlier run has used it.
    let name = format!("tour:{primitive}:{}:{:016x}", id(), fastrand::u64(..));
    let entered = enter(locks, primitive, &name, LONG, true).await?;
    let exit = entered.ok_or("the first process was not let in")?;
    if child(server, primitive, &name, SHORT).await? != "out" {
        return Err("the second process was not kept out".into());
    }
    let (said, left) = tokio::join!(child(server, primitive, &name, LONG), exit);
    left?;
    if said? != "in" {
        return Err("the second process was not let in".into());
    }
    Ok(())
}

/// Starts the second process. Returns what it says.
async fn child(server: &str, primitive: &str, name: &str, limit: Duration) -> Result<String> {
    let mut command = Command::new(std::env::current_exe()?);
    let limit = limit.as_millis().to_string();
    command.args([server, primitive, name, &limit]);
    let output = command
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// The second process. Says whether it was let in before the limit.
async fn second(server: &str, primitive: &str, name: &str, limit: Duration) -> Result<()> {
    let locks = connect(server).await?;
    if let Some(exit) = enter(&locks, primitive, name, limit, false).await? {
        exit.await?;
        println!("in");
    } else {
        println!("out");
    }
    shutdown(&locks).await;
    Ok(())
}

/// The primitives of all servers.
async fn exclusive<T: Send + Sync + 'static>(
    locks: &LockManager<T>,
    primitive: &str,
    name: &str,
    limit: Duration,
) -> Result<Option<Exit>> {
    Ok(match primitive {
        "lock" => let_in(locks.lock(name).wait(limit).acquire().await)?.map(releases),
        "multi-lock" => {
            let both = MultiLock::of(["a", "b"].map(|part| locks.lock(&format!("{name}:{part}"))));
            let guard = let_in(both.wait(limit).acquire().await)?;
            let exit = guard.map(async |guard| {
                guard.release().await;
                Ok(())
            });
            exit.map(FutureExt::boxed_local)
        }
        // A candidacy has no limit.
        "leader" => match timeout(limit, locks.lock(name).campaign()).await {
            Ok(elected) => Some(releases(elected?)),
            Err(_) => None,
        },
        other => return Err(format!("unknown primitive {other}").into()),
    })
}

/// Enters, or returns `None` if the other process is in the way until the limit. At a latch and at a barrier, the
/// second process waits for the first one, which has nothing to do before.
async fn enter(
    locks: &Locks,
    primitive: &str,
    name: &str,
    limit: Duration,
    is_first: bool,
) -> Result<Option<Exit>> {
    let locks = match locks {
        Locks::Fenced(locks) => locks,
        Locks::RedLock(locks) => return exclusive(locks, primitive, name, limit).await,
    };
    Ok(match primitive {
        "once-per" => loop {
            match locks.lock(name).once_per(PERIOD, async |_| ()).await? {
                OncePer::Ran(_) => break Some(ready(Ok(())).boxed_local()),
                OncePer::NotDue { due_in } if due_in < limit => sleep(due_in).await,
                OncePer::NotDue { .. } | OncePer::Running => break None,
            }
        },
        "read-write-lock" => let_in(locks.write(name).wait(limit).acquire().await)?.map(releases),
        "permits" => {
            let two_of_three = locks.permits(name, 2, 3).wait(limit);
            let_in(two_of_three.acquire().await)?.map(releases)
        }
        "number" => {
            let number = locks.number(name);
            let is_free = number
                .wait_for(limit, |number| number == 0)
                .await?
                .is_some();
            let is_in = is_free && number.compare_exchange(0, 1).await?;
            let exit = async move { Ok(number.remove().await?) };
            is_in.then(|| exit.boxed_local())
        }
        "latch" if is_first => {
            let latch = locks.latch(name, 1);
            Some(async move { Ok(latch.arrive().await.map(drop)?) }.boxed_local())
        }
        "latch" => {
            let latch = locks.latch(name, 1);
            let open = let_in(latch.wait(limit).await)?;
            let exit = async move { Ok(latch.remove().await?) };
            open.map(|()| exit.boxed_local())
        }
        "barrier" if is_first => {
            let barrier = locks.barrier(name, 2);
            let exit = async move { Ok(barrier.enter(LONG).await?.leave(LONG).await?) };
            Some(exit.boxed_local())
        }
        "barrier" => {
            let party = let_in(locks.barrier(name, 2).enter(limit).await)?;
            let exit = party.map(async |party| Ok(party.leave(LONG).await?));
            exit.map(FutureExt::boxed_local)
        }
        _ => return exclusive(locks, primitive, name, limit).await,
    })
}

/// `None` if the limit has passed.
fn let_in<G>(entered: std::result::Result<G, LockError>) -> Result<Option<G>> {
    match entered {
        Ok(entered) => Ok(Some(entered)),
        Err(LockError::WaitLimit { .. } | LockError::Incomplete { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Releases the guard at the exit, not before.
fn releases<T: Send + Sync + 'static>(guard: LockGuard<T>) -> Exit {
    let exit = async move {
        guard.release().await;
        Ok(())
    };
    exit.boxed_local()
}
