//! Batches concurrent deductions of a level into one call of the script.
//!
//! At most [`CALLS`] calls per level are in flight. Deductions that arrive in between wait, and the
//! next call carries them together. Redis then reads and writes the level once, and decides each
//! deduction in the order of arrival. Without contention, a call carries one deduction.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::capacity::Capacity;
use super::connection::SharedConnection;
use super::errors::{Failed, is_connection_error};
use super::scripts::{self, Answer};
use super::streams::PER_ENTRY;
use super::update::WriteRequest;
use crate::StoreError;
use stocklock_core::ports::Expiry;

/// The maximum number of calls in flight per level. While Redis executes one, the other travels.
const CALLS: usize = 2;

/// The queues of all levels. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Batches {
    shared: SharedConnection,
    capacity: Arc<Capacity>,
    queues: Arc<Mutex<Queues>>,
}

/// The queue of each level that has a call in flight.
type Queues = HashMap<Arc<str>, Queue>;

/// The deductions that wait for the next call of one level.
#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    /// The number of calls in flight.
    calls: usize,
}

/// A deduction, and the sender that its caller waits for.
#[derive(Debug)]
struct Waiting {
    request: Arc<WriteRequest>,
    expiry: Expiry,
    since: Instant,
    answer: oneshot::Sender<Result<String, Failed>>,
}

impl Batches {
    pub(super) fn new(shared: SharedConnection, capacity: Arc<Capacity>) -> Self {
        Self {
            shared,
            capacity,
            queues: Arc::default(),
        }
    }

    /// Deducts the units in the next batch of their level, for a caller who is answered by `deadline`.
    ///
    /// # Cancel safety
    /// If the future is dropped, the outcome is unknown.
    pub(super) async fn deduct(
        &self,
        request: Arc<WriteRequest>,
        deadline: Instant,
    ) -> Result<Answer, StoreError> {
        let level = Arc::clone(&request.level);
        let expiry = self.shared.expiry(deadline).await?;
        let (answer, answered) = oneshot::channel();
        let waiting = Waiting {
            request,
            expiry,
            since: Instant::now(),
            answer,
        };
        if self.enqueue(&level, waiting) {
            // A separate task, because it serves further callers after this one.
            tokio::spawn(Calls::new(self.clone(), level).run());
        }
        match answered.await {
            Ok(Ok(answer)) => Answer::parse(&answer),
            Ok(Err(failed)) => Err(failed.writing().expiring(expiry)),
            Err(ended) => Err(StoreError::outcome_unknown(ended).expiring(expiry)),
        }
    }

    /// Adds a deduction to the queue. Returns whether the caller must start another call.
    fn enqueue(&self, level: &Arc<str>, waiting: Waiting) -> bool {
        let mut queues = self.queues();
        let queue = queues.entry(Arc::clone(level)).or_default();
        queue.waiting.push_back(waiting);
        let more = queue.calls < CALLS;
        queue.calls += usize::from(more);
        more
    }

