//! Numbers, latches and barriers that several processes share.

use std::cell::Cell;
use std::time::Duration;

use futures_util::future::join_all;
use stocklock_locks::backend::{Backend as _, Change};
use stocklock_locks::{LockError, LockManager, LostReason};
use stocklock_testkit::assert_matches;
use tokio::task::JoinSet;

use crate::rig::{
    Faults, NumberFaults, RigExt, TokenRig, change, eventually, meet, meet_at,
    wait_until_nothing_is_left,
};

const LONG: Duration = Duration::from_mins(1);

/// Four processes add to a number. Each gets a sum of its own.
pub(super) async fn changes_of_many_processes_count_once_each(rig: &impl TokenRig) {
    const ADDS: i64 = 40;
    let managers = [(); 4].map(|()| rig.manager());
    let adds = managers.iter().cycle().map(async |manager| {
        let sum = manager.number("hits").add(1).await;
        sum.unwrap()
    });
    let mut sums = join_all(adds.take(40)).await;
    sums.sort_unstable();
    assert!(sums.into_iter().eq(1..=ADDS));
    let hits = managers[0].number("hits");
    assert_eq!(hits.add(-ADDS - 2).await.unwrap(), -2);
    assert_eq!(managers[3].number("hits").get().await.unwrap(), -2);
    // A latch and a number with the same name are not the same.
    assert_eq!(managers[1].latch("hits", 3).missing().await.unwrap(), 3);
}

pub(super) async fn exchange_succeeds_for_one_process(rig: &impl TokenRig) {
    let managers = [(); 4].map(|()| rig.manager());
    let exchange = async |(manager, own): (&LockManager, i64)| {
        let number = manager.number("leader");
        (own, number.compare_exchange(0, own).await.unwrap())
    };
    let mut winners = join_all(managers.iter().zip(1..).map(exchange)).await;
    winners.retain(|(_, is_exchanged)| *is_exchanged);
    let [(winner, true)] = winners[..] else {
        panic!("one process must win: {winners:?}");
    };
    let number = managers[0].number("leader");
    assert_eq!(number.get().await.unwrap(), winner);
    assert!(number.compare_exchange(winner, i64::MIN).await.unwrap());
    assert_eq!(number.get().await.unwrap(), i64::MIN);
}

pub(super) async fn change_of_number_wakes_waiter(rig: &impl TokenRig) {
    let (one, other) = (rig.manager(), rig.manager());
    let number = one.number("version");
    let watched = other.number("version");
    let waiter = tokio::spawn(async move { watched.wait_for(LONG, |version| version >= 3).await });
    for version in [1, 2, 3] {
        tokio::time::sleep(rig.moment()).await;
        assert!(!waiter.is_finished());
        number.set(version).await.unwrap();
    }
    assert_eq!(waiter.await.unwrap().unwrap(), Some(3));
    // The number already has that value.
    let number = other.number("version");
    let found = number.wait_for(Duration::ZERO, |version| version == 3);
    assert_eq!(found.await.unwrap(), Some(3));
}

pub(super) async fn number_is_zero_before_first_change_and_after_removal(rig: &impl TokenRig) {
    let (one, other) = (rig.manager(), rig.manager());
    let name = "/ü\0 :{}%";
    assert_eq!(one.number(name).get().await.unwrap(), 0);
    one.number(name).remove().await.unwrap();
    one.number(name).set(7).await.unwrap();
    let watched = other.number(name);
    let waiter = tokio::spawn(async move { watched.wait_for(LONG, |value| value == 0).await });
    tokio::time::sleep(rig.moment()).await;
    assert!(!waiter.is_finished());
    one.number(name).remove().await.unwrap();
    assert_eq!(waiter.await.unwrap().unwrap(), Some(0));
    assert_eq!(other.number(name).add(5).await.unwrap(), 5);
}

pub(super) async fn impossible_numbers_are_refused(rig: &impl TokenRig) {
    let manager = rig.manager();
    let number = manager.number("full");
    number.set(i64::MAX).await.unwrap();
    let error = number.add(1).await.unwrap_err();
    assert_matches!(error, LockError::Unavailable(error) if error.is_permanent());
    assert_eq!(number.get().await.unwrap(), i64::MAX);
    for name in [String::new(), "x".repeat(1_025)] {
        let error = manager.number(&name).add(1).await.unwrap_err();
        assert_matches!(error, LockError::InvalidName { .. });
    }
    let error = manager.barrier("empty", 0).enter(LONG).await.unwrap_err();
    assert_matches!(error, LockError::InvalidPermits { take: 1, of: 0 });
}

