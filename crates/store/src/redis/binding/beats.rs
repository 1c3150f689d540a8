//! How long this process may sell with `ON_REDIS_LOSS=reload`, because another replica takes over only when
//! the beat in SQL has not changed for [`ABANDONED_AFTER`](super::decide::ABANDONED_AFTER).
//!
//! Guarantee: the time counts from a moment before the latest beat that this process knows of was written,
//! on a clock that goes on while the machine is suspended. So the last sale is made at least a second before
//! another replica can take over, although this process cannot reach SQL, or was paused.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::sql::BoundRedis;

/// Shorter than the time after which a Redis is abandoned, by the drift of clocks and a margin.
pub(super) const SELLS_FOR: Duration = Duration::from_secs(4);

/// A moment: the time since the machine started, with the time that it was suspended.
pub(super) type Moment = Duration;

pub(super) fn now() -> Moment {
    let now = clock_gettime(ClockId::Boottime);
    Moment::try_from(now).expect("the time since the machine started is positive")
}

/// What this process knows of the beats of one Redis.
#[derive(Debug, Default)]
pub(super) struct Beats {
    /// The row that was read or written last, and when that was sent.
    seen: Option<(BoundRedis, Moment)>,
    /// A beat was written after this moment.
    after: Option<Moment>,
}

impl Beats {
    /// `row` was read by a statement that was sent at `sent`. If its beat is later than the last one, it
    /// was written after the last one was read.
    pub(super) fn read(&mut self, row: &BoundRedis, sent: Moment) {
        match &self.seen {
            Some((last, _)) if !last.is_same(row) => self.after = None,
            Some((last, at)) if last.beat < row.beat => self.after = self.after.max(Some(*at)),
            _ => {}
        }
        self.seen = Some((row.clone(), sent));
    }

    /// `row` was written by a statement that was sent at `sent`.
    pub(super) fn wrote(&mut self, row: &BoundRedis, sent: Moment) {
        self.seen = Some((row.clone(), sent));
        self.after = Some(sent);
    }

    /// How much longer stock may be sold.
    pub(super) fn sells_for(&self, now: Moment) -> Duration {
        let until = self.after.map(|after| after + SELLS_FOR);
        until.map_or(Duration::ZERO, |until| until.saturating_sub(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn row(id: &str, beat: i64) -> BoundRedis {
        BoundRedis {
            id: id.to_owned(),
            run_id: "run".to_owned(),
            beat,
            beat_before: 0,
        }
    }

    #[test]
    fn beat_of_another_replica_counts_from_the_read_before_it() {
        let mut beats = Beats::default();
        let mut left = |row: BoundRedis, sent| {
            beats.read(&row, sent * SECOND);
            beats.sells_for(sent * SECOND)
        };
        assert_eq!(left(row("a", 1), 10), Duration::ZERO);
        assert_eq!(left(row("a", 1), 12), Duration::ZERO);
        assert_eq!(left(row("a", 2), 13), 3 * SECOND);
        assert_eq!(left(row("a", 2), 14), 2 * SECOND);
        assert_eq!(left(row("a", 2), 17), Duration::ZERO);
        assert_eq!(left(row("a", 3), 18), 3 * SECOND);
        assert_eq!(left(row("b", 4), 18), Duration::ZERO);
    }

    #[test]
    fn own_beat_counts_from_its_sending() {
        let mut beats = Beats::default();
        beats.wrote(&row("a", 1), 10 * SECOND);
        assert_eq!(beats.sells_for(11 * SECOND), 3 * SECOND);
        beats.read(&row("a", 1), 12 * SECOND);
        assert_eq!(beats.sells_for(12 * SECOND), 2 * SECOND);
        assert_eq!(beats.sells_for(15 * SECOND), Duration::ZERO);
    }
}
