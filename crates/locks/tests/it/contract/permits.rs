//! Locks that several clients share, in order of arrival: read and write locks, and permits.

use std::cell::Cell;
use std::time::Duration;

use futures_util::future::join_all;
use stocklock_locks::backend::{Attempt, Backend as _, Claim, Left, Request};
use stocklock_locks::clock::Clock as _;
use stocklock_locks::{LockError, LockManager, ManagerBuilder};
use stocklock_testkit::assert_matches;

use crate::rig::{
    Counts, Faults, RigExt, TokenRig, eventually, hand_over, request, wait_until_left,
    wait_until_nothing_is_left,
};

/// How long a waiter that died stays in the queue: three times the fallback.
const PATIENCE: Duration = Duration::from_secs(3);
const FALLBACK: Duration = Duration::from_secs(1);

async fn can_read(manager: &LockManager, name: &str) -> bool {
    let guard = manager.read(name).try_acquire().await.unwrap();
    match guard {
        Some(guard) => {
            guard.release().await;
            true
        }
        None => false,
    }
}

pub(super) async fn readers_share_lock_and_exclude_writer(rig: &impl TokenRig) {
    let (one, other) = (rig.manager(), rig.manager());
    let first = one.read("shared").acquire().await.unwrap();
    let second = other.read("shared").acquire().await.unwrap();
    let third = one.read("shared").acquire().await.unwrap();
    assert!(first.token() < second.token() && second.token() < third.token());
    assert_eq!(first.source(), second.source());
    for manager in [&one, &other] {
        let writer = manager.write("shared").try_acquire().await.unwrap();
        assert!(writer.is_none());
    }
    for guard in [first, second, third] {
        guard.release().await;
    }
    let writer = other.write("shared").try_acquire().await.unwrap();
    let writer = writer.expect("no reader is left");
    for manager in [&one, &other] {
        assert!(!can_read(manager, "shared").await);
        let second = manager.write("shared").try_acquire().await.unwrap();
        assert!(second.is_none());
    }
    writer.release().await;
    wait_until_nothing_is_left(rig, rig.soon()).await;
}

/// Readers that arrive after a waiting writer wait behind it.
pub(super) async fn waiting_writer_stops_new_readers(rig: &impl TokenRig) {
    let (one, other) = (rig.manager(), rig.manager());
    let reader = one.read("storm").acquire().await.unwrap();
    let writer = tokio::spawn(other.write("storm").acquire());
    let stops = async || !can_read(&one, "storm").await;
    eventually("the writer waits", rig.soon(), stops).await;
    let next = tokio::spawn(one.read("storm").acquire());
    wait_until_left(rig, 3, rig.soon()).await;
    let begin = rig.now();
    reader.release().await;
    let writer = writer.await.unwrap().unwrap();
    assert!(!next.is_finished());
    hand_over(writer, next).await;
    assert!(rig.now().since(begin) < rig.soon());
}

/// Waiting readers that follow each other in the queue acquire together.
pub(super) async fn waiting_readers_acquire_together(rig: &impl TokenRig) {
    let managers = [(); 4].map(|()| rig.manager());
    let writer = managers[0].write("many").acquire().await.unwrap();
    let readers = managers
        .each_ref()
        .map(|manager| tokio::spawn(manager.read("many").acquire()));
    wait_until_left(rig, 1 + readers.len(), rig.soon()).await;
    let begin = rig.now();
    writer.release().await;
    let mut guards = Vec::new();
    for reader in readers {
        guards.push(reader.await.unwrap().unwrap());
    }
    assert!(rig.now().since(begin) < rig.soon());
    for guard in guards {
        guard.release().await;
    }
}

