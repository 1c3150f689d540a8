//! The watchdog: renews the held locks, and ends those that could not be renewed in time.
//!
//! Each manager has one watchdog task. It waits only for the clock. Renewals run in other tasks, so
//! a slow renewal delays no deadline. One request renews all locks that are due at about the same
//! time.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::backend::{Claim, Nudge, Renewed, Request};
use crate::held::hold::{Hold, RenewalKind};
use crate::held::release::ReleaseContext;
use crate::shared::clock::Moment;
use crate::shared::error::LostReason;
use crate::shared::lock::lock;

/// The maximum number of locks per renewal request.
const BATCH: usize = 100;
/// Renewals that are due this soon join the current request. A renewal is advanced by at most a
/// thirtieth of its lease.
const JOIN_WITHIN: Duration = Duration::from_millis(500);

/// The held locks, and when they are due.
#[derive(Debug, Default)]
pub(crate) struct Watchdog {
    schedule: Mutex<Schedule>,
    /// Wakes the task when a new entry is due before its alarm.
    earlier: Notify,
    nudge: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Schedule {
    holds: HashMap<u64, (Arc<Hold>, DueTimes)>,
    due: BTreeSet<Entry>,
    /// When the task will look at the schedule, or has been woken to set a timer for.
    alarm: Option<Moment>,
}

type Entry = (Moment, u64, Due);

/// When a hold must be checked and renewed.
#[derive(Debug, Clone, Copy)]
struct DueTimes {
    deadline: Moment,
    renewal: Option<Moment>,
}

impl DueTimes {
    fn entries(self, id: u64) -> impl Iterator<Item = Entry> {
        let renewal = self.renewal.map(|moment| (moment, id, Due::Renewal));
        renewal
            .into_iter()
            .chain([(self.deadline, id, Due::Deadline)])
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Deadline,
    Renewal,
}

impl Watchdog {
    pub(crate) fn nudge(&self) -> Nudge {
        Nudge(Arc::clone(&self.nudge))
    }

    pub(crate) fn insert(&self, hold: &Arc<Hold>, renewal: Moment) {
        let times = DueTimes {
            deadline: hold.valid_until(),
            renewal: hold.may_renew().then_some(renewal),
        };
        let mut schedule = lock(&self.schedule);
        schedule.holds.insert(hold.id, (Arc::clone(hold), times));
        schedule.add(hold.id, times);
        self.wake_if_earlier(&mut schedule, times);
    }

    /// Notes the current deadline of a hold, if it is still watched, and when to renew it next.
    /// Without `renewal`, that stays as it is.
    pub(crate) fn reschedule(&self, id: u64, renewal: Option<Moment>) {
        let mut schedule = lock(&self.schedule);
        let Some((hold, times)) = schedule.holds.get_mut(&id) else {
            return;
        };
        let old = *times;
        // Read under the mutex of the schedule: of two concurrent calls, the later one notes the
        // later deadline.
        times.deadline = hold.valid_until();
        if let Some(moment) = renewal {
            times.renewal = hold.may_renew().then_some(moment);
        }
        let times = *times;
        schedule.remove(id, old);
        schedule.add(id, times);
        self.wake_if_earlier(&mut schedule, times);
    }

    pub(crate) fn remove(&self, id: u64) {
        let mut schedule = lock(&self.schedule);
        let removed = schedule.holds.remove(&id);
        if let Some((_, times)) = &removed {
            schedule.remove(id, *times);
        }
        // This may be the last reference. Its drop could lock the schedule again, so unlock the
        // mutex first.
        drop(schedule);
    }

    pub(crate) fn len(&self) -> usize {
        lock(&self.schedule).holds.len()
    }

    /// Returns how many holds of an exclusive lock there are: none or one.
    pub(crate) fn exclusive(&self, name: &str) -> usize {
        let is_it =
            |hold: &&Arc<Hold>| hold.request.claim == Claim::Exclusive && **hold.name() == *name;
        self.all().iter().filter(is_it).count()
    }

    pub(crate) fn lose_all(&self, reason: LostReason) {
        for hold in self.all() {
            hold.lose(reason);
        }
    }

    fn all(&self) -> Vec<Arc<Hold>> {
        let schedule = lock(&self.schedule);
        schedule
            .holds
            .values()
            .map(|(hold, _)| Arc::clone(hold))
            .collect()
    }

