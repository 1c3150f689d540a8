//! Finds in `/metrics` how many locks were lost and how many writes were refused, by reason.
//!
//! A replica counts by strategy since its start, so a run's counts are the difference between two
//! readings. The difference includes other requests that used the same strategy during the run.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use stocklock_core::strategy::Strategy;

const LOST_LOCKS: &str = "stock_locks_lost_total";
const LOCK_WAITS: &str = "stock_lock_wait_seconds_sum";
const REFUSED_WRITES: &str = "stock_writes_refused_total";

/// Counters by reason. In JSON this is an object that omits reasons with a count of 0.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counts(BTreeMap<String, u64>);

impl Counts {
    /// The sum of all counters.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// The counter of this reason; 0 if it was never counted.
    #[must_use]
    pub fn of(&self, reason: &str) -> u64 {
        self.0.get(reason).copied().unwrap_or(0)
    }

    /// Adds `times` to the counter of this reason.
    pub(super) fn add(&mut self, reason: &str, times: u64) {
        if times > 0 {
            *self.0.entry(reason.to_owned()).or_default() += times;
        }
    }

    /// Adds the increase between two readings; `None` if a counter has decreased.
    pub(super) fn add_increase(&mut self, before: &Self, now: &Self) -> Option<()> {
        if before
            .0
            .keys()
            .any(|reason| now.of(reason) < before.of(reason))
        {
            return None;
        }
        for (reason, times) in &now.0 {
            self.add(reason, times - before.of(reason));
        }
        Some(())
    }
}

impl fmt::Display for Counts {
    /// `12 (version)`, or `12 (fence 2, version 10)`, or `0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = |(reason, times): (&String, &u64)| match self.0.len() {
            1 => reason.clone(),
            _ => format!("{reason} {times}"),
        };
        let reasons: Vec<_> = self.0.iter().map(reason).collect();
        match &reasons[..] {
            [] => f.write_str("0"),
            reasons => write!(f, "{} ({})", self.total(), reasons.join(", ")),
        }
    }
}

/// The counts of one strategy. For a strategy with a lock, all are 0 if there was no fault and the
/// lock excluded other holders.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LockCounts {
    /// Locks that were lost before their release, by reason.
    pub lost_locks: Counts,
    /// Conditional writes that changed no row: the version had changed since it was read
    /// (`version`), or a later lock holder had written (`fence`).
    pub refused_writes: Counts,
}

impl LockCounts {
    /// Whether all counts are 0.
    #[must_use]
    pub fn none(&self) -> bool {
        *self == Self::default()
    }

    /// Reads the counts from an `OpenMetrics` text. A missing counter is 0. An incomplete text, or
    /// a counter in an unexpected form, is an error.
    pub(super) fn parse(text: &str, strategy: Strategy) -> Result<Self, String> {
        let samples = text.strip_suffix("# EOF\n").ok_or("the text is cut off")?;
        let mut counts = Self::default();
        for line in samples.lines() {
            let counted = match line.split(['{', ' ']).next() {
                Some(LOST_LOCKS) => &mut counts.lost_locks,
                Some(REFUSED_WRITES) => &mut counts.refused_writes,
                _ => continue,
            };
            let unexpected = || format!("unexpected counter `{line}`");
            let (name, reason, count) = sample(line).ok_or_else(unexpected)?;
            if name == strategy.name() {
                counted.add(reason, count);
            }
        }
        Ok(counts)
    }
}

impl fmt::Display for LockCounts {
    /// `locks lost: 3 (expired), writes refused: 2 (fence)`, without the counts that are 0.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (lost, refused) = (&self.lost_locks, &self.refused_writes);
        match (lost.total(), refused.total()) {
            (0, 0) => Ok(()),
            (_, 0) => write!(f, "locks lost: {lost}"),
            (0, _) => write!(f, "writes refused: {refused}"),
            (_, _) => write!(f, "locks lost: {lost}, writes refused: {refused}"),
        }
    }
}

