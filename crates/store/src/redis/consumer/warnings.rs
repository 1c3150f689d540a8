//! What a consumer logs, so that a lasting failure does not fill the log.

use std::collections::HashSet;
use std::fmt::Display;
use std::time::Duration;

use tokio::time::Instant;

use crate::StoreError;
use crate::redis::streams::StreamEntry;

/// The longest pause after a failure. The first pause is an eighth of it.
const MAX_PAUSE: Duration = Duration::from_millis(800);

/// After this time an entry is logged again.
const REPEAT_AFTER: Duration = Duration::from_hours(1);

/// How many entries are logged until then.
const MAX_LOGGED: usize = 100;

/// Increasing pauses between consecutive failures, with one log line for all of them.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
    warned: bool,
    suppressed: bool,
}

impl Backoff {
    pub(super) fn warn_once(&mut self, error: &StoreError) {
        if !self.warned && !self.suppressed {
            let cause = std::error::Error::source(error).map(ToString::to_string);
            tracing::warn!(%error, cause, "the ledger does not follow the journals");
            self.warned = true;
        }
        self.suppressed = false;
        self.failures = self.failures.saturating_add(1);
    }

    /// Does not log the next failure, because each of its entries was logged before.
    pub(super) fn suppress(&mut self) {
        self.suppressed = true;
    }

    pub(super) fn reset(&mut self) {
        if self.warned {
            let failures = self.failures;
            tracing::info!(failures, "the ledger follows the journals again");
        }
        *self = Self::default();
    }

    /// How long to pause after the last failure.
    pub(super) fn pause(&self) -> Duration {
        MAX_PAUSE / 2_u32.pow(4_u32.saturating_sub(self.failures))
    }
}

/// Logs the entries that cannot be applied: each once per hour, and at most [`MAX_LOGGED`] per hour.
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
        if self.logged.len() > MAX_LOGGED || !self.logged.insert(entry.entry.clone()) {
            return false;
        }
        if self.logged.len() > MAX_LOGGED {
            tracing::error!(
                logged = MAX_LOGGED,
                "more journal entries cannot be recorded; they are not logged for an hour, run an \
                 audit to count them"
            );
        } else {
            let (id, level) = (&entry.entry, &entry.level);
            tracing::error!(id, level, %why, "a journal entry cannot be recorded");
        }
        true
    }
}
