//! Renews what is held, and ends what could not be renewed in time.
//!
//! One task for each manager. It only ever waits for the clock: renewals run beside it, so that one
//! that hangs delays no deadline. What is due at about the same time is renewed in one request.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::backend::{Backend, Nudge, Renewal, Renewed};
use crate::clock::{Clock, Moment};
use crate::error::LostReason;
use crate::hold::{Hold, Times};
use crate::metrics::LockHooks;

/// How many locks one request renews.
const BATCH: usize = 100;
/// A renewal that is due this soon goes with one that is due now; never more than a thirtieth of its
/// lease too early.
const TOGETHER: Duration = Duration::from_millis(500);

/// What is held, and when to look at it.
#[derive(Debug, Default)]
pub(crate) struct Watchdog {
    schedule: Mutex<Schedule>,
    /// Something is due earlier than all before.
    earlier: Notify,
    nudge: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Schedule {
    holds: HashMap<u64, (Arc<Hold>, Times)>,
    due: BTreeSet<(Moment, u64, Due)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Deadline,
    Renewal,
}

/// What the task works with.
#[derive(Debug, Clone)]
pub(crate) struct Means {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) hooks: Arc<dyn LockHooks>,
}

impl Watchdog {
    pub(crate) fn nudge(&self) -> Nudge {
        Nudge(Arc::clone(&self.nudge))
    }

    /// Watches a hold from now on.
    pub(crate) fn insert(&self, hold: &Arc<Hold>, times: Times) {
        let mut schedule = self.schedule();
        schedule.holds.insert(hold.id, (Arc::clone(hold), times));
        schedule.add(hold.id, times);
        self.wake_if_first(&schedule, times);
    }

    /// Looks at a hold at other times, if it is still watched.
    pub(crate) fn reschedule(&self, id: u64, times: Times) {
        let mut schedule = self.schedule();
        let Some((_, old)) = schedule.holds.get_mut(&id) else {
            return;
        };
        let old = std::mem::replace(old, times);
        schedule.take_away(id, old);
        schedule.add(id, times);
        self.wake_if_first(&schedule, times);
    }

    /// Watches a hold no more.
    pub(crate) fn remove(&self, id: u64) {
        let mut schedule = self.schedule();
        let removed = schedule.holds.remove(&id);
        if let Some((_, times)) = &removed {
            schedule.take_away(id, *times);
        }
        // Dropping what may be the last reference with the mutex held could lead back here.
        drop(schedule);
    }

    /// How many locks are held.
    pub(crate) fn len(&self) -> usize {
        self.schedule().holds.len()
    }

    /// Ends everything that is held.
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

    fn wake_if_first(&self, schedule: &Schedule, times: Times) {
        let own = times.renewal.unwrap_or(times.deadline).min(times.deadline);
        if schedule
            .due
            .first()
            .is_some_and(|(first, ..)| *first >= own)
        {
            self.earlier.notify_one();
        }
    }

    /// The watchdog's task.
    pub(crate) async fn run(self: Arc<Self>, means: Means, closed: CancellationToken) {
        loop {
            let next = self.schedule().due.first().map(|(moment, ..)| *moment);
            let alarm = async {
                match next {
                    Some(moment) => means.clock.sleep_until(moment).await,
                    None => std::future::pending().await,
                }
            };
            let mut renewals = Vec::new();
            tokio::select! {
                () = closed.cancelled() => return,
                () = self.earlier.notified() => {}
                () = self.nudge.notified() => renewals = self.all(),
                () = alarm => {}
            }
            // Not in the head of the loop, which would keep the mutex for all of it.
            let passed = self.schedule().take_deadlines(means.clock.now());
            for hold in passed {
                // `ended` compares with the hold's own deadline, which may have moved on.
                hold.ended();
            }
            renewals.extend(self.schedule().take_renewals(means.clock.now()));
            for batch in renewals.chunks(BATCH) {
                tokio::spawn(Arc::clone(&self).renew(means.clone(), batch.to_vec()));
            }
        }
    }

    /// Renews some locks in one request, and gives up waiting for it in time to ask again.
    async fn renew(self: Arc<Self>, means: Means, batch: Vec<Arc<Hold>>) {
        let renewals: Vec<Renewal> = batch.iter().map(|hold| hold.renewal(None)).collect();
        let shortest = batch.iter().map(|hold| hold.grant.lease).min();
        let sent = means.clock.now();
        let patience = means
            .clock
            .sleep_until(sent + shortest.unwrap_or_default() / 3);
        let answers = tokio::select! {
            answers = means.backend.renew(&renewals) => answers
                .inspect_err(|error| tracing::debug!(%error, "locks were not renewed"))
                .ok(),
            () = patience => None,
        };
        means.hooks.renewed(
            batch.len(),
            means.clock.now().since(sent),
            answers.is_some(),
        );
        let answers = answers.unwrap_or_else(|| vec![Renewed::Unknown; batch.len()]);
        for (hold, answer) in batch.iter().zip(answers) {
            if let Some(times) = hold.renewed(sent, answer, true) {
                self.reschedule(hold.id, times);
            }
        }
    }
}

impl Schedule {
    fn add(&mut self, id: u64, times: Times) {
        self.due.insert((times.deadline, id, Due::Deadline));
        if let Some(renewal) = times.renewal {
            self.due.insert((renewal, id, Due::Renewal));
        }
    }

    fn take_away(&mut self, id: u64, times: Times) {
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

    /// What has to be renewed now, and what goes with it.
    fn take_renewals(&mut self, now: Moment) -> Vec<Arc<Hold>> {
        let is_renewal = |(.., due): &&(Moment, u64, Due)| *due == Due::Renewal;
        let first = self.due.iter().find(is_renewal);
        if first.is_none_or(|(moment, ..)| *moment > now) {
            return Vec::new();
        }
        let soon = self
            .due
            .iter()
            .take_while(|(moment, ..)| *moment <= now + TOGETHER);
        let together: Vec<_> = soon
            .filter(is_renewal)
            .filter(|(moment, id, _)| {
                let lease = self.holds.get(id).map(|(hold, _)| hold.grant.lease);
                *moment <= now + lease.unwrap_or_default() / 30
            })
            .copied()
            .collect();
        for entry in &together {
            self.due.remove(entry);
        }
        for (_, id, _) in &together {
            if let Some((_, times)) = self.holds.get_mut(id) {
                times.renewal = None;
            }
        }
        self.holds_of(together.iter().map(|(_, id, _)| *id))
    }

    fn holds_of(&self, ids: impl Iterator<Item = u64>) -> Vec<Arc<Hold>> {
        ids.filter_map(|id| self.holds.get(&id))
            .map(|(hold, _)| Arc::clone(hold))
            .collect()
    }
}
