//! Gathers jobs for the same level into batches.
//!
//! A few calls per level are in flight. Jobs that arrive in between wait, and the next call carries
//! them together. There is no timer: a job that finds no call in flight starts one at once.
//!
//! Guarantees: jobs of one level are called in the order of their arrival. A caller who is gone, or a
//! batch that fails, leaves the queue usable. Each call runs in a task of its own, so no caller can
//! cancel it.

use std::collections::{HashMap, VecDeque};
use std::fmt::Debug;
use std::hash::Hash;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

/// A task that runs on after its caller has left.
pub type Detached = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Starts tasks.
pub trait Spawn: Debug + Send + Sync {
    /// Starts `task`.
    fn spawn(&self, task: Detached);
}

/// Starts tasks of tokio.
#[derive(Debug)]
pub struct TokioSpawn;

impl Spawn for TokioSpawn {
    fn spawn(&self, task: Detached) {
        tokio::spawn(task);
    }
}

/// What the batches of a queue call.
pub trait BatchCall: Debug + Send + Sync + 'static {
    /// What all jobs of a batch have in common.
    type Level: Debug + Clone + Eq + Hash + Send + Sync;
    /// One job.
    type Job: Debug + Send + Sync;
    /// What a job is answered.
    type Answer: Debug + Send;

    /// The maximum number of calls in flight per level.
    const CALLS: usize;

    /// How many of the jobs that wait, oldest first, go into the next batch: at least one.
    fn batch_size<'a>(&self, waiting: impl ExactSizeIterator<Item = &'a Self::Job>) -> usize;

    /// Makes a call for a batch that is not empty. Answers each job, in order.
    fn call(&self, jobs: &[Self::Job]) -> impl Future<Output = Vec<Self::Answer>> + Send;

    /// Returns when the jobs that wait must not wait for the call in flight any longer.
    fn patience(&self) -> impl Future<Output = ()> + Send;

    /// The answer to a job that has waited this long and is given up. `None` if it may still wait.
    /// `last` is an answer of the call that has just ended; `None` if the call is still in flight.
    fn give_up(&self, waited: Duration, last: Option<&mut Self::Answer>) -> Option<Self::Answer>;
}

/// The queues of all levels. Clones share them.
#[derive(Debug)]
pub struct Batches<C: BatchCall> {
    call: Arc<C>,
    spawn: Arc<dyn Spawn>,
    queues: Arc<Mutex<Queues<C>>>,
}

/// The queue of each level that has a call in flight.
type Queues<C> = HashMap<<C as BatchCall>::Level, Queue<C>>;

/// The jobs that wait for the next call of one level.
#[derive(Debug)]
struct Queue<C: BatchCall> {
    waiting: VecDeque<Waiting<C>>,
    /// The number of calls in flight.
    calls: usize,
}

/// A job, and the sender that its caller waits for.
#[derive(Debug)]
struct Waiting<C: BatchCall> {
    job: C::Job,
    since: Instant,
    answer: oneshot::Sender<C::Answer>,
}

impl<C: BatchCall> Clone for Batches<C> {
    fn clone(&self) -> Self {
        Self {
            call: Arc::clone(&self.call),
            spawn: Arc::clone(&self.spawn),
            queues: Arc::clone(&self.queues),
        }
    }
}

impl<C: BatchCall> Batches<C> {
    /// Queues whose calls run in tasks of `spawn`.
    pub fn new(call: C, spawn: Arc<dyn Spawn>) -> Self {
        Self {
            call: Arc::new(call),
            spawn,
            queues: Arc::default(),
        }
    }

    /// Does the job in the next batch of its level. `None` if the task of its call was aborted: the job
    /// may have been done.
    ///
    /// # Cancel safety
    /// If the future is dropped, the job may have been done.
    pub async fn run(&self, level: C::Level, job: C::Job) -> Option<C::Answer> {
        let (answer, answered) = oneshot::channel();
        let waiting = Waiting {
            job,
            since: Instant::now(),
            answer,
        };
        if self.enqueue(&level, waiting) {
            // A separate task, because it serves further callers after this one.
            let calls = Calls::new(self.clone(), level);
            self.spawn.spawn(Box::pin(calls.run()));
        }
        answered.await.ok()
    }

