//! Those who wait for events of the feed, and what an event looks like.

use std::mem;
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

    /// The feed ends with this number. After a failover or a restore, that may be less than before.
    pub(crate) fn set_last(&self, seq: i64) {
        self.last
            .send_if_modified(|last| mem::replace(last, seq) != seq);
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

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn follower_waits_after_the_feed_has_gone_back() {
        let followers = Followers::new(1);
        let mut follower = followers.watch();
        let mut is_beyond = |last| {
            followers.set_last(last);
            follower.wait_beyond(90).now_or_never().is_some()
        };
        assert_eq!([100, 90, 91].map(&mut is_beyond), [true, false, true]);
    }
}
