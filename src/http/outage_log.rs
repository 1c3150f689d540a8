//! Keeps an outage from flooding the log: each request that fails by it has the same to say.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The shortest time between two lines.
const PAUSE: Duration = Duration::from_secs(1);

/// When the last line was written, and how many were not since.
#[derive(Debug, Default)]
pub(super) struct OutageLog(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: Option<Instant>,
    left_out: u64,
}

impl OutageLog {
    /// Whether a line may be written at `now`; if so, how many were left out since the last one.
    pub(super) fn admit(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_soon = |last| now.saturating_duration_since(last) < PAUSE;
        if state.last.is_some_and(is_soon) {
            state.left_out += 1;
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_tells_how_many_it_stands_for() {
        let (log, begin) = (OutageLog::default(), Instant::now());
        let at = |ms| log.admit(begin + Duration::from_millis(ms));
        assert_eq!(at(0), Some(0));
        assert_eq!(at(1), None);
        assert_eq!(at(999), None);
        assert_eq!(at(1_000), Some(2));
        assert_eq!(at(1_500), None);
        assert_eq!(at(9_000), Some(1));
        assert_eq!(at(10_000), Some(0));
    }
}
