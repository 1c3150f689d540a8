//! A future that is dropped leaves nothing behind.

use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use stocklock_locks::Nonce;
use stocklock_locks::backend::Request;

use crate::rig::{Counts, Rig, RigExt, eventually};

/// Drops an acquisition after ever longer times, beyond the one that it takes.
pub(super) async fn an_acquisition_dropped_at_any_time_leaves_nothing(rig: &impl Rig) {
    let counts = Counts::default();
    let manager = rig.builder().hooks(counts.clone()).build();
    let mut acquired = 0;
    for round in 0..100 {
        let time = rig.step() * round;
        if let Some(guard) = cut_after(rig, time, manager.lock("cut").acquire()).await {
            guard.unwrap().release().await;
            acquired += 1;
        }
        eventually("nothing is left", rig.moment(), async || {
            rig.left().await == 0 && manager.names() == 0
        })
        .await;
    }
    assert!(acquired > 0);
    assert_eq!((manager.held(), counts.dropped(), counts.lost()), (0, 0, 0));
}

/// Drops an acquisition after 0, 1, 2 … rounds of the scheduler, so between any two polls of the task
/// that it runs in. When the name is free here, one release has been answered, and it was enough.
pub(super) async fn an_acquisition_dropped_between_any_two_polls_leaves_nothing(rig: &impl Rig) {
    let manager = rig.manager();
    manager.lock("cut").acquire().await.unwrap().release().await;
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
                // Virtual time stands still while anything can run.
                tokio::time::sleep(rig.step()).await;
            }
        }
        drop(acquisition);
        let is_acquired = acquired.is_some();
        if let Some(guard) = acquired {
            guard.release().await;
        }
        let free = async || manager.names() == 0;
        eventually("the name is free", rig.moment(), free).await;
        assert_eq!(rig.left().await, 0, "after {rounds} rounds");
        if is_acquired {
            assert!(rounds > 1);
            return;
        }
    }
    panic!("it was never acquired");
}

/// The same while another holds the lock, on the server and in the local line.
pub(super) async fn a_wait_dropped_at_any_time_leaves_nothing(rig: &impl Rig) {
    let (holder, waiter) = (rig.manager(), rig.manager());
    let guard = holder.lock("cut").acquire().await.unwrap();
    for round in 0..30 {
        for manager in [&holder, &waiter] {
            let lock = manager.lock("cut").acquire();
            assert!(cut_after(rig, rig.step() * round * 2, lock).await.is_none());
        }
        eventually("only the holder is left", rig.moment(), async || {
            rig.left().await == 1 && waiter.names() == 0
        })
        .await;
    }
    // Nobody in the queue is a ghost: the next one has it at once.
    guard.release().await;
    assert!(waiter.lock("cut").try_acquire().await.unwrap().is_some());
}

/// Polls an attempt of the back end itself 0, 1, 2 … times, drops it there, and releases.
pub(super) async fn an_attempt_dropped_at_any_await_point_is_undone_by_a_release(rig: &impl Rig) {
    let backend = rig.backend();
    for polls in 0.. {
        let nonce = Nonce::random();
        let mut contender = backend.contender(Request {
            name: "polled".into(),
            nonce,
            lease: rig.lease(),
        });
        let ended = poll_times(polls, contender.attempt()).await;
        if contender.may_have_left_something() {
            backend.release("polled", nonce).await.unwrap();
        }
        drop(contender);
        eventually("nothing is left", rig.moment(), async || {
            rig.left().await == 0
        })
        .await;
        if let Some(attempt) = ended {
            attempt.unwrap();
            assert!(polls > 0);
            return;
        }
    }
}

async fn cut_after<F: Future>(rig: &impl Rig, time: Duration, future: F) -> Option<F::Output> {
    // Not Tokio's timer, whose steps are milliseconds.
    let end = rig.clock().sleep_until(rig.now() + time);
    tokio::select! {
        biased;
        () = end => None,
        output = future => Some(output),
    }
}

/// The output of a future that needs at most so many polls.
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
