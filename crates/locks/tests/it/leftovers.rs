//! Leaks: locks with many different names leave nothing behind. The process has no additional thread,
//! task, file, connection or memory; the server has no key, node, session or subscription; a database has
//! no row and no connection.
//!
//! `make verify` uses as many as a shop uses in days: there, `TEST_NAMES` is set.

use std::path::Path;
use std::time::Duration;

use futures_util::future::join_all;
use stocklock_locks::LockManager;
use stocklock_locks::backend::Fencing;
use stocklock_locks::local::LocalBackend;
use stocklock_testkit::alone::alone;
use stocklock_testkit::run::variable;
use stocklock_testkit::servers::Backend::Postgres;
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::rig::sql::SqlRig;
use crate::rig::{eventually, use_lock};

const MILLION: usize = 1_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Inventory {
    threads: usize,
    tasks: usize,
    files: usize,
}

/// The memory of this process, in KiB.
fn memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
    number.expect("a line").trim().parse().expect("a number")
}

/// The number of names: `few`, or `many` with `TEST_NAMES`.
fn names(few: usize, many: usize) -> usize {
    variable("TEST_NAMES").map_or(few, |_| many)
}

impl Inventory {
    fn now() -> Self {
        Self {
            threads: count("task"),
            tasks: Handle::current().metrics().num_alive_tasks(),
            files: count("fd"),
        }
    }
}

/// The number of entries of a directory of this process in `/proc`.
fn count(directory: &str) -> usize {
    let directory = Path::new("/proc/self").join(directory);
    std::fs::read_dir(directory).expect("Linux").count()
}

/// Runs the body of the test with this name alone in a process, on two worker threads.
fn in_its_own_process(test: &str, body: impl Future<Output = ()>) {
    alone(&format!("leftovers::{test}"), &[], || {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        // A thread that resolves an address ends soon.
        let runtime = runtime.thread_keep_alive(Duration::from_millis(10));
        let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(body);
    });
}

/// Acquires and releases a hundred names with this prefix at the same time.
async fn hundred<T>(manager: &LockManager<T>, prefix: &str) {
    let lock = |number| manager.lock(&format!("{prefix}-{number}")).acquire();
    let guards = join_all((0..100).map(lock)).await;
    join_all(guards.into_iter().map(|guard| guard.unwrap().release())).await;
}

/// Waits for a held lock, on the server and in the local queue. The first two waits reach their wait
/// limit; the next two succeed.
async fn contend<T: 'static>(one: &LockManager<T>, other: &LockManager<T>, name: &str) {
    let guard = one.lock(name).acquire().await.unwrap();
    let short = Duration::from_millis(50);
    for manager in [one, other] {
        let lock = manager.lock(name).wait(short);
        lock.acquire().await.unwrap_err();
    }
    let waiters = [one, other].map(|manager| {
        let lock = manager.lock(name);
        tokio::spawn(async move { lock.acquire().await.unwrap().release().await })
    });
    let waits = async || other.names() == 1;
    eventually("`other` waits", Duration::from_secs(20), waits).await;
    guard.release().await;
    for waiter in waiters {
        waiter.await.unwrap();
    }
}

/// Uses two managers a little, counts the resources of the process, then uses so many names and checks
/// that the resources are the same.
async fn leave_nothing<B: Fencing>(backends: [B; 2], names: usize) -> [LockManager<B::Token>; 2] {
    let [one, other] = backends.map(LockManager::new);
    for number in 0..10 {
        hundred(&one, &format!("w{number}")).await;
    }
    hundred(&other, "w").await;
    contend(&one, &other, "first").await;
    contend(&other, &one, "first").await;
    // Renewals may still be running, and closed connections may still be open for a moment.
    let moment = Duration::from_secs(20);
    let mut before = Inventory::now();
    eventually("the resources are stable", moment, async || {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let earlier = std::mem::replace(&mut before, Inventory::now());
        earlier == before
    })
    .await;
    let memory_before = memory();
    let start = Instant::now();
    for number in 0..names / 100 {
        hundred(&one, &format!("n{number}")).await;
    }
    let rate = names as f64 / start.elapsed().as_secs_f64();
    for number in 0..20 {
        contend(&one, &other, &format!("c{number}")).await;
        contend(&other, &one, &format!("c{number}")).await;
    }
    for manager in [&one, &other] {
        assert_eq!((manager.held(), manager.names()), (0, 0));
    }
    let mut after = Inventory::now();
    eventually("the process has the same resources", moment, async || {
        after = Inventory::now();
        after == before || {
            println!("before: {before:?}, now: {after:?}");
            false
        }
    })
    .await;
    let mut memory_after = memory();
    eventually("the memory is free again", moment, async || {
        memory_after = memory();
        memory_after <= memory_before + memory_before / 10
    })
    .await;
    println!("figure: {names} names, {rate:.0}/s: memory {memory_before} KiB, then {memory_after}");
    [one, other]
}

#[test]
fn names_used_once_leave_nothing_in_process() {
    in_its_own_process("names_used_once_leave_nothing_in_process", async {
        let backend = LocalBackend::new();
        leave_nothing([backend.clone(), backend.clone()], names(10_000, MILLION)).await;
        assert_eq!(backend.held(), 0);
    });
}

/// One test per database, so that they run at the same time.
async fn leave_nothing_in_database(rig: SqlRig) {
    let backend = || rig.builder_of_backend().build().unwrap();
    let managers = leave_nothing([backend(), backend()], names(1_000, 100_000)).await;
    // If the short wait of `contend` ended before an answer, the nonce stays buried for two minutes. A
    // later release removes it.
    let empty = async || {
        for manager in &managers {
            use_lock(manager, "last").await;
        }
        rig.rows().await == 0
    };
    eventually("the rows are removed", Duration::from_secs(150), empty).await;
    for manager in managers {
        manager.shutdown().await;
    }
    let closed = async || rig.connections().await == 0;
    eventually("connections closed", Duration::from_secs(20), closed).await;
}