/// Two of three participants wait, and a third one comes after the latch has opened.
pub(super) async fn latch_opens_for_all_at_last_arrival(rig: &impl TokenRig) {
    let managers = [(); 3].map(|()| rig.manager());
    let mut waiters = JoinSet::new();
    for manager in &managers[..2] {
        let latch = manager.latch("parts", 3);
        waiters.spawn(async move { latch.wait(LONG).await });
    }
    for (manager, missing) in managers.iter().zip([2, 1, 0]) {
        tokio::time::sleep(rig.moment()).await;
        assert!(waiters.try_join_next().is_none());
        let latch = manager.latch("parts", 3);
        assert_eq!(latch.arrive().await.unwrap(), missing);
    }
    for waited in waiters.join_all().await {
        waited.unwrap();
    }
    let latch = managers[0].latch("parts", 3);
    latch.wait(Duration::ZERO).await.unwrap();
    assert_eq!(latch.arrive().await.unwrap(), 0);
    latch.remove().await.unwrap();
    assert_eq!(latch.missing().await.unwrap(), 3);
}

pub(super) async fn missing_participants_are_reported_at_limit(rig: &impl TokenRig) {
    let manager = rig.manager();
    let limit = rig.moment();
    let begin = rig.now();
    manager.latch("parts", 2).arrive().await.unwrap();
    let latch = manager.latch("parts", 2);
    let barrier = manager.barrier("round", 2);
    let number = manager.number("version");
    let (closed, absent, unchanged) = tokio::join!(
        latch.wait(limit),
        barrier.enter(limit),
        number.wait_for(limit, |version| version == 1),
    );
    assert_matches!(closed.unwrap_err(), LockError::Incomplete { .. });
    assert_matches!(absent.unwrap_err(), LockError::Incomplete { .. });
    assert_eq!(unchanged.unwrap(), None);
    let waited = rig.now().since(begin);
    assert!(waited >= limit && waited < limit + LONG, "{waited:?}");
    wait_until_nothing_is_left(rig, LONG).await;
}

/// Three participants meet five times. None is let in before all are there, or out before all are done.
pub(super) async fn barrier_lets_participants_in_and_out_together(rig: &impl TokenRig) {
    const PARTICIPANTS: u32 = 3;
    let [arrived, done] = [(); 2].map(|()| Cell::new(0));
    let meet = async |number| {
        let barrier = rig.manager().barrier("round", PARTICIPANTS);
        let pause = rig.step() * number;
        for round in 1..=5 {
            tokio::time::sleep(pause).await;
            arrived.update(|arrived| arrived + 1);
            let participant = barrier.enter(LONG).await.unwrap();
            assert!(arrived.get() >= round * PARTICIPANTS);
            participant.guard().check().unwrap();
            tokio::time::sleep(pause).await;
            done.update(|done| done + 1);
            participant.leave(LONG).await.unwrap();
            assert!(done.get() >= round * PARTICIPANTS);
        }
    };
    join_all((0..PARTICIPANTS).map(meet)).await;
    assert_eq!(done.get(), 5 * PARTICIPANTS);
    wait_until_nothing_is_left(rig, LONG).await;
}

/// A participant that entered alone and died is not counted with the next one.
pub(super) async fn dead_participant_does_not_open_barrier(rig: &impl TokenRig) {
    let (one, other) = (rig.manager(), rig.manager());
    let dead = one.permits("round", 1, 2).max_renewals(0);
    let dead = dead.acquire().await.unwrap();
    assert_eq!(dead.lost().await, LostReason::MaxRenewals);
    tokio::time::sleep(rig.lease()).await;
    let barrier = other.barrier("round", 2);
    let error = barrier.enter(rig.moment()).await.unwrap_err();
    assert_matches!(error, LockError::Incomplete { .. });
    meet_at(&one.barrier("round", 2), &barrier).await;
    wait_until_nothing_is_left(rig, LONG).await;
}

/// A participant dies inside. The other one waits for it until its lease ends, and not longer.
pub(super) async fn dead_participant_delays_others_only_until_its_lease_ends(rig: &impl TokenRig) {
    let (one, other) = (rig.manager(), rig.manager());
    let dead = one.permits("round", 1, 2).max_renewals(9);
    let dead = dead.acquire().await.unwrap();
    let alive = other.barrier("round", 2).enter(LONG).await.unwrap();
    alive.leave(LONG).await.unwrap();
    assert!(dead.check().is_err(), "it did not wait for the other");
    wait_until_nothing_is_left(rig, LONG).await;
}

/// Both participants go without leaving together, so the gate stays open. The next one waits for
/// another.
pub(super) async fn gate_of_abandoned_round_lets_no_participant_in(rig: &impl TokenRig) {
    let (one, other) = (rig.manager(), rig.manager());
    let (here, there) = (one.barrier("round", 2), other.barrier("round", 2));
    let (first, second) = tokio::join!(here.enter(LONG), there.enter(LONG));
    drop((first.unwrap(), second.unwrap()));
    wait_until_nothing_is_left(rig, LONG).await;
    let error = here.enter(rig.moment()).await.unwrap_err();
    assert_matches!(error, LockError::Incomplete { .. });
    meet_at(&here, &there).await;
}

