//! The operations that wait, and which of them come next.
//!
//! Each level has a queue in the order of arrival. An operation is in the queues of all of its levels. It
//! is ready if it is the first in each of them, and no batch has claimed one of them. A batch takes what is
//! ready, oldest first, of rows of imports or of other operations; what was behind becomes ready while the
//! batch is put together. So no operation overtakes an older one of the same level, and the work for a
//! batch depends on its size, not on how many wait.
//!
//! No I/O and no task is in here. The clock is read only to record when an operation arrived.

use std::collections::{HashMap, VecDeque};
use std::mem;

use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::Span;

use crate::ports::BatchAnswer;
use crate::stock::{Change, Operation, Sku, Warehouse};
use crate::trace;
use ready::{FEW_LINES, Ready};

mod ready;

/// The maximum number of levels in a batch.
const MAX_LEVELS: usize = 128;

/// While fewer levels are claimed, a batch of one level need not share a transaction: it has one of its
/// own, which can wait for its row.
pub(super) const QUIET_LEVELS: usize = 4;

/// After so many misses, an operation has a batch of its own.
pub(super) const MISSES: u32 = 2;

/// The number of a level, as long as it has a queue or is claimed.
pub(super) type Number = usize;

/// The order of arrival.
type Age = u64;

/// An operation that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) operation: Operation,
    pub(super) caller: Caller,
}

/// Who waits for an operation, and its place in the queues.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) answer: oneshot::Sender<BatchAnswer>,
    pub(super) since: Instant,
    /// The span of its wait.
    pub(super) span: Span,
    /// How often a row of it was locked.
    pub(super) misses: u32,
    /// Its levels, each once.
    pub(super) levels: Vec<Number>,
    /// The place of its first level in the batch that has taken it.
    pub(super) place: usize,
    age: Age,
    /// In how many of its levels another operation is before it, or a batch is in flight.
    behind: usize,
}

/// Operations that are made together.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// The levels that it claims.
    pub(super) levels: Vec<Number>,
    pub(super) operations: Vec<Waiting>,
    /// Whether it counts against `max_in_flight`.
    pub(super) counts: bool,
    /// Whether its operations are rows of imports.
    pub(super) of_rows: bool,
    /// The name of the strategy, which all deductions of a write have in common.
    strategy: Option<&'static str>,
}

#[derive(Debug)]
pub(super) struct Queues {
    max_lines: usize,
    max_in_flight: usize,
    numbers: HashMap<(Sku, Warehouse), Number>,
    levels: Vec<Level>,
    unused: Vec<Number>,
    waiting: HashMap<Age, Waiting>,
    ready: Ready,
    last_age: Age,
    /// How many levels are claimed, not counting those of rows.
    claimed: usize,
    /// How many batches are in flight that count.
    in_flight: usize,
    /// Whether a task is about to take what is ready.
    is_starting: bool,
}

#[derive(Debug)]
struct Level {
    name: (Sku, Warehouse),
    queue: VecDeque<Age>,
    is_claimed: bool,
    /// Its place in the batch that claims it.
    place: usize,
}

impl Caller {
    pub(super) fn new(answer: oneshot::Sender<BatchAnswer>) -> Self {
        Self {
            answer,
            since: Instant::now(),
            span: trace::queue(),
            misses: 0,
            levels: Vec::new(),
            place: 0,
            age: 0,
            behind: 0,
        }
    }
}

impl Waiting {
    /// Whether it shares no batch: it has met locked rows too often, or it locks all levels of its SKU.
    fn is_apart(&self) -> bool {
        let mut lines = self.operation.lines.iter();
        self.caller.misses >= MISSES || lines.any(|line| matches!(line.change, Change::Set(_)))
    }
}

impl Queues {
    /// At most `max_in_flight` batches count at a time. A batch has at most `max_lines` lines.
    pub(super) fn new(max_lines: usize, max_in_flight: usize) -> Self {
        Self {
            max_lines,
            max_in_flight,
            numbers: HashMap::new(),
            levels: Vec::new(),
            unused: Vec::new(),
            waiting: HashMap::new(),
            ready: Ready::default(),
            last_age: 0,
            claimed: 0,
            in_flight: 0,
            is_starting: false,
        }
    }

    /// Adds an operation behind all others.
    pub(super) fn push(&mut self, operation: Operation, mut caller: Caller) {
        self.last_age += 1;
        caller.age = self.last_age;
        self.put_back(Waiting { operation, caller });
    }

