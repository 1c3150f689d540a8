//! Deductions that wait for Redis at the same moment, in one call of the script.
//!
//! Few calls at a time are under way for a level. What comes meanwhile waits, and goes together with
//! the next one: Redis then reads and writes the level once for all of them, and decides each by
//! itself, in the order in which they came. Where nobody waits, a call carries one.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::connection::Shared;
use super::entries::PER_ENTRY;
use super::failure::{Failed, is_of_the_connection};
use super::scripts::{self, Answer};
use super::step::Taking;
use crate::StoreError;

/// The most calls that are under way for one level: while Redis runs one, the next is on its way.
const CALLS: usize = 2;

/// The calls that are under way, and what waits for the next ones. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Batches {
    shared: Shared,
    journal_limit: u32,
    queues: Arc<Mutex<Queues>>,
}

/// By level, while a call for it is under way.
type Queues = HashMap<Arc<str>, Queue>;

/// What waits for the next call for one level.
#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    calls: usize,
}

/// One deduction, and who waits for its answer.
#[derive(Debug)]
struct Waiting {
    taking: Taking,
    since: Instant,
    answer: oneshot::Sender<Result<String, Failed>>,
}

impl Batches {
    pub(super) fn new(shared: Shared, journal_limit: u32) -> Self {
        Self {
            shared,
            journal_limit,
            queues: Arc::default(),
        }
    }

    /// Takes the units, with what else is taken from their level then.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the outcome open.
    pub(super) async fn deduct(&self, taking: Taking) -> Result<Answer, StoreError> {
        let level = Arc::clone(&taking.step.level);
        let (answer, answered) = oneshot::channel();
        let waiting = Waiting {
            taking,
            since: Instant::now(),
            answer,
        };
        if self.enqueue(&level, waiting) {
            // In a task of its own: it goes on for others when the first one's caller has left.
            tokio::spawn(Calls::new(self.clone(), level).run());
        }
        match answered.await {
            Ok(Ok(answer)) => Answer::parse(&answer),
            Ok(Err(failed)) => Err(failed.into()),
            Err(ended) => Err(StoreError::OutcomeUnknown(ended.into())),
        }
    }

    /// Answers whether one more call is to be made for it.
    fn enqueue(&self, level: &Arc<str>, waiting: Waiting) -> bool {
        let mut queues = self.queues();
        let queue = queues.entry(Arc::clone(level)).or_default();
        queue.waiting.push_back(waiting);
        let more = queue.calls < CALLS;
        queue.calls += usize::from(more);
        more
    }

