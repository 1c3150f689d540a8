//! Logs the journal entries that cannot be applied. It logs each entry once per hour, and at most
//! [`MAX_LOGGED`] entries per hour.

use std::collections::HashSet;
use std::fmt::Display;
use std::time::Duration;

use tokio::time::Instant;

use super::entries::StreamEntry;

/// After this time an entry is logged again.
const REPEAT_AFTER: Duration = Duration::from_hours(1);

/// How many entries are logged until then.
const MAX_LOGGED: usize = 100;

/// The entries that were logged in the current period.
#[derive(Debug)]
pub(super) struct EntryErrorLog {
    logged: HashSet<String>,
    since: Instant,
}

impl EntryErrorLog {
    pub(super) fn new() -> Self {
        Self {
            logged: HashSet::new(),
            since: Instant::now(),
        }
    }

    /// Logs that the entry cannot be applied. Returns false if it was logged before.
    pub(super) fn warn_once(&mut self, entry: &StreamEntry, why: &dyn Display) -> bool {
        if self.since.elapsed() >= REPEAT_AFTER {
            *self = Self::new();
        }
        if self.logged.len() > MAX_LOGGED || !self.logged.insert(entry.id.clone()) {
            return false;
        }
        if self.logged.len() > MAX_LOGGED {
            tracing::error!(
                logged = MAX_LOGGED,
                "more journal entries cannot be recorded; they are not logged for an hour, run an \
                 audit to count them"
            );
        } else {
            let (id, level) = (&entry.id, &entry.level);
            tracing::error!(id, level, %why, "a journal entry cannot be recorded");
        }
        true
    }
}