    fn wake_if_earlier(&self, schedule: &mut Schedule, times: DueTimes) {
        let first_due = times.renewal.unwrap_or(times.deadline).min(times.deadline);
        if schedule.alarm.is_none_or(|alarm| first_due < alarm) {
            schedule.alarm = Some(first_due);
            self.earlier.notify_one();
        }
    }

    /// Watches until `stopped` is cancelled. If it ends for another reason, all locks are lost, and
    /// `closed` is cancelled.
    pub(crate) async fn run(
        self: Arc<Self>,
        context: ReleaseContext,
        stopped: CancellationToken,
        closed: CancellationToken,
    ) {
        let _end = End {
            watchdog: &self,
            closed,
        };
        loop {
            let next = lock(&self.schedule).set_alarm(context.clock.now());
            let alarm = async {
                match next {
                    Some(moment) => context.clock.sleep_until(moment).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stopped.cancelled() => return,
                () = self.earlier.notified() => {}
                () = self.nudge.notified() => self.renew_all(&context, &self.all(), RenewalKind::Check),
                () = alarm => {}
            }
            // A separate statement, so that the mutex is not locked during the loop.
            let now = context.clock.now();
            let passed = lock(&self.schedule).take(Due::Deadline, now, |_| now);
            for hold in passed {
                // `ended` checks the hold's own deadline, which may have moved since.
                if hold.ended().is_none() {
                    self.reschedule(hold.id, None);
                }
            }
            let due = lock(&self.schedule).take_renewals(context.clock.now());
            self.renew_all(&context, &due, RenewalKind::Regular);
        }
    }

    fn renew_all(
        self: &Arc<Self>,
        context: &ReleaseContext,
        holds: &[Arc<Hold>],
        kind: RenewalKind,
    ) {
        for batch in holds.chunks(BATCH) {
            tokio::spawn(Arc::clone(self).renew(context.clone(), batch.to_vec(), kind));
        }
    }

    /// Renews a batch of locks in one request. It stops waiting after a third of the shortest
    /// lease, which leaves time for another attempt.
    async fn renew(
        self: Arc<Self>,
        context: ReleaseContext,
        batch: Vec<Arc<Hold>>,
        kind: RenewalKind,
    ) {
        let renewals: Vec<Request> = batch.iter().map(|hold| hold.renewal(None)).collect();
        let shortest = batch.iter().map(|hold| hold.grant.lease).min();
        let sent = context.clock.now();
        let timeout = context
            .clock
            .sleep_until(sent + shortest.unwrap_or_default() / 3);
        let answers = tokio::select! {
            answers = context.backend.renew(&renewals) => answers
                .inspect_err(|error| tracing::debug!(%error, "locks were not renewed"))
                .ok(),
            () = timeout => None,
        };
        let took = context.clock.now().since(sent);
        let answers = answers.unwrap_or_else(|| vec![Renewed::Unknown; batch.len()]);
        let answered = answers.iter().filter(|answer| **answer != Renewed::Unknown);
        let answered = answered.count();
        for (locks, has_answer) in [(answered, true), (batch.len() - answered, false)] {
            if locks > 0 {
                context
                    .hooks
                    .report(|hooks| hooks.renewed(locks, took, has_answer));
            }
        }
        for (hold, answer) in batch.iter().zip(answers) {
            let next = hold.apply_renewal(sent, answer, kind);
            self.reschedule(hold.id, next);
        }
    }
}

/// Ends all holds when the watchdog ends: nothing renews them any more.
struct End<'a> {
    watchdog: &'a Watchdog,
    closed: CancellationToken,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.closed.cancel();
        self.watchdog.lose_all(LostReason::Shutdown);
    }
}

impl Schedule {
    /// Returns when to look at the schedule.
    ///
    /// An alarm for a lock that has ended stays. Otherwise each lock that is used for a short time would
    /// wake the task, which would set a timer. So the task wakes once without need, not for each lock.
    fn set_alarm(&mut self, now: Moment) -> Option<Moment> {
        let pending = self.alarm.filter(|alarm| *alarm > now);
        let first = self.due.first().map(|(moment, ..)| *moment);
        self.alarm = pending.into_iter().chain(first).min();
        self.alarm
    }

    fn add(&mut self, id: u64, times: DueTimes) {
        self.due.extend(times.entries(id));
    }

