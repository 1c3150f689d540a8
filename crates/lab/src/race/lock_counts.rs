//! Lost locks and refused writes, read from `/metrics` of every target.
//!
//! Replicas count by strategy since their start, so a run's counts are the difference between two
//! readings. They include everything else that the targets did under the same strategy.

use std::fmt;

use serde::Serialize;

use super::RaceError;
use super::counts::Counts;
use super::replica_client::ReplicaClient;
use super::target::Target;
use stocklock_core::strategy::Strategy;

const LOST_LOCKS: &str = "stock_locks_lost_total";
const REFUSED_WRITES: &str = "stock_writes_refused_total";

/// The counts of one strategy. All are 0 if there was no fault and the lock excluded other holders.
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

    /// Reads the counts from an `OpenMetrics` text. A missing counter is 0.
    ///
    /// # Errors
    /// If the text is incomplete, or if a counter has an unexpected form.
    pub(super) fn parse(text: &str, strategy: Strategy) -> Result<Self, String> {
        let samples = text.strip_suffix("# EOF\n").ok_or("the text has no end")?;
        let mut counts = Self::default();
        for line in samples.lines() {
            let counted = match line.split(['{', ' ']).next() {
                Some(LOST_LOCKS) => &mut counts.lost_locks,
                Some(REFUSED_WRITES) => &mut counts.refused_writes,
                _ => continue,
            };
            let (name, reason, count) =
                sample(line).ok_or_else(|| format!("unexpected counter `{line}`"))?;
            if name == strategy.name() {
                counted.add(reason, count);
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
    /// `locks lost: 3 (expired), writes refused: 2 (fence)`, without the counts that are 0.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [
            ("locks lost", &self.lost_locks),
            ("writes refused", &self.refused_writes),
        ];
        let counts = counts.iter().filter(|(_, counts)| counts.total() > 0);
        let counts: Vec<_> = counts
            .map(|(name, counts)| format!("{name}: {counts}"))
            .collect();
        f.write_str(&counts.join(", "))
    }
}

/// Strategy, reason and count of `name{strategy="…",reason="…"} count`. No name needs an escape.
fn sample(line: &str) -> Option<(&str, &str, u64)> {
    let (_, rest) = line.split_once("{strategy=\"")?;
    let (strategy, rest) = rest.split_once("\",reason=\"")?;
    let (reason, count) = rest.split_once("\"} ")?;
    let is_name = |text: &str| text.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
    let valid = is_name(strategy) && is_name(reason);
    valid.then_some((strategy, reason, count.parse().ok()?))
}

/// One reading of every target.
#[derive(Debug)]
pub(super) struct Reading<'a> {
    strategy: Strategy,
    targets: Vec<(&'a Target, LockCounts)>,
}

impl<'a> Reading<'a> {
    /// Reads each target once, even if it is listed twice.
    ///
    /// # Errors
    /// If a target does not answer, or not in the expected form.
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

    /// The sum of all targets' counts since this reading, and the targets that no longer answer.
    ///
    /// # Errors
    /// If an answer has an unexpected form, or if a target was restarted.
    pub(super) async fn until_now(&self) -> Result<(LockCounts, Vec<&'a Target>), RaceError> {
        let mut sum = LockCounts::default();
        let mut silent = Vec::new();
        for (target, before) in &self.targets {
            let now = match ReplicaClient::new(target).lock_counts(self.strategy).await {
                Ok(now) => now,
                Err(RaceError::Unreachable(..)) => {
                    silent.push(*target);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let since = now.since(before);
            let since = since.ok_or_else(|| RaceError::Restarted(Box::new((*target).clone())))?;
            sum.lost_locks.merge(&since.lost_locks);
            sum.refused_writes.merge(&since.refused_writes);
        }
        Ok((sum, silent))
    }
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
        for (strategy, expected) in [
            (
                RedisLock,
                "locks lost: 4 (expired 3, stolen 1), writes refused: 2 (fence)",
            ),
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
}