    /// Adds a job to the queue. Returns whether the caller must start another call.
    fn enqueue(&self, level: &C::Level, waiting: Waiting<C>) -> bool {
        let mut queues = self.queues();
        let new = || Queue {
            waiting: VecDeque::new(),
            calls: 0,
        };
        let queue = queues.entry(level.clone()).or_insert_with(new);
        queue.waiting.push_back(waiting);
        let more = queue.calls < C::CALLS;
        queue.calls += usize::from(more);
        more
    }

    /// Counts a call as ended. After the last one, removes and returns the queue.
    fn end_call(queues: &mut Queues<C>, level: &C::Level) -> Option<Queue<C>> {
        let queue = queues.get_mut(level)?;
        queue.calls -= 1;
        (queue.calls == 0).then(|| queues.remove(level))?
    }

    fn queues(&self) -> MutexGuard<'_, Queues<C>> {
        // No code panics while it holds this mutex.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes calls for one level, one after the other, until its queue is empty.
struct Calls<C: BatchCall> {
    batches: Batches<C>,
    level: C::Level,
    /// Whether the queue no longer counts this task.
    ended: bool,
}

impl<C: BatchCall> Calls<C> {
    fn new(batches: Batches<C>, level: C::Level) -> Self {
        Self {
            batches,
            level,
            ended: false,
        }
    }

    async fn run(mut self) {
        while let Some(batch) = self.next_batch() {
            let (jobs, callers): (Vec<_>, Vec<_>) = batch
                .into_iter()
                .map(|waiting| (waiting.job, waiting.answer))
                .unzip();
            let mut answers = self.call(&jobs).await;
            self.give_up_waiting(answers.last_mut());
            for (caller, answer) in callers.into_iter().zip(answers) {
                // A caller that was cancelled no longer receives it.
                let _ = caller.send(answer);
            }
        }
    }

    async fn call(&self, jobs: &[C::Job]) -> Vec<C::Answer> {
        let mut call = pin!(self.batches.call.call(jobs));
        loop {
            tokio::select! {
                biased;
                answers = &mut call => return answers,
                () = self.batches.call.patience() => self.give_up_waiting(None),
            }
        }
    }

    /// Answers the jobs that have waited too long. None of them was sent.
    fn give_up_waiting(&self, mut last: Option<&mut C::Answer>) {
        let mut given_up = Vec::new();
        {
            let mut queues = self.batches.queues();
            let Some(queue) = queues.get_mut(&self.level) else {
                return;
            };
            while let Some(waiting) = queue.waiting.front() {
                let waited = waiting.since.elapsed();
                let Some(answer) = self.batches.call.give_up(waited, last.as_deref_mut()) else {
                    break;
                };
                given_up.extend(queue.waiting.pop_front().map(|one| (one.answer, answer)));
            }
        }
        for (caller, answer) in given_up {
            // A caller that was cancelled no longer receives it.
            let _ = caller.send(answer);
        }
    }

    /// The jobs of the next call, oldest first. If none waits, ends this task's calls under the same
    /// lock, so that the next job starts a new task.
    fn next_batch(&mut self) -> Option<Vec<Waiting<C>>> {
        let mut queues = self.batches.queues();
        let waiting = &mut queues.get_mut(&self.level)?.waiting;
        if waiting.is_empty() {
            Batches::<C>::end_call(&mut queues, &self.level);
            self.ended = true;
            return None;
        }
        let jobs = waiting.iter().map(|waiting| &waiting.job);
        let size = self.batches.call.batch_size(jobs);
        Some(waiting.drain(..size).collect())
    }
}

/// If the task is aborted or panics, the level can still be called.
impl<C: BatchCall> Drop for Calls<C> {
    fn drop(&mut self) {
        if !self.ended {
            let queue = Batches::<C>::end_call(&mut self.batches.queues(), &self.level);
            // Dropped after the mutex is released, because this wakes the waiting callers.
            drop(queue);
        }
    }
}

#[cfg(test)]
mod tests;
