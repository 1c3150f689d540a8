//! Counters by reason.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

/// Counters by reason. In JSON an object, without the reasons that were counted 0 times.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counts(BTreeMap<String, u64>);

impl Counts {
    /// The sum of all counters.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// The counter of this reason.
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

    /// Adds all counters of `other`.
    pub(super) fn merge(&mut self, other: &Self) {
        for (reason, times) in &other.0 {
            self.add(reason, *times);
        }
    }

    /// The increase since `before`; `None` if a counter has decreased.
    pub(super) fn since(&self, before: &Self) -> Option<Self> {
        let mut since = self.clone();
        for (reason, times) in &before.0 {
            let count = since.0.get_mut(reason)?;
            *count = count.checked_sub(*times)?;
        }
        since.0.retain(|_, count| *count > 0);
        Some(since)
    }
}

impl fmt::Display for Counts {
    /// `12 (version)`, or `12 (fence 2, version 10)`, or `0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.total())?;
        let reasons: Vec<String> = match self.0.len() {
            0 => return Ok(()),
            1 => self.0.keys().cloned().collect(),
            _ => self
                .0
                .iter()
                .map(|(reason, times)| format!("{reason} {times}"))
                .collect(),
        };
        write!(f, " ({})", reasons.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts<const N: usize>(counts: [(&str, u64); N]) -> Counts {
        let mut all = Counts::default();
        for (reason, times) in counts {
            all.add(reason, times);
        }
        all
    }

    #[test]
    fn total_is_shown_with_its_reasons() {
        assert_eq!(counts([("version", 0)]).to_string(), "0");
        assert_eq!(counts([("version", 12)]).to_string(), "12 (version)");
        let two = counts([("version", 10), ("fence", 2)]);
        assert_eq!(two.to_string(), "12 (fence 2, version 10)");
    }

    #[test]
    fn difference_is_taken_for_each_reason() {
        let before = counts([("a", 1), ("b", 2)]);
        let after = counts([("a", 1), ("b", 5), ("c", 1)]);
        assert_eq!(after.since(&before), Some(counts([("b", 3), ("c", 1)])));
        assert_eq!(before.since(&after), None);
        assert_eq!(counts([("a", 9)]).since(&before), None, "b is gone");
    }
}
