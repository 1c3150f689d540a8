//! Runs a small set of futures under every possible schedule.
//!
//! A schedule is a list of decisions: which woken future is polled next, and every choice that the
//! world itself leaves open, for example whether a COMMIT loses its connection. The explorer walks
//! the tree of decisions depth first and builds a new world for each schedule. The same decisions
//! must therefore lead to the same run: a world has no clock, no randomness and no threads.
//! Exploration fails if there are more schedules than the bound, or if a schedule ends with futures
//! that are never woken.
//!
//! For a world with too many schedules, [`Explorer::walk`] draws the decisions of one schedule from a
//! seed.
//!
//! Futures yield before each step. Before the first decision, each future runs in turn up to its
//! first yield, so other futures must not be able to see what it does until then.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

use super::random::Random;
use crate::spawn::{Detached, Spawn};

/// One of the futures of a world.
pub type Task<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What is explored: futures, and the state that they share, for the check at the end.
pub struct World<S, T> {
    /// The shared state.
    pub state: S,
    /// The futures.
    pub tasks: Vec<Task<T>>,
}

/// The decisions of one run. The explorer and the world share them.
#[derive(Clone, Default)]
pub struct Decisions(Arc<Mutex<Run>>);

#[derive(Default)]
struct Run {
    /// Decisions fixed before the run. After the last one, the first option is always taken, unless
    /// the run is random.
    fixed: Vec<Decision>,
    random: Option<Random>,
    taken: Vec<Decision>,
    spawned: Vec<Task<()>>,
    /// Number of the task that is being polled.
    current: usize,
    /// Task numbers and their steps so far.
    trace: Vec<(usize, &'static str)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Decision {
    option: usize,
    /// Number of options; 0 in a schedule passed to [`Explorer::only`], which lacks it.
    out_of: usize,
}

impl Decisions {
    /// Picks a number below `options`. The explorer tries each of them.
    #[must_use]
    pub fn choose(&self, options: usize) -> usize {
        self.decide(options, |random| random.option(options))
    }

    /// Picks 0, which is no fault, or one of the other options. A random walk picks 0 most of the time,
    /// so that faults happen late, too.
    #[must_use]
    pub fn choose_fault(&self, options: usize) -> usize {
        self.decide(options, |random| random.fault(options))
    }

    fn decide(&self, options: usize, draw: impl FnOnce(&mut Random) -> usize) -> usize {
        if options == 1 {
            return 0;
        }
        let mut run = self.0.lock();
        let fixed = run.fixed.get(run.taken.len()).copied();
        assert!(
            fixed.is_none_or(|it| it.option < options && [0, options].contains(&it.out_of)),
            "the same decisions led to a different run"
        );
        let drawn = run.random.as_mut().map_or(0, draw);
        let option = fixed.map_or(drawn, |decision| decision.option);
        run.taken.push(Decision {
            option,
            out_of: options,
        });
        option
    }

    /// Adds a future to the running world.
    pub fn spawn(&self, task: Task<()>) {
        self.0.lock().spawned.push(task);
    }

    /// Records a step of the future that is being polled, for the report of a failure.
    pub fn note(&self, step: &'static str) {
        let mut run = self.0.lock();
        let current = run.current;
        run.trace.push((current, step));
    }

    /// The steps recorded so far.
    #[must_use]
    pub fn noted(&self) -> Vec<&'static str> {
        self.0.lock().trace.iter().map(|(_, step)| *step).collect()
    }

    /// The decisions of the next schedule, or `None` after the last one.
    fn next(&self) -> Option<Vec<Decision>> {
        let mut next = self.0.lock().taken.clone();
        let open = |decision: &Decision| decision.option + 1 < decision.out_of;
        next.truncate(next.iter().rposition(open)? + 1);
        next.last_mut()?.option += 1;
        Some(next)
    }

    fn failure(&self, why: String) -> Failure {
        let run = self.0.lock();
        let schedule = run.taken.iter().map(|decision| decision.option.to_string());
        Failure {
            why,
            schedule: schedule.collect::<Vec<_>>().join(" "),
            trace: run.trace.clone(),
        }
    }
}

impl Spawn for Decisions {
    fn spawn(&self, task: Detached) {
        Self::spawn(self, task);
    }
}

impl fmt::Debug for Decisions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Decisions")
    }
}

/// A failed schedule. [`Explorer::only`] replays it.
#[derive(Debug)]
pub struct Failure {
    /// The failed check.
    pub why: String,
    /// The decisions, for [`Explorer::only`].
    pub schedule: String,
    /// The steps, each with the number of its task.
    pub trace: Vec<(usize, &'static str)>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.why)?;
        for (task, step) in &self.trace {
            writeln!(f, "  task {task}: {step}")?;
        }
        write!(f, "replay it with Explorer::only(\"{}\")", self.schedule)
    }
}

/// Prints the schedule if a future or the check panics; only the test harness catches panics.
struct PanicReport<'a>(&'a Decisions);

impl Drop for PanicReport<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0.failure("panic in this schedule:".to_owned()));
        }
    }
}

/// Which schedules to explore.
pub struct Explorer {
    bound: u64,
    first: Vec<Decision>,
    random: Option<Random>,
    once: bool,
}

impl Explorer {
    /// All schedules; more than `bound` are a failure.
    #[must_use]
    pub fn up_to(bound: u64) -> Self {
        Self {
            bound,
            first: Vec::new(),
            random: None,
            once: false,
        }
    }

