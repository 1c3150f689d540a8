//! Processes that are killed or stopped while they hold a lock or wait for it.

use std::time::Duration;

use rstest::rstest;
use rustix::process::Signal;
use stocklock_locks::OncePer;
use stocklock_testkit::servers::Backend::{self, Mysql, Postgres, Sqlite};

use crate::rig::redis::RedisRig;
use crate::rig::redlock::RedLockRig;
use crate::rig::sql::SqlRig;
use crate::rig::zookeeper::ZooKeeperRig;
use crate::rig::{Rig, RigExt, TokenRig, eventually, hand_over};
use crate::support::holder::Holder;

/// The lease and session timeout of the example `hold`.
const LEASE: Duration = Duration::from_secs(2);
const SLACK: Duration = Duration::from_secs(10);

impl ZooKeeperRig {
    pub(crate) fn url(&self) -> String {
        format!("zookeeper://{}{}", self.proxy.address(), self.root)
    }
}

/// The next client acquires the lock when the lease of a killed holder expires.
async fn killed_holder_is_replaced(rig: &impl Rig, url: &str) {
    let (holder, token) = Holder::start_and_hold(url, "held").await;
    let manager = rig.manager();
    let waiter = tokio::spawn(manager.lock("held").wait(LEASE + SLACK).acquire());
    eventually("the task waits", rig.soon(), async || manager.names() == 1).await;
    holder.signal(Signal::KILL);
    let killed = rig.now();
    let guard = waiter.await.unwrap().unwrap();
    assert!(rig.now().since(killed) < LEASE + SLACK);
    rig.assert_grows(token, &guard);
    guard.release().await;
}

/// A killed waiter at the head of the queue blocks the next one only until its session expires.
async fn killed_waiter(rig: &impl Rig, url: &str, queued: impl AsyncFnMut() -> bool) {
    let manager = rig.manager();
    let guard = manager.lock("queued").acquire().await.unwrap();
    let first = Holder::start(url, "queued").await;
    eventually("the first process waits", SLACK * 3, queued).await;
    let second = rig.manager();
    let waiter = tokio::spawn(second.lock("queued").wait(LEASE + SLACK).acquire());
    eventually("the second one waits", rig.soon(), async || {
        second.names() == 1
    })
    .await;
    first.signal(Signal::KILL);
    let killed = rig.now();
    hand_over(guard, waiter).await;
    assert!(rig.now().since(killed) < LEASE + SLACK);
}

#[tokio::test]
async fn killed_first_waiter_is_skipped_on_redis() {
    let rig = RedisRig::start().await;
    // A waiter on Redis has no place in a queue, but a subscription.
    let queued = async || rig.channels().await == ["lock{queued}"];
    killed_waiter(&rig, &rig.url(), queued).await;
}

#[tokio::test]
async fn killed_first_waiter_is_skipped_on_zookeeper() {
    let rig = ZooKeeperRig::start().await;
    let queued = async || rig.left().await == 2;
    killed_waiter(&rig, &rig.url(), queued).await;
}

#[tokio::test]
async fn killed_first_waiter_is_skipped_on_postgres() {
    let rig = SqlRig::start(Postgres).await;
    let awaited = "SELECT count(*) FROM distributed_lock WHERE is_awaited";
    let queued = async || rig.number(awaited).await == 1;
    killed_waiter(&rig, rig.url(), queued).await;
}

/// A process that was stopped for longer than its lease learns of its loss as soon as it runs
/// again. Its release does not affect the next holder.
async fn stopped_holder_learns_of_its_loss(rig: &impl Rig, url: &str) {
    let (mut holder, token) = Holder::start_and_hold(url, "stopped").await;
    holder.signal(Signal::STOP);
    let manager = rig.manager();
    let lock = manager.lock("stopped").wait(LEASE + SLACK);
    let guard = lock.acquire().await.unwrap();
    rig.assert_grows(token, &guard);
    holder.signal(Signal::CONT);
    let line = holder.line(SLACK * 3).await;
    assert!(line.starts_with("lost "), "{line}");
    guard.verify().await.unwrap();
    guard.release().await;
}

