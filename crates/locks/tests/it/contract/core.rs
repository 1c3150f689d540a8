//! What holds while nothing fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use stocklock_locks::backend::{Attempt, Release, Request};
use stocklock_locks::{LockError, LostReason, Nonce, ReleaseOutcome};

use crate::rig::{Counts, Rig, RigExt, eventually};

/// Four processes of three tasks each read and write back a number that only the lock protects.
pub(super) async fn only_one_of_many_holds_at_a_time(rig: &impl Rig) {
    let sum = Arc::new(AtomicU64::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for manager in (0..4).map(|_| rig.manager()) {
        for _ in 0..3 {
            let (manager, sum) = (manager.clone(), Arc::clone(&sum));
            tasks.spawn(async move {
                for _ in 0..3 {
                    let lock = manager.lock("counter").wait(Duration::from_mins(1));
                    let guard = lock.acquire().await.expect("the lock is free at some time");
                    let read = sum.load(Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    sum.store(read + 1, Ordering::SeqCst);
                    let outcome = guard.release().await;
                    assert!(
                        matches!(outcome, ReleaseOutcome::Released { .. }),
                        "{outcome:?}"
                    );
                }
            });
        }
    }
    tasks.join_all().await;
    assert_eq!(sum.load(Ordering::SeqCst), 36);
    eventually("nothing is left", rig.moment(), async || {
        rig.left().await == 0
    })
    .await;
}

pub(super) async fn locks_of_other_names_are_independent(rig: &impl Rig) {
    let (one, other) = (rig.manager(), rig.manager());
    let _a = one.lock("a").acquire().await.unwrap();
    let begin = rig.now();
    let _b = other.lock("b").acquire().await.unwrap();
    let _c = one.lock("c").acquire().await.unwrap();
    assert!(rig.now().since(begin) < rig.moment());
}

pub(super) async fn acquire_ends_at_the_wait_limit(rig: &impl Rig) {
    let (holder, remote) = (rig.manager(), rig.manager());
    let _guard = holder.lock("busy").acquire().await.unwrap();
    // On the server for one, in the local line for the other.
    for manager in [&remote, &holder] {
        let begin = rig.now();
        let limit = Duration::from_millis(200);
        let error = manager
            .lock("busy")
            .wait(limit)
            .acquire()
            .await
            .unwrap_err();
        let took = rig.now().since(begin);
        assert!(
            matches!(error, LockError::WaitLimit { waited } if waited >= limit),
            "{error}"
        );
        assert!(took >= limit && took < limit + rig.moment(), "{took:?}");
    }
    eventually("the waiters left the queue", rig.moment(), async || {
        rig.left().await == 1
    })
    .await;
}

pub(super) async fn try_acquire_is_none_while_held(rig: &impl Rig) {
    let (one, other) = (rig.manager(), rig.manager());
    let guard = one
        .lock("tried")
        .try_acquire()
        .await
        .unwrap()
        .expect("free");
    assert!(other.lock("tried").try_acquire().await.unwrap().is_none());
    assert!(one.lock("tried").try_acquire().await.unwrap().is_none());
    guard.release().await;
    assert!(other.lock("tried").try_acquire().await.unwrap().is_some());
}

pub(super) async fn tokens_grow_and_name_their_source(rig: &impl Rig) {
    let managers = [rig.manager(), rig.manager()];
    let mut last = None;
    for round in 0..10 {
        let guard = managers[round % 2].lock("fenced").acquire().await.unwrap();
        let this = (guard.source().to_owned(), guard.token());
        if let Some((source, token)) = last.replace(this.clone()) {
            assert_eq!(source, this.0);
            assert!(token < this.1, "{token} before {}", this.1);
        }
        guard.release().await;
    }
}

/// A guard cannot be released twice, but a release can arrive twice: its first answer was lost.
pub(super) async fn a_second_release_frees_nobody_elses_lock(rig: &impl Rig) {
    let backend = rig.backend();
    let [first, second] = [Nonce::random(), Nonce::random()];
    let attempt = async |nonce| {
        let request = Request {
            name: "twice".into(),
            nonce,
            lease: rig.lease(),
        };
        let mut contender = backend.contender(request);
        let attempt = contender.attempt().await.unwrap();
        assert!(matches!(attempt, Attempt::Held(_)), "{attempt:?}");
    };
    attempt(first).await;
    assert_eq!(
        backend.release("twice", first).await.unwrap(),
        Release::Released
    );
    attempt(second).await;
    assert_eq!(
        backend.release("twice", first).await.unwrap(),
        Release::NotHeld
    );
    assert!(backend.verify("twice", second).await.unwrap());
    assert_eq!(
        backend.release("twice", second).await.unwrap(),
        Release::Released
    );
}

pub(super) async fn a_dropped_guard_is_released_in_the_background(rig: &impl Rig) {
    let counts = Counts::default();
    let manager = rig.builder().hooks(counts.clone()).build();
    let guard = manager.lock("dropped").acquire().await.unwrap();
    let lost = guard.lost();
    // On a thread without a runtime, and without blocking it.
    std::thread::spawn(move || drop(guard)).join().unwrap();
    assert_eq!(lost.await, LostReason::Released);
    let next = rig.manager().lock("dropped").acquire().await.unwrap();
    next.release().await;
    assert_eq!((counts.dropped(), counts.lost()), (1, 0));
    assert_eq!((manager.held(), manager.names()), (0, 0));
}

pub(super) async fn a_child_guard_keeps_the_lock(rig: &impl Rig) {
    let (one, other) = (rig.manager(), rig.manager());
    let guard = one.lock("entered").acquire().await.unwrap();
    let child = guard.reenter().unwrap();
    assert_eq!(guard.token(), child.token());
    guard.release().await;
    child.check().unwrap();
    assert!(other.lock("entered").try_acquire().await.unwrap().is_none());
    child.release().await;
    assert!(other.lock("entered").try_acquire().await.unwrap().is_some());
}

pub(super) async fn run_releases_when_its_body_ends(rig: &impl Rig) {
    let manager = rig.manager();
    let token = manager
        .lock("run")
        .run(|guard| async move { guard.token() })
        .await
        .unwrap();
    let guard = manager
        .lock("run")
        .try_acquire()
        .await
        .unwrap()
        .expect("free");
    assert!(token < guard.token());
}

pub(super) async fn shutdown_releases_what_is_held_and_ends_what_waits(rig: &impl Rig) {
    let (one, other) = (rig.manager(), rig.manager());
    let guard = one.lock("mine").acquire().await.unwrap();
    let theirs = other.lock("theirs").acquire().await.unwrap();
    let waiter = tokio::spawn(one.lock("theirs").acquire());
    let in_line = tokio::spawn(one.lock("mine").acquire());
    eventually("it waits", rig.moment(), async || one.names() == 2).await;
    one.shutdown().await;
    assert_eq!(guard.lost().await, LostReason::Shutdown);
    for task in [waiter, in_line] {
        let error = task.await.unwrap().unwrap_err();
        assert!(matches!(error, LockError::Shutdown), "{error}");
    }
    let error = one.lock("late").acquire().await.unwrap_err();
    assert!(matches!(error, LockError::Shutdown), "{error}");
    assert_eq!(rig.left().await, 1);
    theirs.check().unwrap();
    assert!(other.lock("mine").try_acquire().await.unwrap().is_some());
}

pub(super) async fn names_that_no_path_could_hold_are_fine(rig: &impl Rig) {
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
        "*",
        &long,
    ];
    let mut guards = Vec::new();
    for name in names {
        guards.push(manager.lock(name).try_acquire().await.unwrap().expect(name));
    }
    for name in names {
        assert!(
            rig.manager()
                .lock(name)
                .try_acquire()
                .await
                .unwrap()
                .is_none(),
            "{name:?}"
        );
    }
    for wrong in ["", &"x".repeat(1_025)] {
        let error = manager.lock(wrong).acquire().await.unwrap_err();
        assert!(matches!(error, LockError::InvalidName { .. }), "{error}");
    }
    for guard in guards {
        guard.release().await;
    }
}

/// Fifty tasks on one lock ask the server fifty times, in the order of their arrival.
pub(super) async fn tasks_of_one_process_are_one_contender(rig: &impl Rig) {
    let counts = Counts::default();
    let manager = rig.builder().hooks(counts.clone()).build();
    let first = manager.lock("hot").acquire().await.unwrap();
    let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..50 {
        let lock = manager.lock("hot").wait(Duration::from_mins(1));
        let sender = sender.clone();
        tokio::spawn(async move {
            let guard = lock.acquire().await.expect("free at some time");
            sender.send(number).unwrap();
            guard.release().await;
        });
        // Runs the task, and the one that it starts, to where they wait.
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
    }
    first.release().await;
    for number in 0..50 {
        assert_eq!(order.recv().await, Some(number));
    }
    assert_eq!(counts.attempts(), 51);
}
