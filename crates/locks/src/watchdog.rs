//! The watchdog: renews the held locks, and ends those that could not be renewed in time.
//!
//! Each manager has one watchdog task. It waits only for the clock. Renewals run in other tasks, so
//! a slow renewal delays no deadline. One request renews all locks that are due at about the same
//! time.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::backend::{Backend, Nudge, Renewal, Renewed};
use crate::clock::{Clock, Moment};
use crate::error::LostReason;
use crate::hold::{DueTimes, Hold};
use crate::metrics::LockHooks;

/// The maximum number of locks per renewal request.
const BATCH: usize = 100;
/// Renewals that are due this soon join the current request. A renewal is advanced by at most a
/// thirtieth of its lease.
const JOIN_WITHIN: Duration = Duration::from_millis(500);

/// The held locks, and when they are due.
#[derive(Debug, Default)]
pub(crate) struct Watchdog {
    schedule: Mutex<Schedule>,
    /// Wakes the task when a new entry is due before all others.
    earlier: Notify,
    nudge: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Schedule {
    holds: HashMap<u64, (Arc<Hold>, DueTimes)>,
    due: BTreeSet<(Moment, u64, Due)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Deadline,
    Renewal,
}

/// What the watchdog and the release task need.
#[derive(Debug, Clone)]
pub(crate) struct WatchdogContext {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) hooks: Arc<dyn LockHooks>,
}

impl Watchdog {
    pub(crate) fn nudge(&self) -> Nudge {
        Nudge(Arc::clone(&self.nudge))
    }

    pub(crate) fn insert(&self, hold: &Arc<Hold>, times: DueTimes) {
        let mut schedule = self.schedule();
        schedule.holds.insert(hold.id, (Arc::clone(hold), times));
        schedule.add(hold.id, times);
        self.wake_if_first(&schedule, times);
    }

    /// Changes when a hold is due, if it is still watched.
    pub(crate) fn reschedule(&self, id: u64, times: DueTimes) {
        let mut schedule = self.schedule();
        let Some((_, old)) = schedule.holds.get_mut(&id) else {
            return;
        };
        let old = std::mem::replace(old, times);
        schedule.remove(id, old);
        schedule.add(id, times);
        self.wake_if_first(&schedule, times);
    }

    pub(crate) fn remove(&self, id: u64) {
        let mut schedule = self.schedule();
        let removed = schedule.holds.remove(&id);
        if let Some((_, times)) = &removed {
            schedule.remove(id, *times);
        }
        // This may be the last reference. Its drop could lock the schedule again, so unlock the
        // mutex first.
        drop(schedule);
    }

    pub(crate) fn len(&self) -> usize {
        self.schedule().holds.len()
    }

    pub(crate) fn lose_all(&self, reason: LostReason) {
        for hold in self.all() {
            hold.lose(reason);
        }
    }

    fn all(&self) -> Vec<Arc<Hold>> {
        let schedule = self.schedule();
        schedule
            .holds
            .values()
            .map(|(hold, _)| Arc::clone(hold))
            .collect()
    }

    fn schedule(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_if_first(&self, schedule: &Schedule, times: DueTimes) {
        let first_due = times.renewal.unwrap_or(times.deadline).min(times.deadline);
        if schedule
            .due
            .first()
            .is_some_and(|(first, ..)| *first >= first_due)
        {
            self.earlier.notify_one();
        }
    }

    pub(crate) async fn run(self: Arc<Self>, context: WatchdogContext, stopped: CancellationToken) {
        loop {
            let next = self.schedule().due.first().map(|(moment, ..)| *moment);
            let alarm = async {
                match next {
                    Some(moment) => context.clock.sleep_until(moment).await,
                    None => std::future::pending().await,
                }
            };
            let mut renewals = Vec::new();
            tokio::select! {
                () = stopped.cancelled() => return,
                () = self.earlier.notified() => {}
                () = self.nudge.notified() => renewals = self.all(),
                () = alarm => {}
            }
            // A separate statement, so that the mutex is not locked during the loop.
            let passed = self.schedule().take_deadlines(context.clock.now());
            for hold in passed {
                // `ended` checks the hold's own deadline, which may have moved since.
                hold.ended();
            }
            renewals.extend(self.schedule().take_renewals(context.clock.now()));
            for batch in renewals.chunks(BATCH) {
                tokio::spawn(Arc::clone(&self).renew(context.clone(), batch.to_vec()));
            }
        }
    }

    /// Renews a batch of locks in one request. It stops waiting after a third of the shortest
    /// lease, which leaves time for another attempt.
    async fn renew(self: Arc<Self>, context: WatchdogContext, batch: Vec<Arc<Hold>>) {
        let renewals: Vec<Renewal> = batch.iter().map(|hold| hold.renewal(None)).collect();
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
        context.hooks.renewed(
            batch.len(),
            context.clock.now().since(sent),
            answers.is_some(),
        );
        let answers = answers.unwrap_or_else(|| vec![Renewed::Unknown; batch.len()]);
        for (hold, answer) in batch.iter().zip(answers) {
            if let Some(times) = hold.apply_renewal(sent, answer, true) {
                self.reschedule(hold.id, times);
            }
        }
    }
}

impl Schedule {
    fn add(&mut self, id: u64, times: DueTimes) {
        self.due.insert((times.deadline, id, Due::Deadline));
        if let Some(renewal) = times.renewal {
            self.due.insert((renewal, id, Due::Renewal));
        }
    }

    fn remove(&mut self, id: u64, times: DueTimes) {
        self.due.remove(&(times.deadline, id, Due::Deadline));
        if let Some(renewal) = times.renewal {
            self.due.remove(&(renewal, id, Due::Renewal));
        }
    }

    fn take_deadlines(&mut self, now: Moment) -> Vec<Arc<Hold>> {
        let due = self.due.iter().take_while(|(moment, ..)| *moment <= now);
        let passed: Vec<_> = due
            .filter(|(.., due)| *due == Due::Deadline)
            .copied()
            .collect();
        for entry in &passed {
            self.due.remove(entry);
        }
        self.holds_of(passed.iter().map(|(_, id, _)| *id))
    }

    /// Takes the renewals that are due, and those that are due soon enough to join them.
    fn take_renewals(&mut self, now: Moment) -> Vec<Arc<Hold>> {
        let is_renewal = |(.., due): &&(Moment, u64, Due)| *due == Due::Renewal;
        let first = self.due.iter().find(is_renewal);
        if first.is_none_or(|(moment, ..)| *moment > now) {
            return Vec::new();
        }
        let soon = self
            .due
            .iter()
            .take_while(|(moment, ..)| *moment <= now + JOIN_WITHIN);
        let joined: Vec<_> = soon
            .filter(is_renewal)
            .filter(|(moment, id, _)| {
                let lease = self.holds.get(id).map(|(hold, _)| hold.grant.lease);
                *moment <= now + lease.unwrap_or_default() / 30
            })
            .copied()
            .collect();
        for entry in &joined {
            self.due.remove(entry);
        }
        for (_, id, _) in &joined {
            if let Some((_, times)) = self.holds.get_mut(id) {
                times.renewal = None;
            }
        }
        self.holds_of(joined.iter().map(|(_, id, _)| *id))
    }

    fn holds_of(&self, ids: impl Iterator<Item = u64>) -> Vec<Arc<Hold>> {
        ids.filter_map(|id| self.holds.get(&id))
            .map(|(hold, _)| Arc::clone(hold))
            .collect()
    }
}
