//! Makes a batch: its transaction, and what that leaves out.

use std::mem;
use std::pin::pin;
use std::sync::Arc;

use tokio::time::Instant;
use tracing::Instrument as _;

use super::queues::{Caller, MISSES, Number, Waiting};
use super::{Answered, Scheduler, answer};
use crate::deduct::sold_out::Sending;
use crate::ports::{SharedAnswer, StoreError};
use crate::stock::{Operation, Sku, Warehouse};

/// The levels that a task has claimed. Dropped, it releases them, and starts what waited for them.
pub(super) struct Claims {
    pub(super) scheduler: Arc<Scheduler>,
    pub(super) levels: Vec<Number>,
    /// Whether it counts as a transaction in flight.
    pub(super) counts: bool,
    /// Whether they are claimed for rows of imports.
    pub(super) of_rows: bool,
    /// Operations that go back into their queues when this is dropped.
    pub(super) back: Vec<Waiting>,
}

/// What is left of a batch for one of its levels.
#[derive(Debug, Default)]
struct Share {
    sending: Option<Sending>,
    /// Operations of this level only, which are made now.
    single: Vec<Waiting>,
    /// Operations of several levels, which wait for its row.
    others: Vec<Waiting>,
    /// The row.
    row: Option<(Sku, Warehouse)>,
}

impl Claims {
    /// Makes what a batch has taken.
    pub(super) async fn make_batch(mut self, operations: Vec<Waiting>) {
        let first = &operations[0].caller;
        let briefly = first.misses >= MISSES;
        if self.levels.len() == 1 && !self.counts {
            let share = Share {
                sending: Some(self.scheduler.sold_out.sending(&operations[0].operation)),
                single: operations,
                ..Share::default()
            };
            let answers = self.make_level(share).await;
            drop(self);
            return answer(answers);
        }
        let started = Instant::now();
        let mut shares: Vec<Share> = self.levels.iter().map(|_| Share::default()).collect();
        let mut together = Vec::with_capacity(operations.len());
        for waiting in operations {
            if waiting.caller.levels.len() > 1 {
                together.push(waiting);
                continue;
            }
            let share = &mut shares[waiting.caller.place];
            let sold_out = &self.scheduler.sold_out;
            let sending = share
                .sending
                .get_or_insert_with(|| sold_out.sending(&waiting.operation));
            // It will probably be refused. The transaction would leave out the level, which would then be
            // made by itself in any case.
            if sending.was_sold_out && waiting.operation.as_deduction().is_some() {
                share.single.push(waiting);
            } else {
                together.push(waiting);
            }
        }
        let answers = self.make_together(together, briefly, &mut shares).await;
        for (number, share) in mem::take(&mut self.levels).into_iter().zip(shares) {
            if share.single.is_empty() && share.others.is_empty() {
                self.levels.push(number);
                if let Some(sending) = share.sending {
                    self.scheduler.sold_out.answered(sending);
                }
                continue;
            }
            let claims = Self {
                scheduler: Arc::clone(&self.scheduler),
                levels: vec![number],
                counts: false,
                of_rows: self.of_rows,
                back: Vec::new(),
            };
            let task = claims.make_share(share, started);
            self.scheduler.spawn.spawn(Box::pin(task.in_current_span()));
        }
        drop(self);
        answer(answers);
    }

    /// Makes operations in one transaction. What it leaves out goes to the shares of its levels, or waits
    /// again.
    async fn make_together(
        &mut self,
        together: Vec<Waiting>,
        briefly: bool,
        shares: &mut [Share],
    ) -> Vec<Answered> {
        if together.is_empty() {
            return Vec::new();
        }
        let (operations, callers) = split(together);
        let store = Arc::clone(&self.scheduler.store);
        let answers = self.patiently(store.write_shared(&operations, briefly));
        let answers = answers.await;
        let mut made = Vec::with_capacity(operations.len());
        for ((operation, mut caller), answer) in operations.into_iter().zip(callers).zip(answers) {
            let is_single = caller.levels.len() == 1;
            match answer {
                SharedAnswer::Made(answer) => {
                    let sending = shares[caller.place].sending.as_mut();
                    if let Some(sending) = sending.filter(|_| is_single) {
                        sending.saw(&answer);
                    }
                    made.push((caller.answer, answer));
                }
                SharedAnswer::Missed(_) | SharedAnswer::Apart if is_single => {
                    let share = &mut shares[caller.place];
                    share.single.push(Waiting { operation, caller });
                }
                SharedAnswer::Missed(level) => {
                    let level = operation.levels().nth(level);
                    let (sku, warehouse) = level.expect("it has the level");
                    let row = (sku.clone(), warehouse.clone());
                    let share = &mut shares[self.place(&row)];
                    share.row = Some(row);
                    share.others.push(Waiting { operation, caller });
                }
                SharedAnswer::Apart => {
                    caller.misses = MISSES;
                    self.back.push(Waiting { operation, caller });
                }
            }
        }
        made
    }