/// One of two leaves early. Neither it nor a third process is let in with the slow one, which is inside.
pub(super) async fn new_participant_waits_behind_full_barrier(rig: &impl TokenRig) {
    let managers = [(); 3].map(|()| rig.manager());
    let [first, second, third] = managers.each_ref().map(|it| it.barrier("round", 2));
    let (a, b) = tokio::join!(first.enter(LONG), second.enter(LONG));
    let (a, b) = (a.unwrap(), b.unwrap());
    let error = third.enter(rig.moment()).await.unwrap_err();
    assert_matches!(error, LockError::WaitLimit { .. });
    let error = a.leave(Duration::ZERO).await.unwrap_err();
    assert_matches!(error, LockError::Incomplete { .. });
    let error = first.enter(rig.moment()).await.unwrap_err();
    assert_matches!(error, LockError::Incomplete { .. });
    let late = tokio::spawn(async move { third.enter(LONG).await });
    tokio::time::sleep(rig.moment()).await;
    assert!(!late.is_finished());
    b.leave(LONG).await.unwrap();
    let again = first.enter(LONG).await.unwrap();
    let late = late.await.unwrap().unwrap();
    let (again, late) = tokio::join!(again.leave(LONG), late.leave(LONG));
    again.and(late).unwrap();
    wait_until_nothing_is_left(rig, LONG).await;
}

/// A participant is dropped at many points of its way in, and does not count after that.
pub(super) async fn enter_dropped_at_any_time_leaves_nothing(rig: &impl TokenRig) {
    let (one, other) = (rig.manager(), rig.manager());
    for round in 0..10 {
        let time = rig.step() * 2_u32.pow(round);
        let barrier = one.barrier("round", 2);
        drop(tokio::time::timeout(time, barrier.enter(LONG)).await);
        wait_until_nothing_is_left(rig, LONG).await;
    }
    meet(&one, &other, "round").await;
}

pub(super) async fn shutdown_ends_waits_for_participants(rig: &impl TokenRig) {
    let manager = rig.manager();
    let (latch, barrier) = (manager.latch("parts", 1), manager.barrier("round", 2));
    let latch = tokio::spawn(async move { latch.wait(LONG).await });
    let barrier = tokio::spawn(async move { barrier.enter(LONG).await });
    eventually("one waits", LONG, async || manager.held() == 1).await;
    manager.shutdown().await;
    assert_matches!(latch.await.unwrap().unwrap_err(), LockError::Shutdown);
    let error = barrier.await.unwrap().unwrap_err();
    assert_matches!(
        error,
        LockError::Shutdown
            | LockError::Lost {
                reason: LostReason::Shutdown
            }
    );
    assert_eq!(rig.left().await, 0);
}

/// The server gets a request again, also after other changes. It answers as it did before.
pub(super) async fn repeated_change_counts_once(rig: &(impl Faults + TokenRig)) {
    let (backend, other) = (rig.backend(), rig.manager());
    let numbers = backend.numbers().unwrap();
    let request = change("hits", Change::Add(3));
    let first = numbers.change(&request).await.unwrap();
    assert_eq!(first.value, 3);
    for _ in 0..20 {
        other.number("hits").add(1).await.unwrap();
    }
    assert_eq!(numbers.change(&request).await.unwrap(), first);
    let (expected, to) = (23, 5);
    let exchange = change("hits", Change::Exchange { expected, to });
    for _ in 0..2 {
        let changed = numbers.change(&exchange).await.unwrap();
        assert!(changed.is_changed && changed.value == 5);
    }
    assert_eq!(other.number("hits").get().await.unwrap(), 5);
}

pub(super) async fn change_with_lost_answer_counts_once(rig: &impl NumberFaults) {
    let (one, other) = (rig.manager(), rig.manager());
    let (number, latch) = (one.number("hits"), one.latch("hits", 4_322));
    number.set(4_320).await.unwrap();
    rig.lose_change_answer(4_321).await;
    assert_eq!(number.add(1).await.unwrap(), 4_321);
    rig.lose_change_answer(4_322).await;
    assert_eq!(number.add(1).await.unwrap(), 4_322);
    assert_eq!(other.number("hits").get().await.unwrap(), 4_322);
    rig.lose_change_answer(1).await;
    assert_eq!(latch.arrive().await.unwrap(), 4_321);
    assert_eq!(other.latch("hits", 4_322).missing().await.unwrap(), 4_321);
}

pub(super) async fn silent_server_is_reported_to_participants(rig: &(impl Faults + TokenRig)) {
    let manager = rig.manager();
    let number = manager.number("hits");
    number.add(1).await.unwrap();
    rig.block().await;
    let limit = rig.moment();
    let (latch, barrier) = (manager.latch("parts", 1), manager.barrier("round", 2));
    let (added, waited, entered) =
        tokio::join!(number.add(1), latch.wait(limit), barrier.enter(limit));
    assert_matches!(added.unwrap_err(), LockError::Unavailable(_));
    assert_matches!(waited.unwrap_err(), LockError::Unavailable(_));
    assert_matches!(entered.unwrap_err(), LockError::Unavailable(_));
    rig.unblock().await;
    // The addition may have arrived since, once.
    let mut sum = None;
    eventually("the server answers", LONG, async || {
        sum = number.get().await.ok();
        sum.is_some()
    })
    .await;
    assert_matches!(sum, Some(1 | 2));
}