    fn remove(&mut self, id: u64, times: DueTimes) {
        for entry in times.entries(id) {
            self.due.remove(&entry);
        }
    }

    /// Takes the entries that are due at the time `until`, no later than `end`, and returns their holds.
    fn take(
        &mut self,
        wanted: Due,
        end: Moment,
        until: impl Fn(&Hold) -> Moment,
    ) -> Vec<Arc<Hold>> {
        let due = self.due.iter().take_while(|(moment, ..)| *moment <= end);
        let taken = due.filter(|(.., due)| *due == wanted).filter_map(|entry| {
            let (hold, _) = self.holds.get(&entry.1)?;
            (entry.0 <= until(hold)).then(|| (*entry, Arc::clone(hold)))
        });
        let (taken, holds): (Vec<_>, Vec<_>) = taken.unzip();
        for entry in taken {
            self.due.remove(&entry);
        }
        holds
    }

    /// Takes the renewals that are due, and those that are due soon enough to join them.
    fn take_renewals(&mut self, now: Moment) -> Vec<Arc<Hold>> {
        let mut renewals = self.due.iter().filter(|(.., due)| *due == Due::Renewal);
        if renewals.next().is_none_or(|(moment, ..)| *moment > now) {
            return Vec::new();
        }
        let joined = self.take(Due::Renewal, now + JOIN_WITHIN, |hold| {
            now + hold.grant.lease / 30
        });
        for hold in &joined {
            if let Some((_, times)) = self.holds.get_mut(&hold.id) {
                times.renewal = None;
            }
        }
        joined
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use futures_util::future::BoxFuture;

    use crate::backends::local::LocalBackend;
    use crate::backends::memory::MemoryServer;
    use crate::shared::clock::{Clock, Moment, TokioClock};
    use crate::shared::lock::lock;
    use crate::{LockManager, LostReason};

    const LEASE: Duration = Duration::from_secs(10);

    /// The last renewal and an extension end at the same time. The renewal, with the earlier
    /// deadline, is the last to note when the lock is due.
    #[tokio::test(start_paused = true)]
    async fn loss_is_noticed_after_concurrent_renewals() {
        let server = MemoryServer::new(TokioClock::new());
        let builder = LockManager::builder(server.client()).clock(TokioClock::new());
        let manager = builder.lease(LEASE).build();
        let guard = manager.lock("a").max_renewals(0).acquire().await.unwrap();
        let watchdog = &manager.engine().watchdog;
        let hold = watchdog.all().remove(0);
        let stale = lock(&watchdog.schedule).holds[&hold.id].1;
        guard.extend(LEASE * 2).await.unwrap();
        {
            let mut schedule = lock(&watchdog.schedule);
            let noted = schedule.holds[&hold.id].1;
            schedule.remove(hold.id, noted);
            schedule.add(hold.id, stale);
            schedule.holds.get_mut(&hold.id).unwrap().1 = stale;
        }
        // Not `lost`, which has a timer of its own.
        let mut ended = hold.subscribe();
        let ended = tokio::time::timeout(LEASE * 3, ended.wait_for(Option::is_some)).await;
        assert_eq!(*ended.unwrap().unwrap(), Some(LostReason::MaxRenewals));
    }

    /// Counts how often it is read.
    #[derive(Debug, Clone)]
    struct Counting(TokioClock, Arc<AtomicU32>);

    impl Clock for Counting {
        fn now(&self) -> Moment {
            self.1.fetch_add(1, Ordering::SeqCst);
            self.0.now()
        }

        fn sleep_until(&self, moment: Moment) -> BoxFuture<'static, ()> {
            self.0.sleep_until(moment)
        }
    }

    /// The watchdog reads the clock whenever it is woken. It can run only if the task yields.
    #[tokio::test(start_paused = true)]
    async fn short_holds_do_not_wake_the_watchdog() {
        let reads = async |yields: bool| {
            let clock = Counting(TokioClock::new(), Arc::default());
            let builder = LockManager::builder(LocalBackend::new()).clock(clock.clone());
            let manager = builder.lease(LEASE).build();
            for _ in 0..100 {
                let guard = manager.lock("a").acquire().await.unwrap();
                guard.release().await;
                if yields {
                    tokio::task::yield_now().await;
                }
            }
            clock.1.load(Ordering::SeqCst)
        };
        let (without, with) = (reads(false).await, reads(true).await);
        assert!(with < without + 50, "{with}, {without}");
    }
}
