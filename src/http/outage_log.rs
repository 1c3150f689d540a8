//! Limits the log lines of an outage: every request that it fails would log the same.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The minimum time between two lines.
const PAUSE: Duration = Duration::from_secs(1);

/// When the last line was logged, and how many lines were suppressed since.
#[derive(Debug, Default)]
pub(super) struct OutageLog(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: Option<Instant>,
    suppressed: u64,
}

impl OutageLog {
    /// If a line may be logged at `now`, the number of lines suppressed since the last one.
    pub(super) fn admit(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_recent = |last| now.saturating_duration_since(last) < PAUSE;
        if state.last.is_some_and(is_recent) {
            state.suppressed += 1;
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_with_number_of_suppressed_lines() {
        let (log, start) = (OutageLog::default(), Instant::now());
        let at = |ms| log.admit(start + Duration::from_millis(ms));
        assert_eq!(at(0), Some(0));
        assert_eq!(at(1), None);
        assert_eq!(at(999), None);
        assert_eq!(at(1_000), Some(2));
        assert_eq!(at(1_500), None);
        assert_eq!(at(9_000), Some(1));
        assert_eq!(at(10_000), Some(0));
    }
}
