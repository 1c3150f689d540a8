//! Behaviour of locks on several Redis masters, when some of them fail, forget or restart.

use std::time::Duration;

use rstest::rstest;
use rustix::process::Signal;
use stocklock_locks::backend::{Attempt, Backend as _, Renewed};
use stocklock_locks::redis::redlock::RedLockBackend;
use stocklock_locks::{LockError, LockManager, LostReason, ReleaseOutcome};
use stocklock_testkit::assert_matches;
use stocklock_testkit::proxy::Mode;
use tokio::time::{Instant, sleep, timeout};

use crate::rig::redlock::RedLockRig;
use crate::rig::{
    Faults as _, Rig as _, RigExt as _, eventually, request, try_lock, use_lock,
    wait_until_nothing_is_left,
};

mod silence;
mod votes;

const SOON: Duration = Duration::from_secs(10);

/// Writes a key on one master, as another client's request would.
async fn set(rig: &RedLockRig, master: usize, name: &str, value: &str) {
    let set = format!("SET redlock{{{name}}} {value}");
    rig.masters[master].run::<String>(&set).await;
}

async fn get(rig: &RedLockRig, master: usize, name: &str) -> Option<String> {
    let get = format!("GET redlock{{{name}}}");
    rig.masters[master].run(&get).await
}

fn foreign_vote() -> String {
    format!("{}1", "f".repeat(32))
}

#[tokio::test]
async fn lock_is_voted_for_and_released_on_all_masters() {
    let rig = RedLockRig::of(5).await;
    let manager = rig.manager();
    let guard = manager.lock("all").acquire().await.unwrap();
    rig.wait_for_votes("all").await;
    rig.prolong("all").await;
    let outcome = guard.release().await;
    assert_matches!(outcome, ReleaseOutcome::Released { .. });
    let free = async || rig.votes("all").await == 0;
    eventually("all votes are given back", SOON, free).await;
}

/// Other clients have some of the votes. A minority is given back long before the leases end.
#[rstest]
#[case(3)]
#[case(5)]
#[tokio::test]
async fn minority_of_votes_is_given_back(#[case] masters: usize) {
    let lease = SOON * 2;
    let rig = RedLockRig::with_max_lease(masters, lease).await;
    let manager = rig.manager();
    for taken in 1..=masters / 2 + 1 {
        set(&rig, taken - 1, "split", &foreign_vote()).await;
        let lock = manager.lock("split").lease(lease);
        let guard = lock.try_acquire().await.unwrap();
        assert_eq!(guard.is_some(), taken <= masters / 2, "{taken} are taken");
        if let Some(guard) = guard {
            guard.release().await;
        }
        let given_back = async || rig.votes("split").await == taken;
        eventually("only the other votes are left", SOON, given_back).await;
    }
}

/// Some masters are killed or stopped.
#[rstest]
#[case::stopped(3, Signal::STOP)]
#[case::killed(5, Signal::KILL)]
#[tokio::test]
async fn minority_of_masters_that_is_down_changes_nothing(
    #[case] masters: usize,
    #[case] signal: Signal,
) {
    let rig = RedLockRig::private(masters).await;
    let manager = rig.manager();
    let kept = manager.lock("kept").acquire().await.unwrap();
    for master in &rig.masters[..masters / 2] {
        if signal == Signal::KILL {
            master.server().kill9();
        } else {
            master.server().stop().await;
        }
    }
    for round in 0..10 {
        use_lock(&manager, &format!("n{round}")).await;
    }
    manager.ping().await.unwrap();
    sleep(rig.lease() * 2).await;
    kept.check().unwrap();
    kept.verify().await.unwrap();
    assert!(try_lock(&rig.manager(), "kept").await.is_none());
    assert_matches!(kept.release().await, ReleaseOutcome::Released { .. });
    use_lock(&rig.manager(), "kept").await;
    if signal == Signal::STOP {
        for master in &rig.masters[..masters / 2] {
            master.server().resume();
        }
        wait_until_nothing_is_left(&rig, SOON).await;
    }
}

#[tokio::test]
async fn silent_master_is_not_waited_for() {
    let rig = RedLockRig::start().await;
    let manager = rig.manager();
    use_lock(&manager, "warm").await;
    rig.masters[2].proxy.set(Mode::Blackhole).await;
    let begin = Instant::now();
    for _ in 0..50 {
        use_lock(&manager, "slow").await;
    }
    // If each request waited for the silent master, they would take 50 s.
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
}

