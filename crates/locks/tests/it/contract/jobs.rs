//! Leader election, and jobs that run at most once per period.

use std::cell::Cell;
use std::time::Duration;

use futures_util::future::join_all;
use stocklock_locks::{LockError, LockManager, LostReason, OncePer, Ran, ReleaseOutcome};
use stocklock_testkit::assert_matches;

use crate::rig::{
    Rig, RigExt, TokenRig, eventually, try_lock, use_lock, wait_until_nothing_is_left,
};

/// Longer than the requests of a test on a busy machine.
fn long(rig: &impl Rig) -> Duration {
    rig.lease() * 100
}

async fn runs(manager: &LockManager, job: &str, period: Duration) -> bool {
    let ran = manager.lock(job).once_per(period, async |_| ()).await;
    matches!(ran.unwrap(), OncePer::Ran(_))
}

/// Eight tasks in four processes want to run a job, and only one of them does.
pub(super) async fn job_runs_once_per_period_over_processes(rig: &impl TokenRig) {
    let count = Cell::new(0);
    let managers = [(); 4].map(|()| rig.manager());
    let run = async |task: usize| {
        let lock = managers[task % 4].lock("job").wait(Duration::from_mins(1));
        let job = lock.once_per(long(rig), async |_| count.replace(count.get() + 1));
        job.await.unwrap()
    };
    let ends = join_all((0..8).map(run)).await;
    assert_eq!(count.get(), 1);
    let mut ran = 0;
    for end in ends {
        match end {
            OncePer::Ran(Ran { output, release }) => {
                assert_eq!(output, 0);
                assert_matches!(release, ReleaseOutcome::Released { .. });
                ran += 1;
            }
            OncePer::NotDue { due_in } => {
                assert!(due_in <= long(rig) && due_in > long(rig) / 2, "{due_in:?}");
            }
            OncePer::Running => panic!("the wait limit is long enough"),
        }
    }
    assert_eq!(ran, 1);
    // The lock and another job with another name are free.
    let manager = rig.manager();
    assert!(try_lock(&manager, "job").await.is_some());
    assert!(runs(&manager, "other", long(rig)).await);
}

/// The next period begins when the first one has ended by the server's clock, and not earlier. This
/// client's clock is an hour ahead.
pub(super) async fn job_runs_again_after_its_period(rig: &impl TokenRig) {
    let ahead = crate::rig::Ahead(rig.clock(), Duration::from_hours(1));
    let (one, other) = (rig.builder().clock(ahead).build(), rig.manager());
    let period = rig.moment() * 3;
    let begin = rig.now();
    assert!(runs(&one, "job", period).await);
    loop {
        let job = other.lock("job").once_per(period, async |_| ());
        match job.await.unwrap() {
            OncePer::Ran(_) => break,
            OncePer::NotDue { due_in } => {
                assert!(due_in <= period, "{due_in:?}");
                tokio::time::sleep(due_in).await;
            }
            OncePer::Running => panic!("no process runs it"),
        }
    }
    // Servers count in milliseconds.
    let took = rig.now().since(begin) + Duration::from_millis(2);
    assert!(took >= period, "{took:?}");
}

/// The runner loses its lock in the middle of the job. The lock is free, but the period is not over.
pub(super) async fn job_whose_runner_is_gone_waits_for_next_period(rig: &impl TokenRig) {
    let (one, other) = (rig.manager(), rig.manager());
    let period = rig.lease() * 3 + Duration::from_secs(3);
    let begin = rig.now();
    let lock = one.lock("job").max_renewals(0);
    let job = lock.once_per(period, async |_| std::future::pending::<()>().await);
    let error = job.await.unwrap_err();
    assert_matches!(
        error,
        LockError::Lost {
            reason: LostReason::MaxRenewals
        }
    );
    use_lock(&other, "job").await;
    assert!(!runs(&other, "job", period).await);
    let again = async || runs(&other, "job", period).await;
    eventually("the next period begins", period * 3, again).await;
    assert!(rig.now().since(begin) + Duration::from_millis(2) >= period);
}

/// While the job runs on past its period, it is not started a second time.
pub(super) async fn job_longer_than_its_period_runs_alone(rig: &impl TokenRig) {
    let (one, other) = (rig.manager(), rig.manager());
    let period = Duration::from_millis(10);
    let job = one.lock("job").once_per(period, async |_| {
        tokio::time::sleep(period * 5).await;
        let second = other.lock("job").wait(Duration::ZERO);
        second.once_per(period, async |_| ()).await.unwrap()
    });
    let OncePer::Ran(ran) = job.await.unwrap() else {
        panic!("no other process runs it");
    };
    assert_eq!(ran.output, OncePer::Running);
    assert!(runs(&other, "job", period).await);
}

/// The leader resigns, and the next one leads, with a greater token if there are tokens.
pub(super) async fn next_leader_follows_resignation(rig: &impl Rig) {
    let (one, other) = (rig.manager(), rig.manager());
    let leader = one.lock("leader").campaign().await.unwrap();
    // The wait limit does not apply to a candidacy.
    let candidate = other.lock("leader").wait(Duration::ZERO).campaign();
    let candidate = tokio::spawn(candidate);
    tokio::time::sleep(rig.moment()).await;
    assert!(!candidate.is_finished());
    let lost = leader.lost();
    let token = rig.token(&leader);
    assert_matches!(leader.release().await, ReleaseOutcome::Released { .. });
    assert_eq!(lost.await, LostReason::Released);
    let next = candidate.await.unwrap().unwrap();
    rig.assert_grows(token, &next);
    next.release().await;
    wait_until_nothing_is_left(rig, rig.soon()).await;
}

/// A leader that loses its leadership stops its work, and then leads again.
pub(super) async fn lost_leadership_is_followed_by_another(rig: &impl Rig) {
    let manager = rig.manager();
    let lock = manager.lock("leader").max_hold(Duration::from_secs(3));
    let mut terms = Vec::new();
    let led = lock.lead(|guard| {
        let token = rig.token(&guard);
        terms.push(token);
        let is_first = terms.len() == 1;
        async move {
            let _guard = guard;
            if is_first {
                std::future::pending::<()>().await;
            }
            token
        }
    });
    let ran = led.await.unwrap();
    assert_matches!(ran.release, ReleaseOutcome::Released { .. });
    assert_eq!(terms.len(), 2);
    assert!(terms[0].is_none() || terms[0] < terms[1], "{terms:?}");
    assert_eq!(terms[1], ran.output);
    wait_until_nothing_is_left(rig, rig.soon()).await;
}

/// The manager is shut down while a task leads and another one is a candidate.
pub(super) async fn shutdown_ends_candidacies(rig: &impl Rig) {
    let manager = rig.manager();
    let lead = || {
        manager
            .lock("leader")
            .lead(|_| std::future::pending::<()>())
    };
    let tasks = [tokio::spawn(lead()), tokio::spawn(lead())];
    eventually("one leads", rig.soon(), async || manager.held() == 1).await;
    manager.shutdown().await;
    for task in tasks {
        assert_matches!(task.await.unwrap().unwrap_err(), LockError::Shutdown);
    }
    assert_eq!(rig.left().await, 0);
}