/// Four processes with three tasks each take one to three of four permits.
pub(super) async fn permits_never_exceed_their_limit(rig: &impl TokenRig) {
    const LIMIT: u32 = 4;
    let (used, most) = (Cell::new(0), Cell::new(0));
    let managers = [(); 4].map(|()| rig.manager());
    let hold = async |(manager, take): (&LockManager, u32)| {
        for _ in 0..3 {
            let permits = manager.permits("slots", take, LIMIT);
            let permits = permits.wait(Duration::from_mins(1)).acquire();
            let guard = permits.await.expect("permits are returned");
            used.update(|used| used + take);
            most.update(|most| most.max(used.get()));
            tokio::time::sleep(Duration::from_millis(2)).await;
            used.update(|used| used - take);
            guard.release().await;
        }
    };
    let each = |manager| (1..=3).map(move |take| (manager, take));
    join_all(managers.iter().flat_map(each).map(hold)).await;
    assert_eq!(most.get(), LIMIT);
    wait_until_nothing_is_left(rig, rig.soon()).await;
}

pub(super) async fn claims_are_granted_in_order_of_arrival(rig: &impl TokenRig) {
    let holder = rig.manager().write("queue").acquire().await.unwrap();
    let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..6 {
        let manager = rig.manager();
        let sender = sender.clone();
        tokio::spawn(async move {
            let lock = manager.write("queue").wait(Duration::from_mins(1));
            let guard = lock.acquire().await.expect("the lock becomes free");
            sender.send(number).unwrap();
            guard.release().await;
        });
        wait_until_left(rig, 2 + number, rig.soon()).await;
    }
    let begin = rig.now();
    holder.release().await;
    for number in 0..6 {
        assert_eq!(order.recv().await, Some(number));
    }
    assert!(rig.now().since(begin) < rig.soon() * 2);
}

/// Five waiters die. Together they cost their patience, not five times as much.
pub(super) async fn dead_waiters_cost_their_patience_once(rig: &impl TokenRig) {
    let (one, other) = (rig.manager(), rig.manager());
    let holder = one.write("dead").acquire().await.unwrap();
    let backend = rig.backend();
    for _ in 0..5 {
        let mut contender = backend.contender(Request {
            claim: Claim::WRITE,
            ..request("dead", rig.lease())
        });
        let attempt = contender.attempt().await.unwrap();
        assert_matches!(attempt, Attempt::Busy { .. });
        assert_eq!(contender.left(), Left::Something);
    }
    let next = other.write("dead").wait(Duration::from_mins(1));
    let next = tokio::spawn(next.acquire());
    wait_until_left(rig, 7, rig.soon()).await;
    let begin = rig.now();
    hand_over(holder, next).await;
    let took = rig.now().since(begin);
    assert!(took < PATIENCE + FALLBACK + rig.soon(), "{took:?}");
    wait_until_nothing_is_left(rig, rig.soon()).await;
}

/// A new limit applies at once, and to the requests that already wait.
pub(super) async fn raised_limit_admits_waiters(rig: &impl TokenRig) {
    let managers = [(); 3].map(|()| rig.manager());
    let first = managers[0].permits("slots", 1, 1).acquire().await.unwrap();
    let second = tokio::spawn(managers[1].permits("slots", 1, 1).acquire());
    wait_until_left(rig, 2, rig.soon()).await;
    let begin = rig.now();
    let third = managers[2].permits("slots", 1, 3).acquire().await.unwrap();
    let second = second.await.unwrap().unwrap();
    assert!(rig.now().since(begin) < rig.soon());
    for guard in [first, second, third] {
        guard.release().await;
    }
}