#[tokio::test]
async fn killed_majority_of_masters_is_an_error_that_names_them() {
    let rig = RedLockRig::start_private().await;
    let manager = rig.manager();
    let guard = manager.lock("held").acquire().await.unwrap();
    for master in &rig.masters[1..] {
        master.server().kill9();
    }
    let lock = manager.lock("other").wait(Duration::from_secs(2));
    let LockError::Unavailable(error) = lock.acquire().await.unwrap_err() else {
        panic!("the masters were killed");
    };
    let error = error.to_string();
    let expected = "1 of 3 masters can vote, 2 are needed";
    assert!(error.contains(expected), "{error}");
    for (number, master) in rig.masters.iter().enumerate() {
        let address = master.proxy.address().to_string();
        assert_eq!(error.contains(&address), number > 0, "{error}");
    }
    let error = manager.ping().await.unwrap_err().to_string();
    assert!(error.contains("1 of 3 masters"), "{error}");
    assert_matches!(guard.lost().await, LostReason::Expired | LostReason::Stolen);
    assert_matches!(guard.release().await, ReleaseOutcome::AlreadyLost { .. });
}

/// Two masters restart without their data. They do not vote for another client while the first one may
/// still use its lock.
#[tokio::test]
async fn restarted_masters_vote_only_after_the_maximum_lease() {
    let rig = RedLockRig::start_private().await;
    let (one, other) = (rig.manager(), rig.manager());
    let guard = one.lock("kept").acquire().await.unwrap();
    let begin = Instant::now();
    for master in &rig.masters[1..] {
        master.server().kill9();
        master.server().restart().await;
    }
    let error = other.lock("kept").wait(Duration::from_secs(1));
    let LockError::Unavailable(error) = error.acquire().await.unwrap_err() else {
        panic!("the masters may have lost locks");
    };
    let error = error.to_string();
    assert!(error.contains("was started less than 3 s ago"), "{error}");
    let last = guard.valid_until();
    let next = other.lock("kept").wait(rig.lease() + SOON).acquire();
    let next = next.await.unwrap();
    assert!(begin.elapsed() > rig.lease(), "{:?}", begin.elapsed());
    assert!(guard.check().is_err());
    assert!(rig.now() > last);
    next.verify().await.unwrap();
    next.release().await;
}

/// A master loses its vote, and gets it again. It does not count: another client could have had it in
/// between.
#[tokio::test]
async fn lost_vote_is_never_added_again() {
    let rig = RedLockRig::start().await;
    let (manager, renewals) = rig.counted();
    let guard = manager.lock("votes").acquire().await.unwrap();
    rig.wait_for_votes("votes").await;
    let vote = get(&rig, 0, "votes").await.unwrap();
    let renewed_twice = async || {
        let before = renewals.renewals();
        let twice = async || renewals.renewals() >= before + 2;
        eventually("the lock is renewed twice", SOON, twice).await;
    };
    renewed_twice().await;
    assert!(rig.forget(0, "votes").await);
    // Two renewals later, the client knows of the loss.
    renewed_twice().await;
    guard.check().unwrap();
    set(&rig, 0, "votes", &vote).await;
    renewed_twice().await;
    guard.verify().await.unwrap();
    rig.prolong("votes").await;
    assert!(rig.forget(1, "votes").await);
    let lost = timeout(SOON, guard.lost()).await;
    assert_eq!(lost.expect("a majority is lost"), LostReason::Stolen);
    // The other vote is given back.
    let free = async || get(&rig, 2, "votes").await.is_none();
    eventually("the last vote is given back", SOON, free).await;
}

/// The vote that a late request of an earlier attempt left is not a vote of the later one.
#[tokio::test]
async fn vote_of_an_earlier_attempt_does_not_count() {
    let rig = RedLockRig::start().await;
    let (backend, request) = (rig.backend(), request("late", rig.lease()));
    let mut contender = backend.contender(request.clone());
    for master in 0..2 {
        set(&rig, master, "late", &foreign_vote()).await;
    }
    assert_matches!(contender.attempt().await.unwrap(), Attempt::Busy { .. });
    for master in 0..2 {
        assert!(rig.forget(master, "late").await);
    }
    assert_matches!(contender.attempt().await.unwrap(), Attempt::Held(_));
    rig.wait_for_votes("late").await;
    for master in 0..2 {
        set(&rig, master, "late", &format!("{}1", request.nonce)).await;
    }
    let renewed = backend.renew(&[request]).await.unwrap();
    assert_eq!(renewed, [Renewed::Gone(LostReason::Stolen)]);
}

