//! A line for each lock within this process: one turn at a time, in the order of arrival.
//!
//! Only who has the turn asks the server, so that two hundred tasks on one hot lock are one remote
//! contender, not two hundred. A turn is kept until the lock has been given up. A name is in the
//! map only while somebody has its turn.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// All lines.
#[derive(Debug, Clone, Default)]
pub(crate) struct Queue(Arc<Mutex<HashMap<Arc<str>, Line>>>);

#[derive(Debug, Default)]
struct Line {
    /// By order of arrival.
    waiting: BTreeMap<u64, oneshot::Sender<Turn>>,
    next_place: u64,
    /// Whether who has the turn gets no answer from the server.
    troubled: bool,
}

/// The head of a line; dropping it lets the next one in.
#[derive(Debug)]
pub(crate) struct Turn {
    queue: Queue,
    /// `None` once it was handed over.
    name: Option<Arc<str>>,
}

/// What entering came to.
pub(crate) enum Entered {
    /// At once.
    Turn(Turn),
    /// Somebody is before us.
    Place(Place),
}

impl Queue {
    /// Goes to the end of the line.
    pub(crate) fn enter(&self, name: &Arc<str>) -> Entered {
        match self.lines().entry(Arc::clone(name)) {
            Entry::Vacant(entry) => {
                entry.insert(Line::default());
                Entered::Turn(self.turn(name))
            }
            Entry::Occupied(mut entry) => {
                let line = entry.get_mut();
                let number = line.next_place;
                line.next_place += 1;
                let (sender, receiver) = oneshot::channel();
                line.waiting.insert(number, sender);
                Entered::Place(Place {
                    queue: self.clone(),
                    name: Arc::clone(name),
                    number,
                    receiver,
                })
            }
        }
    }

    /// Whether who has the turn gets no answer from the server.
    pub(crate) fn is_troubled(&self, name: &str) -> bool {
        self.lines().get(name).is_some_and(|line| line.troubled)
    }

    /// How many names there are.
    pub(crate) fn len(&self) -> usize {
        self.lines().len()
    }

    fn turn(&self, name: &Arc<str>) -> Turn {
        Turn {
            queue: self.clone(),
            name: Some(Arc::clone(name)),
        }
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<Arc<str>, Line>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the next one's sender out, or the line away if nobody waits.
    fn next(&self, name: &str) -> Option<oneshot::Sender<Turn>> {
        let mut lines = self.lines();
        let line = lines.get_mut(name)?;
        if let Some((_, sender)) = line.waiting.pop_first() {
            return Some(sender);
        }
        lines.remove(name);
        None
    }
}

impl Turn {
    /// Tells those behind whether the server answers.
    pub(crate) fn set_troubled(&self, troubled: bool) {
        let Some(name) = &self.name else { return };
        if let Some(line) = self.queue.lines().get_mut(name) {
            line.troubled = troubled;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(name) = self.name.take() else { return };
        // Who has left in the meantime is passed over.
        while let Some(sender) = self.queue.next(&name) {
            let Err(mut unsent) = sender.send(self.queue.turn(&name)) else {
                return;
            };
            // This loop hands it over; its own drop must not.
            unsent.name = None;
        }
    }
}

/// A place in a line; dropping it leaves the line.
#[derive(Debug)]
pub(crate) struct Place {
    queue: Queue,
    name: Arc<str>,
    number: u64,
    receiver: oneshot::Receiver<Turn>,
}

impl Place {
    /// Waits for the turn; may be dropped and called again.
    pub(crate) async fn turn(&mut self) -> Turn {
        match (&mut self.receiver).await {
            Ok(turn) => turn,
            Err(_) => unreachable!("a place is only taken out of its line with a turn"),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(line) = self.queue.lines().get_mut(&self.name) {
            line.waiting.remove(&self.number);
        }
    }
}
