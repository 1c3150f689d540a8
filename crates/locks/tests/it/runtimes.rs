//! Runtimes that end at once, with all that ran in them: what a killed process is to a back end that
//! has no server to kill it at.

use std::sync::Arc;
use std::time::Duration;

use stocklock_locks::backend::Backend;
use stocklock_locks::clock::BootClock;
use stocklock_locks::local::LocalBackend;
use stocklock_locks::memory::MemoryServer;
use stocklock_locks::{LockGuard, LockManager};
use tokio::runtime::{Builder, Runtime};

use crate::rig::{Shared, eventually};

const LEASE: Duration = Duration::from_millis(400);
const MOMENT: Duration = Duration::from_millis(500);

/// One process: a runtime, and the manager in it.
struct Process {
    runtime: Runtime,
    manager: LockManager,
}

impl Process {
    fn start(backend: Arc<dyn Backend>) -> Self {
        let mut runtime = Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().unwrap();
        let builder = LockManager::builder(Shared(backend)).lease(LEASE);
        let manager = {
            let _inside = runtime.enter();
            builder.build()
        };
        Self { runtime, manager }
    }

    fn acquire(&self) -> tokio::task::JoinHandle<LockGuard> {
        let lock = self.manager.lock("held").wait(LEASE * 10);
        self.runtime
            .spawn(async move { lock.acquire().await.unwrap() })
    }

    /// Ends its tasks where they stand; none of them says good-bye.
    fn kill(self) {
        self.runtime.shutdown_background();
    }
}

/// Runs where a runtime may be dropped.
fn with(backends: [Arc<dyn Backend>; 3], body: impl AsyncFnOnce([Process; 3])) {
    let processes = backends.map(Process::start);
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(body(processes));
}

/// A holder, the first one in the queue, and another one behind it; the first two are killed.
async fn the_third_one_holds([holder, first, second]: [Process; 3]) {
    let guard = holder.acquire().await.unwrap();
    let token = guard.token();
    let _never = first.acquire();
    let waits = async || first.manager.names() == 1;
    eventually("the first waits", MOMENT, waits).await;
    let next = second.acquire();
    let waits = async || second.manager.names() == 1;
    eventually("the second waits", MOMENT, waits).await;
    first.kill();
    let begin = tokio::time::Instant::now();
    holder.kill();
    let next = next.await.unwrap();
    assert!(begin.elapsed() < LEASE + MOMENT, "{:?}", begin.elapsed());
    assert!(token < next.token());
    assert!(guard.check().is_err());
    second.runtime.spawn(next.release()).await.unwrap();
    // Its release went nowhere; the lease had ended before.
    drop(guard);
    second.kill();
}

#[test]
fn the_local_lock_of_a_runtime_that_ended_goes_to_the_next_one() {
    let backend = LocalBackend::new();
    let backends = [(); 3].map(|()| -> Arc<dyn Backend> { Arc::new(backend.clone()) });
    with(backends, the_third_one_holds);
    assert_eq!(backend.held(), 0);
}

#[test]
fn the_lock_of_a_killed_client_of_the_model_goes_to_the_next_one() {
    let server = MemoryServer::new(BootClock);
    let backends = [(); 3].map(|()| -> Arc<dyn Backend> { Arc::new(server.client()) });
    with(backends, the_third_one_holds);
    assert_eq!(server.held(), 0);
}