/// A request waits for all permits when their number becomes smaller. It keeps no others from theirs.
pub(super) async fn waiter_for_too_many_permits_is_refused(rig: &impl TokenRig) {
    let counts = Counts::default();
    let builders = [(); 4].map(|()| rig.builder().hooks(counts.clone()));
    let managers = builders.map(ManagerBuilder::build);
    let permits = |number: usize, take, of| managers[number].permits("slots", take, of);
    let first = permits(0, 1, 10).acquire().await.unwrap();
    let long = Duration::from_mins(1);
    let large = tokio::spawn(permits(1, 10, 10).wait(long).acquire());
    // After it has subscribed, it asks again at once, and then after the fallback.
    let waits = async || rig.left().await == 2 && counts.attempts() >= 3;
    eventually("it waits", rig.soon(), waits).await;
    let begin = rig.now();
    let second = permits(2, 4, 5).try_acquire().await.unwrap();
    let second = second.expect("it does not wait behind the large request");
    let third = tokio::spawn(permits(3, 2, 5).wait(long).acquire());
    let refused = large.await.unwrap().unwrap_err();
    assert_matches!(refused, LockError::InvalidPermits { take: 10, of: 5 });
    assert!(rig.now().since(begin) < PATIENCE + rig.soon());
    wait_until_left(rig, 3, rig.soon()).await;
    let begin = rig.now();
    second.release().await;
    let third = third.await.unwrap().unwrap();
    assert!(rig.now().since(begin) < rig.soon());
    // A larger number lets the same request through.
    first.release().await;
    third.release().await;
    permits(1, 10, 10).acquire().await.unwrap().release().await;
    wait_until_nothing_is_left(rig, rig.soon()).await;
}

pub(super) async fn downgraded_writer_admits_readers(rig: &impl TokenRig) {
    let (one, other) = (rig.manager(), rig.manager());
    let writer = one.write("down").acquire().await.unwrap();
    let token = writer.token();
    let reader = tokio::spawn(other.read("down").acquire());
    wait_until_left(rig, 2, rig.soon()).await;
    let begin = rig.now();
    writer.downgrade().await.unwrap();
    writer.downgrade().await.unwrap();
    let reader = reader.await.unwrap().unwrap();
    assert!(rig.now().since(begin) < rig.soon());
    assert_eq!(writer.token(), token);
    writer.verify().await.unwrap();
    reader.release().await;
    assert!(other.write("down").try_acquire().await.unwrap().is_none());
    writer.release().await;
    let writer = other.write("down").try_acquire().await.unwrap();
    writer.expect("no reader is left").release().await;
    let racing = one.lock("down").acquire().await.unwrap();
    let error = racing.downgrade().await.unwrap_err();
    assert_matches!(error, LockError::Unsupported { .. });
}

pub(super) async fn impossible_permits_are_refused(rig: &impl TokenRig) {
    let manager = rig.manager();
    for (take, of) in [(0, 1), (2, 1), (0, 0)] {
        let permits = manager.permits("slots", take, of);
        let error = permits.acquire().await.unwrap_err();
        assert_matches!(error, LockError::InvalidPermits { .. });
    }
    assert_eq!(rig.left().await, 0);
}

/// The request arrives after its release.
pub(super) async fn late_claim_takes_nothing(rig: &(impl Faults + TokenRig)) {
    let backend = rig.backend();
    for claim in [Claim::Exclusive, Claim::READ] {
        let request = Request {
            claim,
            ..request("late", rig.lease())
        };
        backend.release(&request, false).await.unwrap();
        backend.contender(request).attempt().await.unwrap_err();
        assert_eq!(rig.left().await, 0, "{claim:?}");
    }
}

/// After a holder has expired, the first request is a late one, which takes nothing.
pub(super) async fn late_claim_keeps_expired_permits_free(rig: &(impl Faults + TokenRig)) {
    let backend = rig.backend();
    let [late, short] = [(); 2].map(|()| Request {
        claim: Claim::Permits { take: 5, of: 10 },
        ..request("slots", rig.lease())
    });
    let kept = rig.manager().permits("slots", 5, 10).acquire().await;
    let kept = kept.unwrap();
    backend.release(&late, false).await.unwrap();
    backend.contender(short).attempt().await.unwrap();
    // That holder has no manager, which would renew its lease.
    let expired = rig.now() + rig.lease() + rig.moment();
    rig.clock().sleep_until(expired).await;
    backend.contender(late).attempt().await.unwrap_err();
    let free = rig.manager().permits("slots", 5, 10).try_acquire().await;
    let free = free.unwrap().expect("five permits are free");
    kept.verify().await.unwrap();
    for guard in [kept, free] {
        guard.release().await;
    }
}
