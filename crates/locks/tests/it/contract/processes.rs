//! Processes that are killed or stopped while they hold a lock or wait for it.

use std::time::Duration;

use rustix::process::Signal;
use stocklock_locks::{LockError, OncePer};
use stocklock_testkit::assert_matches;

use crate::holder::{Holder, LEASE};
use crate::rig::{RigExt, Served, TokenRig, eventually, hand_over};

const SLACK: Duration = Duration::from_secs(10);

/// The next client acquires the lock when the lease of a killed holder expires.
pub(super) async fn killed_holder_is_replaced(rig: &impl Served) {
    let (holder, token) = Holder::start_and_hold(&rig.url(), "held").await;
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
pub(super) async fn killed_first_waiter_is_skipped(rig: &impl Served) {
    let manager = rig.manager();
    let guard = manager.lock("queued").acquire().await.unwrap();
    let first = Holder::start(&rig.url(), "queued").await;
    let queued = async || rig.has_waiter("queued").await;
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

/// A process that was stopped for longer than its lease learns of its loss as soon as it runs
/// again. Its release does not affect the next holder.
pub(super) async fn stopped_holder_learns_of_its_loss(rig: &impl Served) {
    let (mut holder, token) = Holder::start_and_hold(&rig.url(), "stopped").await;
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

/// The process that runs a periodic job is killed. The job does not run again in the same period, and
/// runs in the next one.
pub(super) async fn job_of_killed_process_runs_in_next_period(rig: &(impl Served + TokenRig)) {
    const PERIOD: Duration = Duration::from_secs(3);
    let began = rig.now();
    let mut runner = Holder::start_job(&rig.url(), "job", "3").await;
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

/// A process has one of two places of a barrier, and is killed inside.
pub(super) async fn killed_party_holds_up_none(rig: &(impl Served + TokenRig)) {
    let (holder, token) = Holder::start_with_permits(&rig.url(), "round", "1/2").await;
    let barrier = rig.manager().barrier("round", 2);
    let party = barrier.enter(SLACK * 6).await.unwrap();
    assert!(Some(party.guard().token()) > token);
    let leaving = tokio::spawn(party.leave(SLACK * 6));
    tokio::time::sleep(rig.moment()).await;
    assert!(!leaving.is_finished());
    holder.signal(Signal::KILL);
    leaving.await.unwrap().unwrap();
    // The dead process is not counted either.
    let error = barrier.enter(rig.moment()).await.unwrap_err();
    assert_matches!(error, LockError::Incomplete { .. });
}
