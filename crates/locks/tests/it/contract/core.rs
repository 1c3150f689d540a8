//! Behaviour without faults.

use std::cell::Cell;
use std::time::Duration;

use futures_util::future::join_all;
use stocklock_locks::backend::{Attempt, Backend as _, Release, Request};
use stocklock_locks::{LockError, LostReason, ReleaseOutcome};
use stocklock_testkit::assert_matches;

use crate::rig::{
    Rig, RigExt, eventually, request, try_lock, use_lock, wait_until_left,
    wait_until_nothing_is_left,
};

/// Four processes with three tasks each increment a number that only the lock protects.
pub(super) async fn many_contenders_have_one_holder_at_a_time(rig: &impl Rig) {
    let (sum, last) = (Cell::new(0), Cell::new(None));
    let managers = [(); 4].map(|()| rig.manager());
    let contend = async |task: usize| {
        for _ in 0..3 {
            let lock = managers[task % 4].lock("counter");
            let lock = lock.wait(Duration::from_mins(1));
            let guard = lock.acquire().await.expect("the lock becomes free");
            let read = sum.get();
            tokio::time::sleep(Duration::from_millis(1)).await;
            sum.set(read + 1);
            let token = rig.token(&guard);
            assert!(token.is_none() || last.replace(token) < token);
            let outcome = guard.release().await;
            assert_matches!(outcome, ReleaseOutcome::Released { .. });
        }
    };
    join_all((0..12).map(contend)).await;
    assert_eq!(sum.get(), 36);
    wait_until_nothing_is_left(rig, rig.soon()).await;
}

pub(super) async fn acquire_of_held_lock_fails_at_wait_limit(rig: &impl Rig) {
    let (holder, remote) = (rig.manager(), rig.manager());
    let _guard = holder.lock("busy").acquire().await.unwrap();
    // `remote` waits on the server, `holder` in the local queue.
    for manager in [&remote, &holder] {
        let begin = rig.now();
        let limit = Duration::from_millis(200);
        let lock = manager.lock("busy").wait(limit);
        let error = lock.acquire().await.unwrap_err();
        let took = rig.now().since(begin);
        assert_matches!(error, LockError::WaitLimit { waited } if *waited >= limit);
        assert!(took >= limit && took < limit + rig.soon(), "{took:?}");
    }
    wait_until_left(rig, 1, rig.soon()).await;
}

/// A release may arrive twice if the answer to the first one was lost.
pub(super) async fn repeated_release_keeps_lock_of_next_holder(rig: &impl Rig) {
    let backend = rig.backend();
    let [first, second] = [(); 2].map(|()| request("twice", rig.lease()));
    let attempt = async |request: &Request| {
        let attempt = backend.contender(request.clone()).attempt().await;
        assert_matches!(attempt.unwrap(), Attempt::Held(_));
    };
    let release = async |request| backend.release(request, false).await.unwrap();
    attempt(&first).await;
    assert_eq!(release(&first).await, Release::Released);
    attempt(&second).await;
    let reason = LostReason::Stolen;
    assert_eq!(release(&first).await, Release::NotHeld(reason));
    let verified = backend.verify("twice", second.nonce).await;
    assert_eq!(verified.unwrap(), None);
    assert_eq!(release(&second).await, Release::Released);
}

pub(super) async fn dropped_guard_is_released_in_background(rig: &impl Rig) {
    let (manager, counts) = rig.counted();
    let guard = manager.lock("dropped").acquire().await.unwrap();
    let lost = guard.lost();
    // The drop works on a thread without a runtime.
    std::thread::spawn(move || drop(guard)).join().unwrap();
    assert_eq!(lost.await, LostReason::Released);
    use_lock(&rig.manager(), "dropped").await;
    assert_eq!((counts.dropped(), counts.lost()), (1, 0));
    // The server may have released it before the manager has the answer.
    let is_forgotten = async || (manager.held(), manager.names()) == (0, 0);
    eventually("the name is forgotten", rig.soon(), is_forgotten).await;
}

pub(super) async fn child_guard_keeps_lock_after_parent_release(rig: &impl Rig) {
    let (one, other) = (rig.manager(), rig.manager());
    let guard = one.lock("entered").acquire().await.unwrap();
    let child = guard.reenter().unwrap();
    assert_eq!(rig.token(&guard), rig.token(&child));
    guard.release().await;
    child.check().unwrap();
    assert!(try_lock(&other, "entered").await.is_none());
    child.release().await;
    assert!(try_lock(&other, "entered").await.is_some());
}

