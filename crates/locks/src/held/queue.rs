//! The local queue of each lock: one task at a time, or a few, in order of arrival.
//!
//! Only the first tasks in the queue ask the server. Two hundred tasks that want one hot lock are
//! therefore one or two contenders on the server. A task keeps its turn until its lock is released. A
//! name is in the map only while a task has a turn.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use crate::shared::clock::Moment;
use crate::shared::lock::lock;

#[derive(Debug, Clone)]
pub(crate) struct LocalQueues {
    queues: Arc<Mutex<HashMap<Arc<str>, LocalQueue>>>,
    /// The maximum number of turns at the same time, for each name.
    turns: usize,
}

#[derive(Debug, Default)]
struct LocalQueue {
    /// The number of tasks that have a turn. No task waits while it is below its maximum.
    turns: usize,
    waiting: BTreeMap<u64, oneshot::Sender<Turn>>,
    next_number: u64,
    /// Whether the last request of a task that has a turn failed.
    failing: bool,
    /// When the latest request was sent, until the server has answered it.
    asked: Option<Moment>,
}

/// One of the first positions in a queue. Dropping it gives the turn to the next task.
#[derive(Debug)]
pub(crate) struct Turn {
    queues: LocalQueues,
    /// `None` after the turn was passed on.
    name: Option<Arc<str>>,
}

impl LocalQueues {
    pub(crate) fn new(turns: usize) -> Self {
        Self {
            queues: Arc::default(),
            turns,
        }
    }

    /// Returns a turn if one is free. Otherwise, other tasks are ahead.
    pub(crate) fn enter(&self, name: &Arc<str>) -> Result<Turn, Waiter> {
        let mut queues = lock(&self.queues);
        let queue = queues.entry(Arc::clone(name)).or_default();
        if queue.turns < self.turns {
            queue.turns += 1;
            return Ok(self.turn(name));
        }
        let number = queue.next_number;
        queue.next_number += 1;
        let (sender, receiver) = oneshot::channel();
        queue.waiting.insert(number, sender);
        Err(Waiter {
            queues: self.clone(),
            name: Arc::clone(name),
            number,
            receiver,
        })
    }

    /// Returns true if the last request of a task that has a turn failed.
    pub(crate) fn is_failing(&self, name: &str) -> bool {
        lock(&self.queues)
            .get(name)
            .is_some_and(|queue| queue.failing)
    }

    /// Returns when the latest request was sent, if the server has not answered it.
    pub(crate) fn asked(&self, name: &str) -> Option<Moment> {
        lock(&self.queues).get(name).and_then(|queue| queue.asked)
    }

    /// Returns how many tasks have a turn or wait for one.
    pub(crate) fn tasks(&self, name: &str) -> usize {
        let queues = lock(&self.queues);
        queues
            .get(name)
            .map_or(0, |queue| queue.turns + queue.waiting.len())
    }

    pub(crate) fn len(&self) -> usize {
        lock(&self.queues).len()
    }

    fn turn(&self, name: &Arc<str>) -> Turn {
        Turn {
            queues: self.clone(),
            name: Some(Arc::clone(name)),
        }
    }

    /// Ends a turn: removes and returns the next waiting task. If no task waits, removes the queue with
    /// its last turn.
    fn next(&self, name: &str) -> Option<oneshot::Sender<Turn>> {
        let mut queues = lock(&self.queues);
        let queue = queues.get_mut(name)?;
        if let Some((_, sender)) = queue.waiting.pop_first() {
            return Some(sender);
        }
        queue.turns -= 1;
        if queue.turns == 0 {
            queues.remove(name);
        }
        None
    }
}

impl Turn {
    /// Records for the waiting tasks that a request was sent to the server.
    pub(crate) fn ask(&self, sent: Moment) {
        self.update(|queue| queue.asked = Some(sent));
    }

    /// Records for the waiting tasks whether the last request to the server failed.
    pub(crate) fn set_failing(&self, failing: bool) {
        self.update(|queue| {
            queue.asked = None;
            queue.failing = failing;
        });
    }

    fn update(&self, change: impl FnOnce(&mut LocalQueue)) {
        let Some(name) = &self.name else { return };
        if let Some(queue) = lock(&self.queues.queues).get_mut(name) {
            change(queue);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(name) = self.name.take() else { return };
        // Skip tasks that stopped waiting in the meantime.
        while let Some(sender) = self.queues.next(&name) {
            let Err(mut unsent) = sender.send(self.queues.turn(&name)) else {
                return;
            };
            // This loop passes the turn on, so the drop of `unsent` must not do it again.
            unsent.name = None;
        }
    }
}

/// A waiting position in a queue. Dropping it leaves the queue.
#[derive(Debug)]
pub(crate) struct Waiter {
    queues: LocalQueues,
    name: Arc<str>,
    number: u64,
    receiver: oneshot::Receiver<Turn>,
}

impl Waiter {
    /// Waits for the turn. The future may be dropped, and the method called again.
    pub(crate) async fn turn(&mut self) -> Turn {
        match (&mut self.receiver).await {
            Ok(turn) => turn,
            Err(_) => unreachable!("a sender is removed from the queue only to send the turn"),
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if let Some(queue) = lock(&self.queues.queues).get_mut(&self.name) {
            queue.waiting.remove(&self.number);
        }
    }
}