/// The connection is cut before the request arrives at the master. It arrives after the release.
#[tokio::test]
async fn late_request_gets_no_vote_after_the_release() {
    let rig = RedLockRig::start_private().await;
    let manager = rig.manager();
    use_lock(&manager, "warm").await;
    let free = async || rig.votes("warm").await == 0;
    eventually("all votes are given back", SOON, free).await;
    let late = rig.masters[2].proxy.hold_and_cut(b"EVALSHA");
    let guard = manager.lock("late").acquire().await.unwrap();
    assert_matches!(guard.release().await, ReleaseOutcome::Released { .. });
    // The tombstone.
    let buried = async || rig.masters[2].keys("redlock{late}:gone:*").await.len() == 1;
    eventually("the release arrives", SOON, buried).await;
    let before = rig.masters[2].scripts().await;
    drop(late);
    let arrived = async || rig.masters[2].scripts().await == before + 1;
    eventually("the late request arrives", SOON, arrived).await;
    assert_eq!(rig.votes("late").await, 0);
}

#[tokio::test]
async fn lease_is_capped_and_shortened_by_the_drift() {
    let rig = RedLockRig::start().await;
    let manager = rig.manager();
    let lock = manager.lock("long").lease(Duration::from_hours(1));
    let guard = lock.safety_margin(Duration::ZERO).acquire().await.unwrap();
    rig.wait_for_votes("long").await;
    let drift = rig.lease() / 100 + Duration::from_millis(2);
    let milliseconds = rig.masters[0].run("PTTL redlock{long}").await;
    let left = Duration::from_millis(milliseconds);
    assert!(left <= rig.lease(), "{left:?}");
    let remaining = guard.remaining();
    assert!(remaining + drift <= rig.lease(), "{remaining:?}");
    guard.extend(Duration::from_hours(1)).await.unwrap();
    assert!(guard.remaining() < rig.lease());
}

#[tokio::test]
async fn shared_locks_are_unsupported() {
    let urls = [1, 2, 3].map(|port| format!("redis://127.0.0.1:{port}/"));
    let manager = LockManager::new(RedLockBackend::new(&urls).unwrap());
    let error = manager.read("shared").acquire().await.unwrap_err();
    assert_matches!(error, LockError::Unsupported { server: "redlock" });
}

#[test]
fn unusable_sets_of_masters_are_refused() {
    let url = |port: u16| format!("redis://:s3cr3t@127.0.0.1:{port}/");
    let sentinel = "redis+sentinel://127.0.0.1:1/stock".to_owned();
    for (urls, expected) in [
        (vec![url(1), url(2)], "at least 3 masters, not 2"),
        (vec![url(1), url(2), url(2)], "two URLs name 127.0.0.1:2"),
        (vec![url(1), url(2), sentinel], "not of sentinels"),
        (vec![url(1), url(2), "http://a".to_owned()], ""),
    ] {
        let builder = RedLockBackend::builder(&urls);
        assert!(!format!("{builder:?}").contains("s3cr3t"), "{builder:?}");
        let error = builder.build().unwrap_err();
        assert!(error.is_permanent(), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
    let urls = [1, 2, 3].map(url);
    let builder = RedLockBackend::builder(&urls);
    let no_lease = builder.clone().max_lease(Duration::ZERO);
    for builder in [no_lease, builder.node_limit(Duration::ZERO)] {
        let error = builder.build().unwrap_err();
        assert!(error.to_string().contains("must not be zero"), "{error}");
    }
}

#[tokio::test]
async fn master_that_may_lose_votes_is_warned_about() {
    let rig = RedLockRig::start_private().await;
    let backend = rig.outsider();
    assert_eq!(backend.warnings().await, Vec::<String>::new());
    let evict = "CONFIG SET maxmemory-policy allkeys-lru";
    rig.masters[0].run::<String>(evict).await;
    let replicate = format!("REPLICAOF 127.0.0.1 {}", rig.masters[0].server().port());
    rig.masters[1].run::<String>(&replicate).await;
    rig.masters[2].server().kill9();
    let expected = ["may evict locks", "without replicas", "refused"];
    let warned = async || {
        let warnings = backend.warnings().await.join("\n");
        expected.iter().all(|text| warnings.contains(text))
    };
    eventually("all three are warned about", SOON, warned).await;
}