    /// Counts a call as ended. After the last one, removes and returns the queue.
    fn end_call(queues: &mut Queues, level: &str) -> Option<Queue> {
        let queue = queues.get_mut(level)?;
        queue.calls -= 1;
        (queue.calls == 0).then(|| queues.remove(level))?
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        // No code panics while it holds this mutex.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes calls for one level, one after the other, until its queue is empty.
struct Calls {
    batches: Batches,
    level: Arc<str>,
    /// Whether the queue no longer counts this task.
    ended: bool,
}

impl Calls {
    fn new(batches: Batches, level: Arc<str>) -> Self {
        Self {
            batches,
            level,
            ended: false,
        }
    }

    async fn run(mut self) {
        while let Some(batch) = self.next_batch() {
            let answers = self.call(&batch).await;
            if let Err(failed) = &answers {
                self.fail_waiting(failed);
            }
            deliver(batch, answers);
        }
    }

    /// Fails waiting deductions if the server does not respond. None of them was sent. If there is no
    /// connection, this fails all of them. If the connection broke, it fails those that have waited
    /// for half of the limit, because a new connection would take them past it.
    fn fail_waiting(&self, failed: &Failed) {
        let (error, limit) = match failed {
            Failed::NotSent(error) => (error, Duration::ZERO),
            Failed::Unanswered(error) if is_connection_error(error) => {
                (error, self.batches.shared.limit() / 2)
            }
            Failed::Unanswered(_) => return,
        };
        let overdue: Vec<Waiting> = {
            let mut queues = self.batches.queues();
            let Some(queue) = queues.get_mut(&self.level) else {
                return;
            };
            let late = |waiting: &&Waiting| waiting.since.elapsed() >= limit;
            let late = queue.waiting.iter().take_while(late).count();
            queue.waiting.drain(..late).collect()
        };
        deliver(overdue, Err(Failed::NotSent(error.clone())));
    }

    /// The deductions for the next call, oldest first. If none waits, ends this task's calls under the
    /// same lock, so that the next deduction starts a new task.
    fn next_batch(&mut self) -> Option<Vec<Waiting>> {
        let mut queues = self.batches.queues();
        let waiting = &mut queues.get_mut(&self.level)?.waiting;
        if waiting.is_empty() {
            Batches::end_call(&mut queues, &self.level);
            self.ended = true;
            return None;
        }
        let size = waiting.len().min(PER_ENTRY.into());
        Some(waiting.drain(..size).collect())
    }

    async fn call(&self, batch: &[Waiting]) -> Result<Vec<String>, Failed> {
        let mut script = scripts::DEDUCT.arg(self.batches.capacity.movements());
        batch[0].request.add_keys(&mut script);
        for Waiting {
            request, expiry, ..
        } in batch
        {
            request.add_operation(&mut script);
            script.arg(-request.row.delta).arg(expiry.at);
        }
        self.batches.shared.run(&script).await
    }
}

/// If the task is aborted or panics, the level can still be called.
impl Drop for Calls {
    fn drop(&mut self) {
        if !self.ended {
            let queue = Batches::end_call(&mut self.batches.queues(), &self.level);
            // Dropped after the mutex is released, because this wakes the waiting callers.
            drop(queue);
        }
    }
}

/// Sends each caller its answer. A caller that was cancelled no longer receives it.
fn deliver(batch: Vec<Waiting>, answers: Result<Vec<String>, Failed>) {
    let answers = match answers {
        Ok(answers) => answers.into_iter().map(Ok).collect(),
        Err(failed) => vec![Err(failed); batch.len()],
    };
    for (waiting, answer) in batch.into_iter().zip(answers) {
        let _ = waiting.answer.send(answer);
    }
}

#[cfg(test)]
mod tests {
    use redis::Client;
    use tokio::sync::oneshot::error::TryRecvError;

    use super::super::connection::Connector;
    use super::super::keys::Keys;
    use super::*;
    use crate::journal::tests::row;

    type Answered = oneshot::Receiver<Result<String, Failed>>;

    /// Batches without a server: the test sends nothing.
    fn batches() -> Batches {
        let client = Client::open("redis://127.0.0.1:1/").expect("a URL");
        let limit = Duration::from_secs(1);
        let connector = Connector {
            client,
            limit,
            binding: None,
        };
        Batches::new(SharedConnection::new(connector), Capacity::new(10).into())
    }

    fn waiting() -> (Waiting, Answered) {
        let request = WriteRequest::new(&Keys("1f".to_owned()), row("a"), None);
        let (answer, answered) = oneshot::channel();
        let waiting = Waiting {
            request: request.into(),
            expiry: Expiry::passed(),
            since: Instant::now(),
            answer,
        };
        (waiting, answered)
    }

    fn still_waiting(answers: &mut [Answered]) -> usize {
        let answers = answers.iter_mut().map(Answered::try_recv);
        answers
            .filter(|answer| matches!(answer, Err(TryRecvError::Empty)))
            .count()
    }

    #[test]
    fn aborted_calls_fail_their_queue_and_free_their_slot() {
        let batches = batches();
        let level = Arc::from("level");
        let (mut running, mut answers) = (Vec::new(), Vec::new());
        let mut deduct = |running: &mut Vec<Calls>| {
            let (waiting, answered) = waiting();
            answers.push(answered);
            if batches.enqueue(&level, waiting) {
                running.push(Calls::new(batches.clone(), Arc::clone(&level)));
            }
            still_waiting(&mut answers)
        };
        for number in 1..=CALLS + 3 {
            assert_eq!(deduct(&mut running), number);
            assert_eq!(running.len(), CALLS.min(number));
        }
        drop(running.pop());
        // The other call still serves the queue, and the aborted one freed its slot.
        assert_eq!(deduct(&mut running), CALLS + 4);
        assert_eq!(running.len(), CALLS);
        running.clear();
        assert_eq!(still_waiting(&mut answers), 0);
        assert!(batches.queues().is_empty());
    }
}
