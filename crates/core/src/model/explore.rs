//! Runs a small set of futures under every possible schedule.
//!
//! A schedule is a list of decisions: which woken future is polled next, and every choice that the
//! world itself leaves open, for example whether a COMMIT loses its connection. The explorer walks
//! the tree of decisions depth first and builds a new world for each schedule. The same decisions
//! must therefore lead to the same run: a world has no clock, no randomness and no threads.
//! Exploration fails if there are more schedules than the bound, or if a schedule ends with futures
//! that are never woken.
//!
//! Futures yield before each step. Before the first decision, each future runs in turn up to its
//! first yield, so other futures must not be able to see what it does until then.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

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
    /// Decisions fixed before the run. After the last one, the first option is always taken.
    fixed: Vec<Decision>,
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
    fn fixed(fixed: Vec<Decision>) -> Self {
        Self(Arc::new(Mutex::new(Run {
            fixed,
            ..Run::default()
        })))
    }

    /// Picks a number below `options`. The explorer tries each of them.
    #[must_use]
    pub fn choose(&self, options: usize) -> usize {
        if options == 1 {
            return 0;
        }
        let mut run = self.run();
        let fixed = run.fixed.get(run.taken.len());
        assert!(
            fixed.is_none_or(|it| it.option < options && [0, options].contains(&it.out_of)),
            "the same decisions led to a different run"
        );
        let option = fixed.map_or(0, |decision| decision.option);
        let out_of = options;
        run.taken.push(Decision { option, out_of });
        option
    }

    /// Adds a future to the running world.
    pub fn spawn(&self, task: Task<()>) {
        self.run().spawned.push(task);
    }

    /// Records a step of the future that is being polled, for the report of a failure.
    pub fn note(&self, step: &'static str) {
        let mut run = self.run();
        let current = run.current;
        run.trace.push((current, step));
    }

    /// The decisions of the next schedule, or `None` after the last one.
    fn next(&self) -> Option<Vec<Decision>> {
        let mut next = self.run().taken.clone();
        while let Some(last) = next.pop() {
            if last.option + 1 < last.out_of {
                next.push(Decision {
                    option: last.option + 1,
                    ..last
                });
                return Some(next);
            }
        }
        None
    }

    fn failure(&self, why: String) -> Failure {
        let run = self.run();
        let schedule = run.taken.iter().map(|decision| decision.option.to_string());
        Failure {
            why,
            schedule: schedule.collect::<Vec<_>>().join(" "),
            trace: run.trace.clone(),
        }
    }

    fn run(&self) -> MutexGuard<'_, Run> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
    only: Option<Vec<Decision>>,
}

impl Explorer {
    /// All schedules; more than `bound` are a failure.
    #[must_use]
    pub fn up_to(bound: u64) -> Self {
        Self { bound, only: None }
    }

    /// The one schedule that a [`Failure`] printed.
    #[must_use]
    pub fn only(schedule: &str) -> Self {
        let decisions = schedule.split_whitespace().map(|option| Decision {
            option: option.parse().expect("a schedule is a list of numbers"),
            out_of: 0,
        });
        Self {
            bound: 1,
            only: Some(decisions.collect()),
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
        let once = self.only.is_some();
        let mut fixed = self.only.unwrap_or_default();
        let mut schedules = 0;
        loop {
            assert!(
                schedules < self.bound,
                "more than {} schedules: explore less, or raise the bound",
                self.bound
            );
            schedules += 1;
            let decisions = Decisions::fixed(fixed);
            let report = PanicReport(&decisions);
            let world = build(&decisions);
            let outputs = run(&decisions, world.tasks)?;
            check(&world.state, &outputs).map_err(|error| decisions.failure(error.to_string()))?;
            drop(report);
            match decisions.next() {
                Some(next) if !once => fixed = next,
                _ => return Ok(schedules),
            }
        }
    }
}

/// Whether a future asked to be polled.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A future with its output, which a spawned future does not have.
struct Running<T> {
    task: Task<Option<T>>,
    woken: Arc<Woken>,
    done: bool,
    output: Option<T>,
}

impl<T: Send + 'static> Running<T> {
    fn new(task: impl Future<Output = Option<T>> + Send + 'static) -> Self {
        Self {
            task: Box::pin(task),
            woken: Arc::new(Woken(AtomicBool::new(true))),
            done: false,
            output: None,
        }
    }

    fn ready(&self) -> bool {
        !self.done && self.woken.0.load(Ordering::Relaxed)
    }

    fn poll(&mut self) {
        self.woken.0.store(false, Ordering::Relaxed);
        let waker = Waker::from(Arc::clone(&self.woken));
        if let Poll::Ready(output) = self.task.as_mut().poll(&mut Context::from_waker(&waker)) {
            (self.done, self.output) = (true, output);
        }
    }
}

/// Runs the tasks and the futures that they spawn to completion.
fn run<T: Send + 'static>(decisions: &Decisions, tasks: Vec<Task<T>>) -> Result<Vec<T>, Failure> {
    let count = tasks.len();
    let tasks = tasks.into_iter();
    let mut running: Vec<_> = tasks
        .map(|task| Running::new(async { Some(task.await) }))
        .collect();
    for (number, task) in running.iter_mut().enumerate() {
        decisions.run().current = number;
        task.poll();
    }
    loop {
        for task in std::mem::take(&mut decisions.run().spawned) {
            running.push(Running::new(async {
                task.await;
                None
            }));
        }
        let ready: Vec<_> = (0..running.len())
            .filter(|&number| running[number].ready())
            .collect();
        if ready.is_empty() {
            break;
        }
        let chosen = ready[decisions.choose(ready.len())];
        decisions.run().current = chosen;
        running[chosen].poll();
    }
    let stuck = (0..running.len()).filter(|&number| !running[number].done);
    let stuck: Vec<_> = stuck.collect();
    if !stuck.is_empty() {
        return Err(decisions.failure(format!("deadlock: tasks {stuck:?} are never woken")));
    }
    Ok((running.into_iter().take(count))
        .map(|task| task.output.expect("every task is done"))
        .collect())
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
