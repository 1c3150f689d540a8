//! The races that the page of the lab has started: one at a time; the last ones are kept.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use secrecy::ExposeSecret;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::race::{Race, RaceFailure, RaceSettings};
use stocklock_lab::race::{Event, Lineup};
use stocklock_lab::recording::{Recorded, Recording};

/// The number of races that are kept, with the running one.
const KEPT: usize = 5;

/// The races of a lab.
#[derive(Debug)]
pub(crate) struct Races {
    settings: Arc<RaceSettings>,
    place: String,
    /// Newest first.
    started: Mutex<VecDeque<Arc<Running>>>,
    /// Cancelled when the lab stops.
    shutdown: CancellationToken,
    tasks: TaskTracker,
}

/// Why a race was not started.
#[derive(Debug)]
pub(crate) enum Rejected {
    /// This one runs.
    Running(Uuid),
    /// The lab stops.
    ShuttingDown,
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
pub(crate) struct Running {
    pub(crate) id: Uuid,
    stop: CancellationToken,
    recording: Mutex<Recording>,
    /// The number of events, and the state.
    progress: watch::Sender<(usize, State)>,
}

impl Races {
    /// No race yet. `place` describes where the stock of a race is.
    pub(crate) fn new(settings: RaceSettings, place: String, shutdown: CancellationToken) -> Self {
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

    /// Whether a race has a server that can be moved away.
    pub(crate) fn can_be_delayed(&self) -> bool {
        let servers = &self.settings.servers;
        let is_embedded = servers.database.expose_secret().starts_with("sqlite:");
        !is_embedded || servers.redis.is_some() || servers.zookeeper.is_some()
    }

    /// Starts the race, unless another one runs.
    pub(crate) fn start(&self, race: Race, lineup: &Lineup) -> Result<Arc<Running>, Rejected> {
        let mut races = self.races();
        if let Some(newest) = races.front().filter(|race| race.state() == State::Running) {
            return Err(Rejected::Running(newest.id));
        }
        if self.shutdown.is_cancelled() {
            return Err(Rejected::ShuttingDown);
        }
        let id = Uuid::now_v7();
        let plan = race.describe(&id.to_string(), &self.place, lineup);
        let running = Arc::new(Running {
            id,
            stop: self.shutdown.child_token(),
            recording: Mutex::new(Recording::new(plan)),
            progress: watch::Sender::new((1, State::Running)),
        });
        races.push_front(Arc::clone(&running));
        races.truncate(KEPT);
        let (settings, started) = (Arc::clone(&self.settings), Arc::clone(&running));
        let running_task = self
            .tasks
            .spawn(async move { running.run(&race, &settings).await });
        let ended = Arc::clone(&started);
        self.tasks.spawn(async move {
            let outcome = running_task.await;
            // Otherwise a defect would leave the race running indefinitely.
            let outcome =
                outcome.unwrap_or_else(|error| Err(RaceFailure::Other(error.to_string())));
            ended.end(outcome);
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
    pub(crate) async fn ended(&self) {
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

    async fn run(&self, race: &Race, settings: &RaceSettings) -> Result<(), RaceFailure> {
        let observer = |event: Event| {
            let mut recording = self.locked();
            recording.observe(&event);
            let events = recording.events().len();
            self.progress.send_modify(|progress| progress.0 = events);
        };
        let delayed = tokio::select! {
            delayed = race.delay(&settings.servers) => delayed?,
            () = self.stop.cancelled() => return Err(RaceFailure::Stopped),
        };
        let report = race
            .run(settings, delayed.as_ref(), &observer, &self.stop)
            .await?;
        match report.stopped {
            Some(problem) => Err(RaceFailure::Other(problem)),
            None => Ok(()),
        }
    }

    fn end(&self, outcome: Result<(), RaceFailure>) {
        let (state, problem) = match outcome {
            Ok(()) => (State::Finished, None),
            Err(RaceFailure::Stopped) => (State::Stopped, None),
            Err(error) => (State::Failed, Some(error.to_string())),
        };
        let mut recording = self.locked();
        recording.end(state.name(), problem.as_deref());
        let events = recording.events().len();
        self.progress.send_replace((events, state));
    }

    fn locked(&self) -> MutexGuard<'_, Recording> {
        self.recording
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