pub(super) async fn run_releases_lock_when_body_ends(rig: &impl Rig) {
    let manager = rig.manager();
    let run = manager.lock("run").run(async |guard| rig.token(&guard));
    let ran = run.await.unwrap();
    assert_matches!(ran.release, ReleaseOutcome::Released { .. });
    let token = ran.output;
    let guard = try_lock(&manager, "run").await.expect("the lock is free");
    rig.assert_grows(token, &guard);
}

pub(super) async fn shutdown_releases_locks_and_ends_waits(rig: &impl Rig) {
    let (one, other) = (rig.manager(), rig.manager());
    let guard = one.lock("mine").acquire().await.unwrap();
    let theirs = other.lock("theirs").acquire().await.unwrap();
    let waiter = tokio::spawn(one.lock("theirs").acquire());
    let queued = tokio::spawn(one.lock("mine").acquire());
    eventually("both tasks wait", rig.soon(), async || one.names() == 2).await;
    one.shutdown().await;
    assert_eq!(guard.lost().await, LostReason::Shutdown);
    for task in [waiter, queued] {
        let error = task.await.unwrap().unwrap_err();
        assert_matches!(error, LockError::Shutdown);
    }
    let error = one.lock("late").acquire().await.unwrap_err();
    assert_matches!(error, LockError::Shutdown);
    assert_eq!(rig.left().await, 1);
    theirs.check().unwrap();
    assert!(try_lock(&other, "mine").await.is_some());
}

/// Two managers use clones of one back end.
pub(super) async fn shutdown_keeps_locks_of_another_manager(rig: &impl Rig) {
    let backend = rig.backend();
    let [one, other] = [(); 2].map(|()| rig.builder_for(backend.clone()).build());
    use_lock(&one, "mine").await;
    let guard = other.lock("theirs").acquire().await.unwrap();
    one.shutdown().await;
    guard.verify().await.unwrap();
    assert!(try_lock(&rig.manager(), "theirs").await.is_none());
    assert_matches!(guard.release().await, ReleaseOutcome::Released { .. });
    other.shutdown().await;
    // A later manager connects again.
    let last = rig.builder_for(backend).build();
    use_lock(&last, "theirs").await;
    last.shutdown().await;
}

pub(super) async fn unusual_names_work_and_invalid_lengths_fail(rig: &impl Rig) {
    let manager = rig.manager();
    let long = "x".repeat(1_024);
    let names = [
        "/",
        ".",
        "..",
        "a/b",
        "a\0b",
        "上海仓:42",
        "a b",
        "%2F",
        "{a}",
        "}a",
        "{}a",
        "*",
        &long,
    ];
    let mut guards = Vec::new();
    for name in names {
        guards.push(try_lock(&manager, name).await.expect(name));
    }
    for name in names {
        let second = try_lock(&rig.manager(), name).await;
        assert!(second.is_none(), "{name:?}");
    }
    for wrong in ["", &"x".repeat(1_025)] {
        let error = manager.lock(wrong).acquire().await.unwrap_err();
        assert_matches!(error, LockError::InvalidName { .. });
    }
    for guard in guards {
        guard.release().await;
    }
}

/// Fifty waiting tasks cause fifty attempts on the server, and acquire in order of arrival. A task that
/// asked while the lock was held asks a second time. An attempt that fails does not count: it is repeated.
pub(super) async fn waiting_tasks_acquire_in_order_with_one_attempt_each(rig: &impl Rig) {
    let (manager, counts) = rig.counted();
    let first = manager.lock("hot").acquire().await.unwrap();
    let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..50 {
        let lock = manager.lock("hot").wait(Duration::from_mins(1));
        let sender = sender.clone();
        tasks.spawn(async move {
            let guard = lock.acquire().await.expect("the lock becomes free");
            sender.send(number).unwrap();
            guard.release().await
        });
        // Let the task, and the one that it starts, run until they wait.
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
    }
    let mut releases = vec![first.release().await];
    for number in 0..50 {
        assert_eq!(order.recv().await, Some(number));
    }
    releases.extend(tasks.join_all().await);
    // After a release without an answer, the next task may find the lock held, also after it has subscribed
    // and after the fallback.
    releases.retain(|release| !matches!(release, ReleaseOutcome::Released { .. }));
    let repeated = match rig.backend().properties().lookahead {
        0 => 3 * releases.len() as u64,
        _ => 50,
    };
    let attempts = counts.attempts() - counts.failed();
    assert!((51..=51 + repeated).contains(&attempts), "{attempts}");
}