#[test]
fn names_used_once_leave_nothing_on_postgres() {
    in_its_own_process("names_used_once_leave_nothing_on_postgres", async {
        leave_nothing_in_database(SqlRig::start(Postgres).await).await;
    });
}

mod full {
    use std::time::Duration;

    use stocklock_locks::LockManager;
    use stocklock_locks::redis::RedisBackend;
    use stocklock_testkit::servers::Backend::{Mysql, Sqlite};

    use super::{MILLION, in_its_own_process, leave_nothing, leave_nothing_in_database};
    use crate::rig::redis::{RedisRig, run};
    use crate::rig::redlock::RedLockRig;
    use crate::rig::sql::SqlRig;
    use crate::rig::zookeeper::ZooKeeperRig;
    use crate::rig::{Rig as _, eventually, hand_over, wait_until_left};

    /// A reader waits for a writer, a writer for a reader, and a third client for permits.
    async fn contend_for_permits([one, other]: &[LockManager; 2]) {
        for number in 0..20 {
            let name = format!("p{number}");
            let pairs = [
                (one.write(&name), other.read(&name)),
                (one.read(&name), other.write(&name)),
                (one.permits(&name, 2, 3), other.permits(&name, 2, 3)),
            ];
            for (first, second) in pairs {
                let guard = first.acquire().await.unwrap();
                let waiter = tokio::spawn(second.acquire());
                let waits = async || other.names() == 1;
                eventually("`other` waits", Duration::from_secs(20), waits).await;
                hand_over(guard, waiter).await;
            }
        }
    }

    #[test]
    fn names_used_once_leave_nothing_on_redis() {
        in_its_own_process("full::names_used_once_leave_nothing_on_redis", async {
            let rig = RedisRig::start().await;
            let (memory, tombstone) = (Duration::from_mins(10), Duration::from_mins(2));
            // A release whose answer is late is sent again, and leaves a tombstone.
            let no_repetition = Duration::from_secs(30);
            let builder = RedisBackend::builder(&rig.url()).response_limit(no_repetition);
            let backend = || builder.clone().build().unwrap();
            // Keep the managers: closing their connections would end their subscriptions.
            let _managers = leave_nothing([backend(), backend()], MILLION).await;
            let mut direct = rig.direct().await;
            let no_channel = async || rig.channels().await.is_empty();
            eventually(
                "the subscriptions ended",
                Duration::from_secs(20),
                no_channel,
            )
            .await;
            // Only the last tokens are left, and tombstones of `contend`: if its short wait ends before
            // the server's answer, the request may still be on its way. All of them expire.
            for key in rig.keys("*").await {
                let left: i64 = run(&mut direct, &format!("PTTL {key}")).await;
                let is_tombstone = key.contains("}:gone:") && !key.starts_with("lock{n");
                let longest = if is_tombstone { tombstone } else { memory };
                let longest = i64::try_from(longest.as_millis()).unwrap();
                // A key may have expired since it was listed (-2).
                let expires = left == -2 || (0..=longest).contains(&left);
                let may_stay = expires && (is_tombstone || key.ends_with(":token"));
                assert!(may_stay || key == "lock:source", "{key}: {left}");
            }
        });
    }

    #[test]
    fn names_used_once_leave_nothing_on_redlock() {
        in_its_own_process("full::names_used_once_leave_nothing_on_redlock", async {
            let rig = RedLockRig::start_private().await;
            let managers = leave_nothing([rig.backend(), rig.backend()], 100_000).await;
            wait_until_left(&rig, 0, Duration::from_secs(20)).await;
            // Tombstones stay for two minutes. A late vote or a short wait of `contend` leaves them.
            let empty = async || rig.keys().await == 0;
            eventually("the keys expired", Duration::from_secs(150), empty).await;
            for manager in managers {
                manager.shutdown().await;
            }
        });
    }

    #[test]
    fn names_used_once_leave_nothing_on_zookeeper() {
        in_its_own_process("full::names_used_once_leave_nothing_on_zookeeper", async {
            let rig = ZooKeeperRig::start_private().await;
            let backends = [rig.backend(), rig.backend()];
            let managers = leave_nothing(backends.clone(), 20_000).await;
            for backend in &backends {
                assert_eq!(backend.places(), 0);
            }
            contend_for_permits(&managers).await;
            let no_watch = async || rig.counter("zk_watch_count").await == 0;
            eventually("no watch is left", Duration::from_secs(20), no_watch).await;
            for manager in managers {
                manager.shutdown().await;
            }
            let direct = rig.direct().await;
            let empty = async || direct.list_children(&rig.root).await.unwrap() == [".source"];
            eventually("directories removed", Duration::from_mins(1), empty).await;
            drop(direct);
            let ended = async || rig.counter("zk_global_sessions").await == 0;
            eventually("the sessions ended", Duration::from_secs(20), ended).await;
        });
    }

    #[test]
    fn names_used_once_leave_nothing_on_mysql() {
        in_its_own_process("full::names_used_once_leave_nothing_on_mysql", async {
            leave_nothing_in_database(SqlRig::start(Mysql).await).await;
        });
    }

    #[test]
    fn names_used_once_leave_nothing_on_sqlite() {
        in_its_own_process("full::names_used_once_leave_nothing_on_sqlite", async {
            leave_nothing_in_database(SqlRig::start(Sqlite).await).await;
        });
    }
}