    /// Adds an operation that was taken before, at its old place.
    pub(super) fn put_back(&mut self, mut waiting: Waiting) {
        let Waiting { operation, caller } = &mut waiting;
        (caller.behind, caller.levels) = (0, Vec::with_capacity(operation.lines.len()));
        let age = caller.age;
        for name in operation.levels() {
            let number = self.number(name);
            let level = &mut self.levels[number];
            let Err(place) = level.queue.binary_search(&age) else {
                // It names the level twice.
                continue;
            };
            let overtaken = level.queue.front().copied().filter(|_| place == 0);
            level.queue.insert(place, age);
            if !operation.is_row {
                // It does not wait for the turn of rows.
                for before in level.queue.range(..place).rev() {
                    let before_it = self.waiting.get_mut(before).expect("it waits");
                    if !mem::take(&mut before_it.operation.is_row) {
                        break;
                    }
                    if self.ready.remove(*before) {
                        self.ready.insert(false, *before);
                    }
                }
            }
            let is_behind = place > 0 || level.is_claimed;
            caller.behind += usize::from(is_behind);
            caller.levels.push(number);
            if let Some(overtaken) = overtaken.filter(|_| !is_behind) {
                self.block(overtaken);
            }
        }
        if caller.behind == 0 {
            self.ready.insert(operation.is_row, age);
        }
        self.waiting.insert(age, waiting);
    }

    /// Whether the caller must start a task that takes what is ready: no other one is about to.
    pub(super) fn begin_start(&mut self) -> bool {
        let can_start = if self.ready.of(false).is_empty() {
            self.has_slot() && self.ready.is_turn_of_rows()
        } else {
            self.has_slot() || self.claimed < QUIET_LEVELS
        };
        can_start && !mem::replace(&mut self.is_starting, true)
    }

    fn has_slot(&self) -> bool {
        self.in_flight < self.max_in_flight
    }

    pub(super) fn end_start(&mut self) {
        self.is_starting = false;
    }

    /// The next batch, whose levels are claimed then.
    pub(super) fn take(&mut self) -> Option<Batch> {
        let has_slot = self.has_slot();
        let of_rows = has_slot && self.ready.is_turn_of_rows();
        let is_quiet = !of_rows && self.claimed < QUIET_LEVELS;
        let max_levels = match (has_slot, is_quiet) {
            (true, _) => MAX_LEVELS,
            (false, true) => 1,
            (false, false) => return None,
        };
        let is_few = of_rows && self.max_in_flight == 1 && !self.ready.is_alone();
        let max_lines = if is_few { FEW_LINES } else { self.max_lines };
        let (mut batch, mut lines, mut is_apart) = (Batch::default(), 0, false);
        batch.of_rows = of_rows;
        while let Some(age) = self.next(&batch, max_levels) {
            let next = &self.waiting[&age];
            let new = next.caller.levels.iter();
            let new = new.filter(|number| !self.is_in(&batch, **number)).count();
            lines += next.operation.levels().count();
            let fits = batch.operations.is_empty()
                || lines <= max_lines
                    && !next.is_apart()
                    && (next.operation.strategy.zip(batch.strategy)).is_none_or(|(a, b)| a == b);
            if is_apart || !fits || batch.levels.len() + new > max_levels {
                // Those behind it wait too: nothing overtakes it.
                break;
            }
            is_apart = next.is_apart();
            self.ready.remove(age);
            self.move_to(&mut batch, age);
        }
        if batch.operations.is_empty() {
            return None;
        }
        for number in &batch.levels {
            let level = &mut self.levels[*number];
            level.is_claimed = true;
            if let Some(next) = level.queue.front().copied() {
                self.block(next);
            }
        }
        batch.counts = !is_apart && (batch.levels.len() > 1 || !is_quiet);
        self.in_flight += usize::from(batch.counts);
        self.ready.begin(of_rows, batch.counts);
        if !of_rows {
            self.claimed += batch.levels.len();
        }
        Some(batch)
    }

    /// The next operation for the batch, if one is ready: the oldest. If the batch may have only one
    /// level, the oldest of that level.
    fn next(&self, batch: &Batch, max_levels: usize) -> Option<Age> {
        let ready = self.ready.of(batch.of_rows);
        if max_levels > 1 || batch.levels.is_empty() {
            return ready.first().copied();
        }
        let next = self.levels[batch.levels[0]].queue.front();
        next.copied().filter(|age| ready.contains(age))
    }

