//! What the targets count of their locks: how many were lost, and how many writes were refused.
//!
//! A replica counts in `/metrics`, by strategy, from its start on; a run's own figures are the
//! difference between two readings of every target. Whatever else the targets do meanwhile under
//! the same strategy is in it.

use std::fmt;

use serde::Serialize;

use super::RaceError;
use super::counts::Counts;
use super::replica_client::ReplicaClient;
use super::target::Target;
use stocklock_core::strategy::Strategy;

const LOST_LOCKS: &str = "stock_locks_lost_total";
const REFUSED_WRITES: &str = "stock_writes_refused_total";

/// What was counted of one strategy's locks. Without a fault all of it is 0: that is the proof that
/// the lock itself keeps others out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LockCounts {
    /// Locks that were lost before they were released, by reason.
    pub lost_locks: Counts,
    /// Writes that changed no row: its version had moved on since it was read (`version`), or a
    /// later holder of the lock had left its fence there (`fence`).
    pub refused_writes: Counts,
}

impl LockCounts {
    /// Whether nothing was counted.
    #[must_use]
    pub fn none(&self) -> bool {
        *self == Self::default()
    }

    /// Reads them from an `OpenMetrics` text of ours; what it does not have was never counted.
    ///
    /// # Errors
    /// Why the text is none of ours.
    pub(super) fn parse(text: &str, strategy: Strategy) -> Result<Self, String> {
        let samples = text.strip_suffix("# EOF\n").ok_or("it has no end")?;
        let mut counts = Self::default();
        for line in samples.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next();
            let counted = match name {
                Some(LOST_LOCKS) => &mut counts.lost_locks,
                Some(REFUSED_WRITES) => &mut counts.refused_writes,
                _ => continue,
            };
            let sample = sample(line).ok_or_else(|| format!("`{line}` is no counter of ours"))?;
            if sample.strategy == strategy.name() {
                counted.add(sample.reason, sample.count);
            }
        }
        Ok(counts)
    }

    fn since(&self, before: &Self) -> Option<Self> {
        Some(Self {
            lost_locks: self.lost_locks.since(&before.lost_locks)?,
            refused_writes: self.refused_writes.since(&before.refused_writes)?,
        })
    }
}

impl fmt::Display for LockCounts {
    /// `locks lost: 3 (expired), writes refused: 2 (fence)`, without what is 0.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let figures = [
            ("locks lost", &self.lost_locks),
            ("writes refused", &self.refused_writes),
        ];
        let figures = figures.iter().filter(|(_, counts)| counts.total() > 0);
        let figures: Vec<_> = figures
            .map(|(what, counts)| format!("{what}: {counts}"))
            .collect();
        f.write_str(&figures.join(", "))
    }
}

/// A line of the text.
struct Sample<'a> {
    strategy: &'a str,
    reason: &'a str,
    count: u64,
}

/// `name{strategy="…",reason="…"} count`; no name of ours needs an escape.
fn sample(line: &str) -> Option<Sample<'_>> {
    let (_, rest) = line.split_once("{strategy=\"")?;
    let (strategy, rest) = rest.split_once("\",reason=\"")?;
    let (reason, count) = rest.split_once("\"} ")?;
    let is_name = |text: &str| text.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
    if !is_name(strategy) || !is_name(reason) {
        return None;
    }
    Some(Sample {
        strategy,
        reason,
        count: count.parse().ok()?,
    })
}

/// One reading of every target.
#[derive(Debug)]
pub(super) struct Reading<'a> {
    strategy: Strategy,
    targets: Vec<(&'a Target, LockCounts)>,
}

impl<'a> Reading<'a> {
    /// Asks each target, even one that is named twice, once.
    ///
    /// # Errors
    /// When a target does not answer, or not in the form that it should.
    pub(super) async fn take(targets: &'a [Target], strategy: Strategy) -> Result<Self, RaceError> {
        let mut reading = Self {
            strategy,
            targets: Vec::with_capacity(targets.len()),
        };
        for (position, target) in targets.iter().enumerate() {
            if !targets[..position].contains(target) {
                let counts = ReplicaClient::new(target).lock_counts(strategy).await?;
                reading.targets.push((target, counts));
            }
        }
        Ok(reading)
    }

    /// What all targets together have counted since this reading.
    ///
    /// # Errors
    /// Those of [`Reading::take`], and [`RaceError::Restarted`].
    pub(super) async fn until_now(&self) -> Result<LockCounts, RaceError> {
        let mut all = LockCounts::default();
        for (target, before) in &self.targets {
            let now = ReplicaClient::new(target)
                .lock_counts(self.strategy)
                .await?;
            let since = now.since(before).ok_or_else(|| RaceError::Restarted {
                target: target.to_string(),
            })?;
            all.lost_locks.merge(&since.lost_locks);
            all.refused_writes.merge(&since.refused_writes);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stocklock_core::strategy::Strategy::{Optimistic, RedisLock, SingleSql};

    const TEXT: &str = r#"# HELP stock_locks_lost Locks lost before they were released, by reason.
# TYPE stock_locks_lost counter
stock_locks_lost_total{strategy="redis-lock",reason="expired"} 3
stock_locks_lost_total{strategy="redis-lock",reason="stolen"} 1
stock_locks_lost_total{strategy="zookeeper-lock",reason="session-expired"} 7
# TYPE stock_writes_refused counter
stock_writes_refused_total{strategy="optimistic",reason="version"} 4812
stock_writes_refused_total{strategy="redis-lock",reason="fence"} 2
# TYPE http_responses counter
http_responses_total{status="200"} 12
stock_lock_hold_seconds_sum{strategy="redis-lock"} 0.25
# EOF
"#;

    #[test]
    fn a_strategys_own_counters_are_read() {
        let read = |strategy| LockCounts::parse(TEXT, strategy).unwrap().to_string();
        assert_eq!(
            read(RedisLock),
            "locks lost: 4 (expired 3, stolen 1), writes refused: 2 (fence)"
        );
        assert_eq!(read(Optimistic), "writes refused: 4812 (version)");
        assert!(LockCounts::parse(TEXT, SingleSql).unwrap().none());
    }

    #[test]
    fn what_is_not_ours_is_refused() {
        let cut = TEXT.strip_suffix("# EOF\n").unwrap();
        for text in [
            "",
            "<html></html>",
            cut,
            "stock_locks_lost_total 3\n# EOF\n",
            "stock_locks_lost_total{reason=\"expired\"} 3\n# EOF\n",
            "stock_locks_lost_total{strategy=\"redis-lock\",reason=\"expired\"} -1\n# EOF\n",
            "stock_locks_lost_total{strategy=\"redis-lock\",reason=\"expired\"} many\n# EOF\n",
            "stock_locks_lost_total{strategy=\"a\",zone=\"b\",reason=\"c\"} 1\n# EOF\n",
        ] {
            assert!(LockCounts::parse(text, RedisLock).is_err(), "{text:?}");
        }
    }
}
