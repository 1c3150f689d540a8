//! What is said of entries that cannot be recorded: each is named, but not time and again, and not
//! so many that nothing else is to be seen.

use std::collections::HashSet;
use std::fmt::Display;
use std::time::Duration;

use tokio::time::Instant;

use super::entries::Entry;

/// After so long it is all said again.
const AGAIN_AFTER: Duration = Duration::from_hours(1);

/// The most entries that are named until then.
const NAMED: usize = 100;

/// The entries that were named.
#[derive(Debug)]
pub(super) struct Complaints {
    named: HashSet<String>,
    since: Instant,
}

impl Complaints {
    pub(super) fn new() -> Self {
        Self {
            named: HashSet::new(),
            since: Instant::now(),
        }
    }

    /// Says that the entry cannot be recorded; answers whether that was news.
    pub(super) fn say(&mut self, entry: &Entry, why: &dyn Display) -> bool {
        if self.since.elapsed() >= AGAIN_AFTER {
            *self = Self::new();
        }
        if self.named.len() > NAMED || !self.named.insert(entry.id.clone()) {
            return false;
        }
        if self.named.len() > NAMED {
            tracing::error!(
                named = NAMED,
                "more entries of the journals cannot be recorded; they are not named for an hour, \
                 an audit counts them"
            );
        } else {
            let (id, level) = (&entry.id, &entry.level);
            tracing::error!(id, level, %why, "an entry of the journal cannot be recorded");
        }
        true
    }
}
