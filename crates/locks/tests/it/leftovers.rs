//! Ten thousand acquisitions of as many names leave nothing: no thread, task, file or connection in
//! the process, no key, node, session or subscription on the server.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use stocklock_locks::LockManager;
use stocklock_locks::backend::Backend;
use stocklock_locks::clock::BootClock;
use stocklock_locks::local::LocalBackend;
use stocklock_locks::memory::MemoryServer;
use stocklock_locks::redis::RedisBackend;
use stocklock_testkit::alone::alone;
use tokio::runtime::Handle;

use crate::rig::redis::RedisRig;
use crate::rig::zookeeper::ZooKeeperRig;
use crate::rig::{Shared, eventually};

/// What a process has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Inventory {
    threads: usize,
    tasks: usize,
    files: usize,
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

/// Runs a test by its own path, in a process of its own with two workers.
fn in_its_own_process(test: &str, body: impl Future<Output = ()>) {
    alone(&format!("leftovers::{test}"), &[], || {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(body);
    });
}

/// Ten thousand names of a prefix, a hundred at a time.
async fn ten_thousand(manager: &LockManager, prefix: &str) {
    for hundred in 0..100 {
        let lock = |number| {
            manager
                .lock(&format!("{prefix}{hundred}-{number}"))
                .acquire()
        };
        let guards = join_all((0..100).map(lock)).await;
        join_all(guards.into_iter().map(|guard| guard.unwrap().release())).await;
    }
}

/// A wait that succeeds and one that does not, on the server and in the local line.
async fn contend(one: &LockManager, other: &LockManager, name: &str) {
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
    eventually("it waits", Duration::from_secs(5), waits).await;
    guard.release().await;
    for waiter in waiters {
        waiter.await.unwrap();
    }
}

/// Two managers do it all once, and the inventory is taken; then ten thousand times.
async fn leaves_nothing(backends: [Arc<dyn Backend>; 2]) -> [LockManager; 2] {
    let [one, other] = backends.map(|backend| LockManager::new(Shared(backend)));
    contend(&one, &other, "first").await;
    contend(&other, &one, "first").await;
    // The watchdogs' renewals may be on their way, and what was just closed still there.
    let moment = Duration::from_secs(5);
    let mut before = Inventory::now();
    eventually("it is quiet", moment, async || {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let earlier = std::mem::replace(&mut before, Inventory::now());
        earlier == before
    })
    .await;
    ten_thousand(&one, "n").await;
    for number in 0..20 {
        contend(&one, &other, &format!("c{number}")).await;
        contend(&other, &one, &format!("c{number}")).await;
    }
    for manager in [&one, &other] {
        assert_eq!((manager.held(), manager.names()), (0, 0));
    }
    let mut after = Inventory::now();
    eventually("the process has what it had", moment, async || {
        after = Inventory::now();
        after == before || {
            println!("{before:?} before, {after:?} after");
            false
        }
    })
    .await;
    [one, other]
}

#[test]
fn ten_thousand_names_leave_nothing_in_the_process() {
    in_its_own_process("ten_thousand_names_leave_nothing_in_the_process", async {
        let backend = LocalBackend::new();
        leaves_nothing([Arc::new(backend.clone()), Arc::new(backend.clone())]).await;
        assert_eq!(backend.held(), 0);
    });
}

#[test]
fn ten_thousand_names_leave_nothing_on_the_model() {
    in_its_own_process("ten_thousand_names_leave_nothing_on_the_model", async {
        let server = MemoryServer::new(BootClock);
        leaves_nothing([Arc::new(server.client()), Arc::new(server.client())]).await;
        assert_eq!(server.held(), 0);
    });
}

#[test]
fn ten_thousand_names_leave_nothing_on_redis() {
    in_its_own_process("ten_thousand_names_leave_nothing_on_redis", async {
        let rig = RedisRig::start().await;
        let memory = Duration::from_secs(20);
        let backend = || -> Arc<dyn Backend> {
            let builder = RedisBackend::builder(&rig.url()).token_memory(memory);
            Arc::new(builder.build().unwrap())
        };
        // Alive: with their connections their subscriptions would end.
        let _managers = leaves_nothing([backend(), backend()]).await;
        let mut direct = rig.direct().await;
        assert!(rig.channels().await.is_empty());
        // The last tokens, each for as long as it is remembered.
        for key in rig.keys("*").await {
            let mut ttl = redis::cmd("PTTL");
            let left: i64 = ttl.arg(&key).query_async(&mut direct).await.unwrap();
            // It may have gone since it was listed.
            let is_token = key.ends_with(":token") && (left == -2 || left > 0);
            assert!(is_token || key == "lock:source", "{key}: {left}");
        }
        let only_source = async || rig.keys("*").await == ["lock:source"];
        eventually("the tokens went", memory * 2, only_source).await;
    });
}

#[test]
fn ten_thousand_names_leave_nothing_on_zookeeper() {
    in_its_own_process("ten_thousand_names_leave_nothing_on_zookeeper", async {
        let rig = ZooKeeperRig::start_private().await;
        let backends = [rig.zookeeper(), rig.zookeeper()];
        let shared = backends
            .clone()
            .map(|backend| -> Arc<dyn Backend> { Arc::new(backend) });
        let managers = leaves_nothing(shared).await;
        for backend in &backends {
            assert_eq!(backend.places(), 0);
        }
        assert_eq!(rig.counter("zk_watch_count").await, 0);
        for manager in managers {
            manager.shutdown().await;
        }
        let direct = rig.direct().await;
        let empty = async || direct.list_children(&rig.root).await.unwrap() == [".source"];
        eventually("the directories went", Duration::from_mins(1), empty).await;
        drop(direct);
        let ended = async || rig.counter("zk_global_sessions").await == 0;
        eventually("the sessions ended", Duration::from_secs(5), ended).await;
    });
}