    /// Moves an operation that is ready to the batch. Those behind it may become ready.
    fn move_to(&mut self, batch: &mut Batch, age: Age) {
        let mut waiting = self.waiting.remove(&age).expect("it waits");
        for number in &waiting.caller.levels {
            if !self.is_in(batch, *number) {
                self.levels[*number].place = batch.levels.len();
                batch.levels.push(*number);
            }
            let queue = &mut self.levels[*number].queue;
            queue.pop_front();
            if let Some(next) = queue.front().copied() {
                self.unblock(next);
            }
        }
        waiting.caller.place = self.levels[waiting.caller.levels[0]].place;
        batch.strategy = batch.strategy.or(waiting.operation.strategy);
        batch.operations.push(waiting);
    }

    fn is_in(&self, batch: &Batch, number: Number) -> bool {
        batch.levels.get(self.levels[number].place) == Some(&number)
    }

    /// The level is no longer claimed.
    pub(super) fn release(&mut self, number: Number, of_rows: bool) {
        let level = &mut self.levels[number];
        level.is_claimed = false;
        self.claimed -= usize::from(!of_rows);
        match level.queue.front().copied() {
            Some(next) => self.unblock(next),
            None => self.retire(number),
        }
    }

    /// A batch that counted no longer does.
    pub(super) fn end_count(&mut self, of_rows: bool) {
        self.in_flight -= 1;
        self.ready.end(of_rows);
    }

    /// Removes and returns a ready operation that arrived at `time` or earlier.
    pub(super) fn pop_ready_before(&mut self, time: Instant) -> Option<Waiting> {
        let oldest = [false, true].map(|of_rows| self.ready.of(of_rows).first());
        let is_late = |age: &&Age| self.waiting[*age].caller.since <= time;
        let late = oldest.into_iter().flatten().find(is_late).copied()?;
        Some(self.remove(late))
    }

    /// Removes and returns the first operation of a level's queue, if it arrived at `time` or earlier.
    pub(super) fn pop_before(&mut self, number: Number, time: Instant) -> Option<Waiting> {
        let age = *self.levels[number].queue.front()?;
        (self.waiting[&age].caller.since <= time).then(|| self.remove(age))
    }

    fn remove(&mut self, age: Age) -> Waiting {
        let waiting = self.waiting.remove(&age).expect("it waits");
        self.ready.remove(age);
        for number in &waiting.caller.levels {
            let level = &mut self.levels[*number];
            let place = level.queue.binary_search(&age).expect("it is in the queue");
            level.queue.remove(place);
            let next = level.queue.front().copied();
            match next.filter(|_| place == 0) {
                _ if level.is_claimed => {}
                Some(next) => self.unblock(next),
                None if level.queue.is_empty() => self.retire(*number),
                None => {}
            }
        }
        waiting
    }

    /// The number of a level that is claimed or has a queue; otherwise a new one.
    pub(super) fn number(&mut self, (sku, warehouse): (&Sku, &Warehouse)) -> Number {
        let name = (sku.clone(), warehouse.clone());
        if let Some(number) = self.numbers.get(&name) {
            return *number;
        }
        let number = self.unused.pop().unwrap_or(self.levels.len());
        self.numbers.insert(name.clone(), number);
        if let Some(level) = self.levels.get_mut(number) {
            level.name = name;
        } else {
            self.levels.push(Level {
                name,
                queue: VecDeque::new(),
                is_claimed: false,
                place: 0,
            });
        }
        number
    }

    fn retire(&mut self, number: Number) {
        self.numbers.remove(&self.levels[number].name);
        self.unused.push(number);
    }

    fn block(&mut self, age: Age) {
        let caller = &mut self.waiting.get_mut(&age).expect("it waits").caller;
        if caller.behind == 0 {
            self.ready.remove(age);
        }
        caller.behind += 1;
    }

    fn unblock(&mut self, age: Age) {
        let Waiting { operation, caller } = self.waiting.get_mut(&age).expect("it waits");
        caller.behind -= 1;
        if caller.behind == 0 {
            self.ready.insert(operation.is_row, age);
        }
    }
}

#[cfg(test)]
mod tests;