    /// The place of a level among those that are claimed.
    fn place(&self, row: &(Sku, Warehouse)) -> usize {
        let number = self.scheduler.queues.lock().number((&row.0, &row.1));
        let mut levels = self.levels.iter();
        levels
            .position(|level| *level == number)
            .expect("it is claimed")
    }

    /// Makes the operations of one level that a shared transaction has left out. `started`: when that began.
    async fn make_share(mut self, mut share: Share, started: Instant) {
        let mut others = mem::take(&mut share.others);
        let mut answers = Vec::new();
        if share.single.is_empty() {
            if let Some((sku, warehouse)) = share.row.take() {
                let store = Arc::clone(&self.scheduler.store);
                let waited = self.patiently(store.wait_for_level(&sku, &warehouse));
                if let Err(error) = waited.await {
                    let failed = others.drain(..);
                    answers.extend(failed.map(|one| (one.caller.answer, Err(error.clone()))));
                }
            }
        } else if started.elapsed() >= self.scheduler.wait_limit / 2 {
            // To wait again for a connection and a row could take it past its deadline.
            let queued = |waiting: Waiting| (waiting.caller.answer, Err(StoreError::Queued));
            answers.extend(share.single.into_iter().map(queued));
        } else {
            answers = self.make_level(share).await;
        }
        for mut waiting in others {
            waiting.caller.misses += 1;
            if waiting.caller.since.elapsed() < self.scheduler.wait_limit {
                self.back.push(waiting);
            } else {
                let problem = "the rows were never free at the same time";
                let error = StoreError::LockWait(problem.into());
                answers.push((waiting.caller.answer, Err(error)));
            }
        }
        drop(self);
        answer(answers);
    }

    /// Makes operations of one level. They can wait for its row.
    async fn make_level(&mut self, share: Share) -> Vec<Answered> {
        let (operations, callers) = split(share.single);
        let read_first = share.sending.as_ref().is_some_and(|one| one.was_sold_out);
        let store = Arc::clone(&self.scheduler.store);
        let answers = self
            .patiently(store.write_batch(&operations, read_first))
            .await;
        if let Some(mut sending) = share.sending {
            for answer in &answers {
                sending.saw(answer);
            }
            self.scheduler.sold_out.answered(sending);
        }
        match answers.last() {
            // The next batch may wait as long for the server, or for the row.
            Some(Err(error @ StoreError::Unavailable(_))) => self.give_up(error),
            Some(Err(StoreError::LockWait(_))) => self.give_up(&StoreError::Queued),
            _ => {}
        }
        let callers = callers.into_iter().map(|caller| caller.answer);
        callers.zip(answers).collect()
    }

    /// Waits for the end of a write. If that takes long, the operations behind it need not wait.
    async fn patiently<T>(&mut self, write: impl Future<Output = T>) -> T {
        let (mut write, since) = (pin!(write), Instant::now());
        let Scheduler {
            sleep, wait_limit, ..
        } = &*Arc::clone(&self.scheduler);
        loop {
            tokio::select! {
                biased;
                ended = &mut write => return ended,
                () = sleep.sleep(*wait_limit / 8) => {}
            }
            if mem::take(&mut self.counts) {
                let mut queues = self.scheduler.queues.lock();
                queues.end_count(self.of_rows);
                self.scheduler.start(queues);
            }
            if since.elapsed() >= *wait_limit {
                self.give_up(&StoreError::Queued);
            }
        }
    }

    /// Refuses the operations that have waited for half of the wait limit for one of the levels.
    fn give_up(&self, error: &StoreError) {
        let limit = self.scheduler.wait_limit / 2;
        let Some(time) = Instant::now().checked_sub(limit) else {
            return;
        };
        let mut late = Vec::new();
        {
            let mut queues = self.scheduler.queues.lock();
            for number in &self.levels {
                late.extend(std::iter::from_fn(|| queues.pop_before(*number, time)));
            }
        }
        let refused = |waiting: Waiting| (waiting.caller.answer, Err(error.clone()));
        answer(late.into_iter().map(refused).collect());
    }
}

fn split(waiting: Vec<Waiting>) -> (Vec<Operation>, Vec<Caller>) {
    let both = |one: Waiting| (one.operation, one.caller);
    waiting.into_iter().map(both).unzip()
}

impl Drop for Claims {
    fn drop(&mut self) {
        let mut queues = self.scheduler.queues.lock();
        for waiting in self.back.drain(..) {
            queues.put_back(waiting);
        }
        for number in &self.levels {
            queues.release(*number, self.of_rows);
        }
        if self.counts {
            queues.end_count(self.of_rows);
        }
        self.scheduler.start(queues);
    }
}