/// Strategy, reason and count of `name{strategy="…",reason="…"} count`. Names with escaped
/// characters do not occur.
fn sample(line: &str) -> Option<(&str, &str, u64)> {
    let (_, rest) = line.split_once("{strategy=\"")?;
    let (strategy, rest) = rest.split_once("\",reason=\"")?;
    let (reason, count) = rest.split_once("\"} ")?;
    let valid = !strategy.contains('"') && !reason.contains('"');
    valid.then_some((strategy, reason, count.parse().ok()?))
}

/// Seconds that requests have waited for the strategy's lock, with any outcome, from an `OpenMetrics`
/// text.
pub(super) fn lock_wait_seconds(text: &str, strategy: Strategy) -> Result<f64, String> {
    let prefix = format!("{LOCK_WAITS}{{strategy=\"{strategy}\",");
    let waits = text.lines().filter(|line| line.starts_with(&prefix));
    let seconds = waits.map(|line| {
        let value = line.rsplit_once(' ').map(|(_, value)| value.parse::<f64>());
        let unexpected = || format!("unexpected counter `{line}`");
        value.and_then(Result::ok).ok_or_else(unexpected)
    });
    seconds.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use stocklock_core::strategy::Strategy::{Optimistic, RedisLock, SingleSql};

    const TEXT: &str = r#"# TYPE stock_locks_lost counter
stock_locks_lost_total{strategy="redis-lock",reason="expired"} 3
stock_locks_lost_total{strategy="redis-lock",reason="stolen"} 1
stock_locks_lost_total{strategy="zookeeper-lock",reason="session-expired"} 7
# TYPE stock_writes_refused counter
stock_writes_refused_total{strategy="optimistic",reason="version"} 4812
stock_writes_refused_total{strategy="redis-lock",reason="fence"} 2
http_responses_total{status="200"} 12
# EOF
"#;

    #[test]
    fn counters_of_one_strategy_are_read() {
        let redis = "locks lost: 4 (expired 3, stolen 1), writes refused: 2 (fence)";
        for (strategy, expected) in [
            (RedisLock, redis),
            (Optimistic, "writes refused: 4812 (version)"),
            (SingleSql, ""),
        ] {
            let counts = LockCounts::parse(TEXT, strategy).unwrap();
            assert_eq!(counts.to_string(), expected);
        }
    }

    #[test]
    fn unexpected_texts_are_errors() {
        for text in [
            "",
            "<html></html>",
            TEXT.strip_suffix("# EOF\n").unwrap(),
            "stock_locks_lost_total 3\n# EOF\n",
            "stock_locks_lost_total{strategy=\"redis-lock\",reason=\"expired\"} -1\n# EOF\n",
            "stock_locks_lost_total{strategy=\"a\",zone=\"b\",reason=\"c\"} 1\n# EOF\n",
        ] {
            assert!(LockCounts::parse(text, RedisLock).is_err(), "{text:?}");
        }
    }

    #[test]
    fn lock_waits_of_all_outcomes_are_added() {
        let text = "stock_lock_wait_seconds_sum{strategy=\"redis-lock\",outcome=\"free\"} 0.5\n\
                    stock_lock_wait_seconds_sum{strategy=\"redis-lock\",outcome=\"contended\"} 1.25\n\
                    stock_lock_wait_seconds_sum{strategy=\"zookeeper-lock\",outcome=\"free\"} 9\n\
                    stock_lock_wait_seconds_count{strategy=\"redis-lock\",outcome=\"free\"} 7\n";
        assert_eq!(lock_wait_seconds(text, RedisLock), Ok(1.75));
        assert_eq!(lock_wait_seconds(text, SingleSql), Ok(0.0));
        assert!(lock_wait_seconds(&text.replace("0.5", "x"), RedisLock).is_err());
    }

    #[test]
    fn increase_is_added_for_each_reason() {
        let counts = |a, b, c| {
            let mut counts = Counts::default();
            counts.add("a", a);
            counts.add("b", b);
            counts.add("c", c);
            counts
        };
        let (before, after) = (counts(1, 2, 0), counts(1, 5, 1));
        let mut sum = counts(0, 1, 0);
        assert!(sum.add_increase(&before, &after).is_some());
        assert_eq!(sum.to_string(), "5 (b 4, c 1)");
        assert!(sum.add_increase(&after, &before).is_none());
        assert!(sum.add_increase(&before, &counts(9, 0, 0)).is_none());
    }
}
