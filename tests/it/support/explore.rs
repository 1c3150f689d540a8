//! Runs a small world of futures under every schedule that is possible.
//!
//! A schedule is a list of decisions: which of the woken futures is polled next, and whatever the
//! world itself leaves open (does this COMMIT lose its connection?). The explorer walks the tree
//! of decisions depth first, building the world anew for each schedule, so a world must do the
//! same whenever the same is decided: no clock, no randomness, no thread. It stops only when all
//! schedules have been seen; more than the bound are a failure, as is a schedule that ends with
//! futures that nobody will ever wake.
//!
//! Futures yield before each of their steps. What they do before their first yield is therefore
//! nothing that another could see, and no decision: all arrive, in their order, then it begins.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// One of the world's futures.
pub(crate) type Task<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What is explored: futures, and the state that they share, for the check at the end.
pub(crate) struct World<S, T> {
    pub(crate) state: S,
    pub(crate) tasks: Vec<Task<T>>,
}

/// The decisions of one run, drawn from by the explorer and by the world.
#[derive(Clone, Default)]
pub(crate) struct Decisions(Arc<Mutex<Run>>);

#[derive(Default)]
struct Run {
    /// Decided before the run began; from where it ends on, the first option is taken.
    given: Vec<Decision>,
    taken: Vec<Decision>,
    spawned: Vec<Task<()>>,
    /// Who is being polled, and what was done by whom so far.
    current: usize,
    trace: Vec<(usize, &'static str)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Decision {
    option: usize,
    /// Out of how many; zero where a person wrote the schedule down, who need not know.
    out_of: usize,
}

impl Decisions {
    fn given(given: Vec<Decision>) -> Self {
        Self(Arc::new(Mutex::new(Run {
            given,
            ..Run::default()
        })))
    }

    /// Decides between 0 and `options - 1`, all of which will be explored.
    pub(crate) fn choose(&self, options: usize) -> usize {
        if options == 1 {
            return 0;
        }
        let mut run = self.run();
        let decision = match run.given.get(run.taken.len()) {
            Some(given) => {
                assert!(
                    given.option < options && (given.out_of == 0 || given.out_of == options),
                    "the world is not the same every time"
                );
                given.option
            }
            None => 0,
        };
        run.taken.push(Decision {
            option: decision,
            out_of: options,
        });
        decision
    }

    /// Adds a future to the world while it runs.
    pub(crate) fn spawn(&self, task: Task<()>) {
        self.run().spawned.push(task);
    }

    /// Notes what the future that is being polled does, for the report of a failure.
    pub(crate) fn note(&self, what: &'static str) {
        let mut run = self.run();
        let current = run.current;
        run.trace.push((current, what));
    }

    /// The decisions that lead to the next schedule, or `None` after the last one.
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

/// A schedule that went wrong; printed, it is what [`Explorer::only`] takes.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) why: String,
    pub(crate) schedule: String,
    pub(crate) trace: Vec<(usize, &'static str)>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.why)?;
        for (task, what) in &self.trace {
            writeln!(f, "  task {task}: {what}")?;
        }
        write!(f, "replay it by Explorer::only(\"{}\")", self.schedule)
    }
}

/// Prints the schedule when something in it panics, which only the test's harness catches.
struct PanicReport<'a>(&'a Decisions);

impl Drop for PanicReport<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0.failure("a panic in this schedule:".to_owned()));
        }
    }
}

/// How much to explore.
pub(crate) struct Explorer {
    bound: u64,
    only: Option<Vec<Decision>>,
}

impl Explorer {
    /// Every schedule, of which there must not be more than `bound`.
    pub(crate) fn up_to(bound: u64) -> Self {
        Self { bound, only: None }
    }

    /// The one schedule that a [`Failure`] printed.
    pub(crate) fn only(schedule: &str) -> Self {
        let decisions = schedule.split_whitespace().map(|option| Decision {
            option: option.parse().expect("a schedule is a list of numbers"),
            out_of: 0,
        });
        Self {
            bound: 1,
            only: Some(decisions.collect()),
        }
    }

