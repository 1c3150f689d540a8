//! The races that the page of the lab has started: one at a time; the last ones are kept.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::delay::ServerUrls;
use crate::description::describe;
use crate::error::LabError;
use crate::limits::LIMITS;
use crate::race::{Event, Lineup, RacePlan, Report};
use crate::recording::{Recorded, Recording};
use crate::runner::{RaceFailure, RaceSettings, delay, race_on_new_replicas};
use stocklock_core::strategy::Strategy;

/// The number of races that are kept, with the running one.
const KEPT: usize = 5;

/// The races of a lab.
#[derive(Debug)]
pub struct Races {
    settings: Arc<RaceSettings>,
    place: String,
    /// Newest first.
    started: Mutex<VecDeque<Arc<Running>>>,
    /// Cancelled when the lab stops.
    shutdown: CancellationToken,
    tasks: TaskTracker,
}

/// Whether a race has ended, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// It has not ended.
    Running,
    /// All its strategies have run.
    Finished,
    /// It was stopped.
    Stopped,
    /// It could not be run to its end.
    Failed,
}

impl State {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
        }
    }
}

/// A race, which may have ended.
#[derive(Debug)]
pub struct Running {
    pub(crate) id: Uuid,
    stop: CancellationToken,
    recording: Mutex<Recording>,
    /// The number of events, and the state.
    progress: watch::Sender<(usize, State)>,
}

impl Races {
    /// No race yet. `place` describes where the stock of a race is.
    #[must_use]
    pub fn new(settings: RaceSettings, place: String, shutdown: CancellationToken) -> Self {
        Self {
            settings: Arc::new(settings),
            place,
            started: Mutex::default(),
            shutdown,
            tasks: TaskTracker::new(),
        }
    }

    pub(crate) fn place(&self) -> &str {
        &self.place
    }

    /// The servers of a race.
    pub(crate) fn servers(&self) -> &ServerUrls {
        &self.settings.servers
    }

    /// Starts the race, unless another one runs. `why_not` says why a strategy cannot run here.
    ///
    /// # Errors
    /// If this lab cannot run such a race, or none at the moment.
    pub fn start(
        &self,
        plan: RacePlan,
        why_not: impl Fn(Strategy) -> Option<String>,
    ) -> Result<Arc<Running>, LabError> {
        LIMITS.check(&plan)?;
        if !plan.rtt.is_zero() && !self.servers().can_be_delayed() {
            return Err(LabError::refused(
                "rtt_ms: there is no server to delay: SQLite is part of the process; set \
                 DATABASE_URL, REDIS_URL, REDLOCK_URLS or ZOOKEEPER_CONNECT",
            ));
        }
        let lineup = Lineup::choose(&plan, why_not).map_err(LabError::unavailable)?;
        let mut races = self.races();
        if let Some(newest) = races.front().filter(|race| race.state() == State::Running) {
            let detail = "another race runs; stop it, or wait for its end";
            return Err(LabError::running(newest.id, detail));
        }
        if self.shutdown.is_cancelled() {
            return Err(LabError::shutting_down());
        }
        let id = Uuid::now_v7();
        let description = describe(&plan, &[], &id.to_string(), &self.place, &lineup);
        let running = Arc::new(Running {
            id,
            stop: self.shutdown.child_token(),
            recording: Mutex::new(Recording::new(description)),
            progress: watch::Sender::new((1, State::Running)),
        });
        races.push_front(Arc::clone(&running));
        races.truncate(KEPT);
        let (settings, started) = (Arc::clone(&self.settings), Arc::clone(&running));
        let running_task = self
            .tasks
            .spawn(async move { running.run(&plan, &settings).await });
        let ended = Arc::clone(&started);
        self.tasks.spawn(async move {
            let outcome = running_task.await;
            // Otherwise a defect would leave the race running indefinitely.
            let outcome =
                outcome.unwrap_or_else(|error| Err(RaceFailure::Other(error.to_string())));
            ended.end(&outcome);
        });
        Ok(started)
    }

    /// The last races, newest first.
    pub(crate) fn list(&self) -> Vec<Arc<Running>> {
        self.races().iter().cloned().collect()
    }

    pub(crate) fn find(&self, id: &str) -> Option<Arc<Running>> {
        let id: Uuid = id.parse().ok()?;
        self.races().iter().find(|race| race.id == id).cloned()
    }

    /// Waits until no replica of a race is left. The lab stops.
    pub async fn ended(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn races(&self) -> MutexGuard<'_, VecDeque<Arc<Running>>> {
        self.started.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Running {
    pub(crate) fn state(&self) -> State {
        self.progress.borrow().1
    }

    /// Stops the race and its replicas, if it runs.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    /// The events so far.
    pub(crate) fn recording(&self) -> Recording {
        self.locked().clone()
    }

    /// The event at this position, as soon as there is one; `None` after the last event.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(crate) async fn event(&self, position: usize) -> Option<Recorded> {
        let mut progress = self.progress.subscribe();
        let is_there =
            |(events, state): &(usize, State)| *events > position || *state != State::Running;
        // The sender is in `self`, so it is not dropped.
        progress.wait_for(is_there).await.ok()?;
        self.locked().events().get(position).cloned()
    }

    async fn run(&self, plan: &RacePlan, settings: &RaceSettings) -> Result<Report, RaceFailure> {
        let observer = |event: Event| {
            let mut recording = self.locked();
            recording.observe(&event);
            let events = recording.events().len();
            self.progress.send_modify(|progress| progress.0 = events);
        };
        let delayed = tokio::select! {
            delayed = delay(plan, &settings.servers) => delayed?,
            () = self.stop.cancelled() => return Err(RaceFailure::Stopped),
        };
        race_on_new_replicas(plan, settings, delayed.as_ref(), &observer, &self.stop).await
    }

    fn end(&self, outcome: &Result<Report, RaceFailure>) {
        let (state, problem) = match outcome {
            Ok(report) if report.stopped.is_some() => (State::Failed, report.stopped.clone()),
            Ok(_) => (State::Finished, None),
            Err(RaceFailure::Stopped) => (State::Stopped, None),
            Err(error) => (State::Failed, Some(error.to_string())),
        };
        let mut recording = self.locked();
        recording.end(state.name(), problem.as_deref(), outcome.as_ref().ok());
        let events = recording.events().len();
        self.progress.send_replace((events, state));
    }

    fn locked(&self) -> MutexGuard<'_, Recording> {
        self.recording
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
