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

/// After a batch that skipped shards, the ledger counts as following the journals again once batches have
/// skipped none for this long: each batch may be of other shards.
const NONE_SKIPPED_FOR: Duration = Duration::from_mins(1);

/// How many entries are logged until then.
const MAX_LOGGED: usize = 100;

/// Increasing pauses between consecutive failures, with one log line for all of them.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
    warned: bool,
    suppressed: bool,
    /// When a batch last skipped shards because of an error.
    skipped: Option<Instant>,
}

impl Backoff {
    /// A batch has failed.
    pub(super) fn warn_once(&mut self, error: &StoreError) {
        self.log(error);
        self.failures = self.failures.saturating_add(1);
    }

    /// A batch has skipped shards because of an error. That needs no pause: the other shards go on.
    pub(super) fn skipped(&mut self, error: &StoreError) {
        self.log(error);
        self.skipped = Some(Instant::now());
    }

    fn log(&mut self, error: &StoreError) {
        if !self.warned && !self.suppressed {
            let cause = std::error::Error::source(error).map(ToString::to_string);
            tracing::warn!(%error, cause, "the ledger does not follow the journals");
            self.warned = true;
        }
        self.suppressed = false;
    }

    /// Does not log the next failure, because each of its entries was logged before.
    pub(super) fn suppress(&mut self) {
        self.suppressed = true;
    }

    /// A batch has neither failed nor skipped a shard.
    pub(super) fn reset(&mut self) {
        let is_recent = |at: Instant| at.elapsed() < NONE_SKIPPED_FOR;
        if self.skipped.is_some_and(is_recent) {
            self.failures = 0;
            return;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a shard that is skipped again and again is one warning, and slows down no other shard.
    #[tokio::test(start_paused = true)]
    async fn skipped_shards_are_one_warning_for_a_while() {
        let (error, mut backoff) = (StoreError::outcome_unknown("refused"), Backoff::default());
        for _ in 0..3 {
            backoff.skipped(&error);
            backoff.reset();
            assert!(backoff.warned);
        }
        assert_eq!(backoff.failures, 0);
        tokio::time::advance(NONE_SKIPPED_FOR).await;
        backoff.reset();
        assert!(!backoff.warned);
        backoff.warn_once(&error);
        assert_eq!(backoff.failures, 1);
        backoff.reset();
        assert!(!backoff.warned);
    }
}