    /// Builds and runs the world under every schedule, and lets `check` judge the end of each,
    /// with the outputs in the order of the tasks. Answers how many schedules there were.
    ///
    /// # Panics
    /// When there are more than the bound, and when a future or the check does.
    pub(crate) fn explore<S, T: Send + 'static>(
        self,
        build: impl Fn(&Decisions) -> World<S, T>,
        mut check: impl FnMut(&S, &[T]) -> anyhow::Result<()>,
    ) -> Result<u64, Failure> {
        let once = self.only.is_some();
        let mut given = self.only.unwrap_or_default();
        let mut schedules = 0;
        loop {
            assert!(
                schedules < self.bound,
                "more than {} schedules: explore less, or raise the bound",
                self.bound
            );
            schedules += 1;
            let decisions = Decisions::given(given);
            let report = PanicReport(&decisions);
            let world = build(&decisions);
            let outputs = run(&decisions, world.tasks)?;
            check(&world.state, &outputs).map_err(|error| decisions.failure(error.to_string()))?;
            drop(report);
            match decisions.next() {
                Some(next) if !once => given = next,
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

/// A future on its way, until it is done.
struct Running {
    task: Option<Task<()>>,
    woken: Arc<Woken>,
    waker: Waker,
}

impl Running {
    fn new(task: Task<()>) -> Self {
        let woken = Arc::new(Woken(AtomicBool::new(true)));
        let waker = Waker::from(Arc::clone(&woken));
        Self {
            task: Some(task),
            woken,
            waker,
        }
    }

    fn ready(&self) -> bool {
        self.task.is_some() && self.woken.0.load(Ordering::Relaxed)
    }

    fn poll(&mut self) {
        self.woken.0.store(false, Ordering::Relaxed);
        if let Some(task) = &mut self.task
            && let Poll::Ready(()) = task.as_mut().poll(&mut Context::from_waker(&self.waker))
        {
            self.task = None;
        }
    }
}

/// Runs the tasks, and those that they spawn, to the end.
fn run<T: Send + 'static>(decisions: &Decisions, tasks: Vec<Task<T>>) -> Result<Vec<T>, Failure> {
    let outputs: Vec<_> = tasks.iter().map(|_| Arc::new(Mutex::new(None))).collect();
    let mut running: Vec<_> = tasks
        .into_iter()
        .zip(outputs.iter().map(Arc::clone))
        .map(|(task, output)| {
            Running::new(Box::pin(async move {
                let done = task.await;
                *output.lock().expect("nobody panics with it") = Some(done);
            }))
        })
        .collect();
    for (task, arriving) in running.iter_mut().enumerate() {
        decisions.run().current = task;
        arriving.poll();
    }
    loop {
        let spawned = std::mem::take(&mut decisions.run().spawned);
        running.extend(spawned.into_iter().map(Running::new));
        let ready = || running.iter().enumerate().filter(|(_, one)| one.ready());
        let options = ready().count();
        if options == 0 {
            break;
        }
        let chosen = ready()
            .nth(decisions.choose(options))
            .map(|(task, _)| task)
            .expect("the option is one of the ready ones");
        decisions.run().current = chosen;
        running[chosen].poll();
    }
    let stuck: Vec<_> = (0..running.len())
        .filter(|&task| running[task].task.is_some())
        .collect();
    if !stuck.is_empty() {
        return Err(decisions.failure(format!("deadlock: nobody will wake the tasks {stuck:?}")));
    }
    let outputs = outputs.iter().map(|output| {
        let output = output.lock().expect("nobody panics with it").take();
        output.expect("every task is done")
    });
    Ok(outputs.collect())
}

/// Lets the others go first, once: pending the first time, and woken at once.
pub(crate) async fn yield_once() {
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