    /// One call less: the last one's queue goes, with those who wait in it, if any.
    fn end(queues: &mut Queues, level: &str) -> Option<Queue> {
        let queue = queues.get_mut(level)?;
        queue.calls -= 1;
        (queue.calls == 0).then(|| queues.remove(level))?
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        // Nothing panics while it is held.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The calls for one level, one after the other, until nobody waits.
struct Calls {
    batches: Batches,
    level: Arc<str>,
    /// Whether they do not count any more.
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
        while let Some(batch) = self.next() {
            let answers = self.call(&batch).await;
            if let Err(failed) = &answers {
                self.spare(failed);
            }
            settle(batch, answers);
        }
    }

    /// Tells those who would wait in vain for a server that does not answer: where there is no
    /// connection, all of them; where one broke, who has waited so long that another one would take
    /// them beyond the limit. Nothing of theirs was sent.
    fn spare(&self, failed: &Failed) {
        let (error, limit) = match failed {
            Failed::Unsent(error) => (error, Duration::ZERO),
            Failed::Unanswered(error) if is_of_the_connection(error) => {
                (error, self.batches.shared.limit() / 2)
            }
            Failed::Unanswered(_) => return,
        };
        let spared: Vec<Waiting> = {
            let mut queues = self.batches.queues();
            let Some(queue) = queues.get_mut(&self.level) else {
                return;
            };
            let late = |waiting: &&Waiting| waiting.since.elapsed() >= limit;
            let late = queue.waiting.iter().take_while(late).count();
            queue.waiting.drain(..late).collect()
        };
        settle(spared, Err(Failed::Unsent(error.clone())));
    }

    /// Those who have waited longest. Where nobody waits, this was the end: whoever comes from now
    /// on finds one call less.
    fn next(&mut self) -> Option<Vec<Waiting>> {
        let mut queues = self.batches.queues();
        let waiting = &mut queues.get_mut(&self.level)?.waiting;
        if waiting.is_empty() {
            Batches::end(&mut queues, &self.level);
            self.ended = true;
            return None;
        }
        let size = waiting.len().min(PER_ENTRY.into());
        Some(waiting.drain(..size).collect())
    }

    async fn call(&self, batch: &[Waiting]) -> Result<Vec<String>, Failed> {
        let first = &batch[0].taking.step;
        let call = |command: &mut redis::Cmd| {
            command.arg(3 + batch.len());
            first.write_keys(command);
            for Waiting { taking, .. } in batch {
                command.arg(&taking.step.name);
            }
            command.arg(self.batches.journal_limit);
            for Waiting { taking, .. } in batch {
                taking.step.write_arguments(taking.sure, command);
                command.arg(taking.units);
            }
        };
        self.batches.shared.run(&scripts::DEDUCT, call).await
    }
}

/// Whatever ends the calls before their time, others can be made.
impl Drop for Calls {
    fn drop(&mut self) {
        if !self.ended {
            let queue = Batches::end(&mut self.batches.queues(), &self.level);
            // Whom it wakes finds the lock free.
            drop(queue);
        }
    }
}

/// Tells each what came of it; who has left is not told.
fn settle(batch: Vec<Waiting>, answers: Result<Vec<String>, Failed>) {
    match answers {
        Ok(answers) => {
            for (waiting, answer) in batch.into_iter().zip(answers) {
                let _ = waiting.answer.send(Ok(answer));
            }
        }
        Err(failed) => {
            for waiting in batch {
                let _ = waiting.answer.send(Err(failed.clone()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use redis::Client;
    use tokio::sync::oneshot::error::TryRecvError;

    use super::super::connection::Connector;
    use super::super::step::Step;
    use super::*;
    use stocklock_core::stock::OperationId;

    const LEVEL: &str = "level";

    /// Nothing is sent.
    fn batches() -> Batches {
        let client = Client::open("redis://127.0.0.1:1/").expect("a URL");
        let connector = Connector::new(client, Duration::from_secs(1));
        Batches::new(Shared::new(connector), 10)
    }

    type Answered = oneshot::Receiver<Result<String, Failed>>;

    fn waiting() -> (Waiting, Answered) {
        let step = Step {
            operation: OperationId::mint(),
            level: LEVEL.into(),
            journal: String::new(),
            tally: String::new(),
            name: String::new(),
            movement: String::new(),
            memory: Duration::ZERO,
        };
        let taking = Taking {
            step: step.into(),
            units: 1,
            sure: true,
        };
        let (answer, answered) = oneshot::channel();
        let since = Instant::now();
        (
            Waiting {
                taking,
                since,
                answer,
            },
            answered,
        )
    }

    fn still_waiting(answers: &mut [Answered]) -> usize {
        let answers = answers.iter_mut().map(Answered::try_recv);
        answers
            .filter(|answer| matches!(answer, Err(TryRecvError::Empty)))
            .count()
    }

    #[test]
    fn calls_that_end_before_their_time_leave_nobody_waiting_and_make_room() {
        let batches = batches();
        let level = Arc::from(LEVEL);
        let calls = || Calls::new(batches.clone(), Arc::clone(&level));
        let (mut running, mut answers) = (Vec::new(), Vec::new());
        for number in 0..CALLS + 3 {
            let (waiting, answered) = waiting();
            answers.push(answered);
            if batches.enqueue(&level, waiting) {
                running.push(calls());
            }
            assert_eq!(running.len(), CALLS.min(number + 1));
        }
        assert_eq!(still_waiting(&mut answers), CALLS + 3);
        // The other call still comes for them.
        drop(running.pop());
        assert_eq!(still_waiting(&mut answers), CALLS + 3);
        let (one_more, answered) = waiting();
        answers.push(answered);
        assert!(
            batches.enqueue(&level, one_more),
            "there is room for a call"
        );
        running.push(calls());
        // Nobody comes any more.
        running.clear();
        assert_eq!(still_waiting(&mut answers), 0);
        assert!(batches.queues().is_empty());
    }
}
