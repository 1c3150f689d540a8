//! Cancel safety: a dropped future leaves nothing on the server or in the process.

use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use stocklock_locks::backend::{Backend as _, Left};
use stocklock_locks::clock::Clock as _;

use crate::rig::{Rig, RigExt, eventually, request, use_lock, wait_until_nothing_is_left};

/// Drops an acquisition after 0, 1, 2 … rounds of the scheduler, and so between any two polls of
/// its task. The local name becomes free after one answered release, so that release was enough.
pub(super) async fn acquire_dropped_between_polls_leaves_nothing(rig: &impl Rig) {
    let manager = rig.manager();
    use_lock(&manager, "cut").await;
    for rounds in 0..10_000 {
        let mut acquisition = Box::pin(manager.lock("cut").acquire());
        let mut acquired = None;
        for round in 0..rounds {
            if let Poll::Ready(guard) = futures_util::poll!(&mut acquisition) {
                acquired = Some(guard.unwrap());
                break;
            }
            if round % 10 < 9 {
                tokio::task::yield_now().await;
            } else {
                // Virtual time advances only if no task can run.
                tokio::time::sleep(rig.step()).await;
            }
        }
        drop(acquisition);
        let is_acquired = acquired.is_some();
        if let Some(guard) = acquired {
            guard.release().await;
        }
        let free = async || manager.names() == 0;
        eventually("the local name is free", rig.soon(), free).await;
        assert_eq!(rig.left().await, 0, "after {rounds} rounds");
        if is_acquired {
            assert!(rounds > 0);
            return;
        }
    }
    panic!("the lock was never acquired");
}

/// Drops waits for a held lock, on the server and in the local queue.
pub(super) async fn wait_dropped_at_any_time_leaves_nothing(rig: &impl Rig) {
    let (holder, waiter) = (rig.manager(), rig.manager());
    let guard = rig.lock(&holder, "cut").acquire().await.unwrap();
    for round in 0..30 {
        for manager in [&holder, &waiter] {
            let lock = rig.lock(manager, "cut").acquire();
            assert!(cut_after(rig, rig.step() * round * 2, lock).await.is_none());
        }
        let holds = async || rig.left().await == 1 && waiter.names() == 0;
        eventually("only the holder is left", rig.soon(), holds).await;
    }
    // No dropped wait still has a place in the queue, so the lock is free at once.
    guard.release().await;
    let next = rig.lock(&waiter, "cut").try_acquire().await;
    assert!(next.unwrap().is_some());
}

/// Polls an attempt of the back end 0, 1, 2 … times, drops it, and releases its nonce.
pub(super) async fn release_undoes_attempt_dropped_at_any_await_point(rig: &impl Rig) {
    let backend = rig.backend();
    for polls in 0.. {
        let request = request("polled", rig.lease());
        let mut contender = backend.contender(request.clone());
        let ended = poll_times(polls, contender.attempt()).await;
        let left = contender.left();
        if left != Left::Nothing {
            let unclear = left == Left::Unclear;
            backend.release(&request, unclear).await.unwrap();
        }
        drop(contender);
        wait_until_nothing_is_left(rig, rig.soon()).await;
        if let Some(attempt) = ended {
            attempt.unwrap();
            assert!(polls > 0);
            return;
        }
    }
}

pub(super) async fn cut_after<F: Future>(
    rig: &impl Rig,
    time: Duration,
    future: F,
) -> Option<F::Output> {
    // The resolution of Tokio's timer is only one millisecond.
    let end = rig.clock().sleep_until(rig.now() + time);
    tokio::select! {
        biased;
        () = end => None,
        output = future => Some(output),
    }
}

/// Polls a future at most `times` times, and returns its output if it completes.
async fn poll_times<F: Future>(times: u32, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut polled = 0;
    std::future::poll_fn(|context| {
        if polled == times {
            return Poll::Ready(None);
        }
        polled += 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if polled == times => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
