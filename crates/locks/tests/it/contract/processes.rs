//! Processes that are killed or stopped while they hold a lock or wait for it.

use std::time::Duration;

use rustix::process::Signal;

use crate::holder::{Holder, LEASE};
use crate::rig::{RigExt, Served, eventually, hand_over};

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
