//! Reads the open lines of holds. Requests that come while others are read share the next statement.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::ports::HoldStore;
use crate::stock::{OpenHold, OperationId, StockError};

/// How many statements are in progress at most, so that one that hangs does not stop the others.
const MAX_READING: usize = 2;

/// How many holds one statement reads at most.
const MAX_HOLDS: usize = 256;

/// Sends one request the open lines of its hold, or the error.
type Answer = oneshot::Sender<Result<Vec<OpenHold>, StockError>>;

/// The reads of one replica.
#[derive(Debug)]
pub(super) struct OpenLines {
    store: Arc<dyn HoldStore>,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    holds: Vec<(OperationId, Answer)>,
    /// How many tasks read.
    reading: usize,
}

impl OpenLines {
    pub(super) fn new(store: Arc<dyn HoldStore>) -> Arc<Self> {
        Arc::new(Self {
            store,
            waiting: Mutex::default(),
        })
    }

    /// The open lines of a hold, in the order of their numbers.
    ///
    /// # Errors
    /// Those of the store. All that share a statement get its error.
    ///
    /// # Cancel safety
    /// The future may be dropped.
    pub(super) async fn of(
        self: &Arc<Self>,
        hold: OperationId,
    ) -> Result<Vec<OpenHold>, StockError> {
        let (answer, answered) = oneshot::channel();
        let starts = {
            let mut waiting = self.waiting.lock();
            waiting.holds.push((hold, answer));
            let starts = waiting.reading < MAX_READING;
            waiting.reading += usize::from(starts);
            starts
        };
        if starts {
            tokio::spawn(Arc::clone(self).read());
        }
        answered.await.unwrap_or_else(|_| Err(ended_early()))
    }

    /// Reads until no request waits.
    async fn read(self: Arc<Self>) {
        while let Some(asked) = self.next() {
            // Several may ask for the same hold, and each of its lines is to be read once.
            let holds: HashSet<_> = asked.iter().map(|(hold, _)| *hold).collect();
            let (store, holds) = (Arc::clone(&self.store), Vec::from_iter(holds));
            // In its own task, so that a panic does not end this one.
            let found = tokio::spawn(async move { store.open_lines(&holds).await }).await;
            let found = found.map_or_else(|_| Err(ended_early()), |found| Ok(found?));
            let of_holds = found.as_ref().map(|found| {
                let of_holds = found.chunk_by(|one, next| one.hold == next.hold);
                let of_holds = of_holds.map(|of| (of[0].hold, of));
                of_holds.collect::<HashMap<_, _>>()
            });
            for (hold, answer) in asked {
                let lines = match &of_holds {
                    Ok(of_holds) => Ok(of_holds.get(&hold).copied().unwrap_or_default().to_vec()),
                    Err(error) => Err(StockError::clone(error)),
                };
                // A request that was cancelled needs no answer.
                let _ = answer.send(lines);
            }
        }
    }

    /// Those that the next statement reads. `None`: no request waits, and the task ends.
    fn next(&self) -> Option<Vec<(OperationId, Answer)>> {
        let mut waiting = self.waiting.lock();
        if waiting.holds.is_empty() {
            waiting.reading -= 1;
            return None;
        }
        let number = waiting.holds.len().min(MAX_HOLDS);
        Some(waiting.holds.drain(..number).collect())
    }
}

fn ended_early() -> StockError {
    let what = "the task that reads holds ended early".to_owned();
    StockError::Internal { what }
}
