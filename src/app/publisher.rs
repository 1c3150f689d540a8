//! Publishes the changes of this replica as events. Publishers of several replicas take turns. What a replica has
//! changed and not published before its end is found by another one when that writes checkpoints.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::supervise::{Outage, supervise};
use crate::events::Followers;
use crate::http::Api;
use stocklock_core::ports::StoreError;

/// The shortest and the longest pause between two rounds.
const PAUSES: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(2)];

/// How many times as long as the round before it a pause is: on SQLite, sales wait for a round.
const REST: u32 = 20;

/// The pause before old events are deleted again.
const TRIM_PAUSE: Duration = Duration::from_mins(1);

/// Publishes until `stop` is cancelled, and what is left then.
pub(super) async fn run(api: Arc<Api>, stop: CancellationToken) {
    let start = || publish(Arc::clone(&api), stop.clone());
    supervise("the publisher of events", &stop, start).await;
}

async fn publish(api: Arc<Api>, stop: CancellationToken) {
    let Some(followers) = &api.followers else {
        return stop.cancelled().await;
    };
    let mut publisher = Publisher {
        api: &api,
        followers,
        has_filled: false,
        trim_at: Instant::now(),
    };
    let (mut outage, mut behind) = (Outage::default(), None);
    let [mut pause, longest] = PAUSES;
    loop {
        let is_last = tokio::select! {
            () = sleep(pause) => false,
            () = stop.cancelled() => true,
        };
        let begin = Instant::now();
        api.metrics.feed_lag.set((), *behind.get_or_insert(begin));
        let round = publisher.round().await;
        if round.is_ok() {
            behind = None;
            api.metrics.feed_lag.clear(());
        }
        outage.note(round, "events cannot be published; they will be later");
        if is_last {
            return;
        }
        pause = (REST * begin.elapsed()).clamp(PAUSES[0], longest);
    }
}

struct Publisher<'a> {
    api: &'a Api,
    followers: &'a Followers,
    has_filled: bool,
    trim_at: Instant,
}

impl Publisher<'_> {
    async fn round(&mut self) -> Result<(), StoreError> {
        let store = &self.api.store;
        while !self.has_filled {
            self.has_filled = store.fill_published().await?;
        }
        let published = store.publish().await;
        if let Ok(Some(last)) = published {
            self.followers.set_last(last);
        } else if self.followers.is_awaited() {
            // Another replica may have published, or this one a part.
            let last = store.last_published().await?;
            self.followers.set_last(last.map_or(0, |last| last.seq));
        }
        published?;
        self.trim().await
    }

    /// Deletes old events from time to time, some in each round, so that new events do not wait for many old ones.
    async fn trim(&mut self) -> Result<(), StoreError> {
        if Instant::now() >= self.trim_at {
            self.trim_at = Instant::now() + TRIM_PAUSE;
            let retention = self.api.config.events.events_retention_days;
            if self.api.store.trim_feed(retention).await? {
                self.trim_at = Instant::now();
            }
        }
        Ok(())
    }
}