/// Runs these cases on all servers.
macro_rules! on_all_servers {
    ($($case:ident)*) => {
        $(mod $case {
            use super::*;

            #[tokio::test]
            async fn on_redis() {
                let rig = RedisRig::start().await;
                super::$case(&rig, &rig.url()).await;
            }

            #[tokio::test]
            async fn on_redlock() {
                let rig = RedLockRig::start().await.max_lease(LEASE);
                super::$case(&rig, &rig.urls()).await;
            }

            #[tokio::test]
            async fn on_zookeeper() {
                let rig = ZooKeeperRig::start().await;
                super::$case(&rig, &rig.url()).await;
            }

            #[rstest]
            #[tokio::test]
            async fn in_a_database(#[values(Sqlite, Mysql, Postgres)] kind: Backend) {
                let rig = SqlRig::start(kind).await;
                super::$case(&rig, rig.url()).await;
            }
        })*
    };
}

on_all_servers! { killed_holder_is_replaced stopped_holder_learns_of_its_loss }

/// Two of three permits are held by a process that is stopped for longer than its lease. A waiter gets
/// them, and the permit of another holder stays with it.
#[tokio::test]
async fn stopped_holder_of_permits_learns_of_its_loss() {
    let rig = RedisRig::start().await;
    let manager = rig.manager();
    let permits = |take| manager.permits("stopped", take, 3).wait(LEASE * 10);
    let kept = permits(1).acquire().await.unwrap();
    let (mut holder, token) = Holder::start_with_permits(&rig.url(), "stopped", "2/3").await;
    let free = permits(2).try_acquire().await.unwrap();
    assert!(free.is_none());
    holder.signal(Signal::STOP);
    let guard = permits(2).acquire().await.unwrap();
    rig.assert_grows(token, &guard);
    holder.signal(Signal::CONT);
    let line = holder.line(SLACK * 3).await;
    assert!(line.starts_with("lost "), "{line}");
    guard.verify().await.unwrap();
    kept.verify().await.unwrap();
    // The release of the lost permits returned none of those that the waiter has now.
    let free = permits(1).try_acquire().await.unwrap();
    assert!(free.is_none());
}

/// The process that runs a periodic job is killed. The job does not run again in the same period, and
/// runs in the next one.
async fn killed_runner(rig: &impl TokenRig, url: &str) {
    const PERIOD: Duration = Duration::from_secs(3);
    let began = rig.now();
    let mut runner = Holder::start_job(url, "job", "3").await;
    let line = runner.line(SLACK * 3).await;
    assert!(line.starts_with("held "), "{line}");
    runner.signal(Signal::KILL);
    let manager = rig.manager();
    let job = async || {
        let lock = manager.lock("job").wait(LEASE + SLACK);
        let job = lock.once_per(PERIOD, async |_| ());
        matches!(job.await.unwrap(), OncePer::Ran(_))
    };
    eventually("the next period begins", PERIOD + SLACK, job).await;
    assert!(rig.now().since(began) >= PERIOD);
}

#[tokio::test]
async fn job_of_killed_process_runs_in_next_period_on_redis() {
    let rig = RedisRig::start().await;
    killed_runner(&rig, &rig.url()).await;
}

mod full {
    use rstest::rstest;
    use stocklock_testkit::servers::Backend::{self, Mysql, Postgres, Sqlite};

    use super::killed_runner;
    use crate::rig::sql::SqlRig;
    use crate::rig::zookeeper::ZooKeeperRig;

    #[tokio::test]
    async fn job_of_killed_process_runs_in_next_period_on_zookeeper() {
        let rig = ZooKeeperRig::start().await;
        killed_runner(&rig, &rig.url()).await;
    }

    #[rstest]
    #[tokio::test]
    async fn job_of_killed_process_runs_in_next_period_in_sql(
        #[values(Sqlite, Mysql, Postgres)] kind: Backend,
    ) {
        let rig = SqlRig::start(kind).await;
        killed_runner(&rig, rig.url()).await;
    }
}
