//! Those who wait for events of the feed, and what an event looks like.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

mod body;

pub(crate) use body::{EventBody, event_type};

/// Wakes requests that wait for events. One question to the database serves all of them.
#[derive(Debug)]
pub(crate) struct Followers {
    /// The number of the last row of the feed that this replica knows.
    last: watch::Sender<i64>,
    places: Arc<Semaphore>,
}

/// One that follows the feed. If it is a request, it has one of a bounded number of places.
#[derive(Debug)]
pub(crate) struct Follower {
    last: watch::Receiver<i64>,
    _place: Option<OwnedSemaphorePermit>,
}

impl Followers {
    /// At most `places` at a time.
    pub(crate) fn new(places: usize) -> Self {
        Self {
            last: watch::Sender::new(0),
            places: Arc::new(Semaphore::new(places)),
        }
    }

    /// A request; `None` if there are too many.
    pub(crate) fn join(&self) -> Option<Follower> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        Some(Follower {
            _place: Some(place),
            ..self.watch()
        })
    }

    /// A webhook: requests must not keep the events from it.
    pub(crate) fn watch(&self) -> Follower {
        Follower {
            last: self.last.subscribe(),
            _place: None,
        }
    }

    /// Whether the last number must be known.
    pub(crate) fn is_awaited(&self) -> bool {
        self.last.receiver_count() > 0
    }

    /// The feed has reached this number.
    pub(crate) fn advance(&self, to: i64) {
        self.last.send_if_modified(|last| {
            let is_new = to > *last;
            *last = to.max(*last);
            is_new
        });
    }
}

impl Follower {
    /// Returns when the feed has more than this number.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    pub(crate) async fn wait_beyond(&mut self, seq: i64) {
        // The sender lives as long as the replica.
        let _ = self.last.wait_for(|last| *last > seq).await;
    }
}