    /// The one schedule that `seed` draws. The same seed draws the same schedule of the same world.
    #[must_use]
    pub fn walk(seed: u64) -> Self {
        Self {
            random: Some(Random::new(seed)),
            once: true,
            ..Self::up_to(1)
        }
    }

    /// The one schedule that a [`Failure`] printed.
    #[must_use]
    pub fn only(schedule: &str) -> Self {
        let number = |option: &str| option.parse().expect("a schedule is a list of numbers");
        let decision = |option| Decision {
            option: number(option),
            out_of: 0,
        };
        Self {
            first: schedule.split_whitespace().map(decision).collect(),
            once: true,
            ..Self::up_to(1)
        }
    }

    /// Builds and runs the world under every schedule and returns the number of schedules. `check`
    /// judges the end of each from the state and the outputs, in the order of the tasks.
    ///
    /// # Errors
    /// The first schedule that fails the check or ends in a deadlock.
    ///
    /// # Panics
    /// If there are more schedules than the bound, or a future or the check panics.
    pub fn explore<S, T>(
        self,
        build: impl Fn(&Decisions) -> World<S, T>,
        mut check: impl FnMut(&S, &[T]) -> anyhow::Result<()>,
    ) -> Result<u64, Failure>
    where
        T: Send + 'static,
    {
        let (mut fixed, mut random) = (self.first, self.random);
        for schedules in 1..=self.bound {
            let decisions = Decisions::default();
            decisions.0.lock().fixed = fixed;
            decisions.0.lock().random = random.take();
            let report = PanicReport(&decisions);
            let world = build(&decisions);
            let outputs = run(&decisions, world.tasks)?;
            check(&world.state, &outputs).map_err(|error| decisions.failure(error.to_string()))?;
            drop(report);
            match decisions.next() {
                Some(next) if !self.once => fixed = next,
                _ => return Ok(schedules),
            }
        }
        panic!(
            "more than {} schedules: explore less, or raise the bound",
            self.bound
        );
    }
}

/// Whether a future asked to be polled.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A future until its end.
struct Running {
    task: Option<Task<()>>,
    woken: Arc<Woken>,
}

impl Running {
    fn new(task: Task<()>) -> Self {
        let woken = Arc::new(Woken(AtomicBool::new(true)));
        let task = Some(task);
        Self { task, woken }
    }

    fn ready(&self) -> bool {
        self.task.is_some() && self.woken.0.load(Ordering::Relaxed)
    }

    fn poll(&mut self) {
        self.woken.0.store(false, Ordering::Relaxed);
        let waker = Waker::from(Arc::clone(&self.woken));
        let mut context = Context::from_waker(&waker);
        let task = self.task.as_mut().expect("the task is not done");
        if task.as_mut().poll(&mut context).is_ready() {
            self.task = None;
        }
    }
}

/// Runs the tasks and the futures that they spawn to completion. Returns the tasks' outputs.
fn run<T: Send + 'static>(decisions: &Decisions, tasks: Vec<Task<T>>) -> Result<Vec<T>, Failure> {
    let (outputs, results) = std::sync::mpsc::channel();
    let with_output = |(number, task): (usize, Task<T>)| {
        let outputs = outputs.clone();
        Running::new(Box::pin(async move {
            let sent = outputs.send((number, task.await));
            sent.expect("the receiver outlives the tasks");
        }))
    };
    let mut running: Vec<_> = tasks.into_iter().enumerate().map(with_output).collect();
    for (number, task) in running.iter_mut().enumerate() {
        decisions.0.lock().current = number;
        task.poll();
    }
    let mut ready = Vec::new();
    loop {
        running.extend(decisions.0.lock().spawned.drain(..).map(Running::new));
        ready.clear();
        ready.extend((0..running.len()).filter(|&number| running[number].ready()));
        if ready.is_empty() {
            break;
        }
        let chosen = ready[decisions.decide(ready.len(), |random| random.task(&ready))];
        decisions.0.lock().current = chosen;
        running[chosen].poll();
    }
    let stuck = (0..running.len()).filter(|&number| running[number].task.is_some());
    let stuck: Vec<_> = stuck.collect();
    if !stuck.is_empty() {
        return Err(decisions.failure(format!("deadlock: tasks {stuck:?} are never woken")));
    }
    let mut results: Vec<_> = results.try_iter().collect();
    results.sort_by_key(|(number, _)| *number);
    Ok(results.into_iter().map(|(_, output)| output).collect())
}

/// Pending once, and woken immediately, so that other futures can run first.
pub async fn yield_once() {
    let mut yielded = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// A task whose process may die before any of its steps. `deaths`: how many tasks may still die.
/// Returns `None` if it dies; what it held is dropped.
pub async fn mortal<T>(decisions: Decisions, deaths: Arc<AtomicU32>, task: Task<T>) -> Option<T> {
    let mut task = Some(task);
    let mut started = false;
    std::future::poll_fn(|context| {
        let may_die = std::mem::replace(&mut started, true) && deaths.load(Ordering::Relaxed) > 0;
        if may_die && decisions.choose_fault(2) == 1 {
            decisions.note("the process dies");
            deaths.fetch_sub(1, Ordering::Relaxed);
            task = None;
        }
        match task.as_mut() {
            Some(task) => task.as_mut().poll(context).map(Some),
            None => Poll::Ready(None),
        }
    })
    .await
}
