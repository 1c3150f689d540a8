//! How often something happened, by reason.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

/// How often something happened, by reason; in JSON an object, empty where it never did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counts(BTreeMap<String, u64>);

impl Counts {
    /// For whatever reason.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// For this reason.
    #[must_use]
    pub fn of(&self, reason: &str) -> u64 {
        self.0.get(reason).copied().unwrap_or(0)
    }

    /// Counts `times` more; the reasons of 0 times are not kept.
    pub(super) fn add(&mut self, reason: &str, times: u64) {
        if times == 0 {
            return;
        }
        match self.0.get_mut(reason) {
            Some(count) => *count += times,
            None => drop(self.0.insert(reason.to_owned(), times)),
        }
    }

    /// Adds what another has counted.
    pub(super) fn merge(&mut self, other: &Self) {
        for (reason, times) in &other.0 {
            self.add(reason, *times);
        }
    }

    /// What came to it since it was `before`; `None` where it has become less.
    pub(super) fn since(&self, before: &Self) -> Option<Self> {
        let is_less = |(reason, times): (&String, &u64)| self.of(reason) < *times;
        if before.0.iter().any(is_less) {
            return None;
        }
        let mut since = Self::default();
        for (reason, times) in &self.0 {
            since.add(reason, times - before.of(reason));
        }
        Some(since)
    }
}

impl fmt::Display for Counts {
    /// `12 (version)`, or `12 (fence 2, version 10)`, or `0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.total())?;
        if self.0.is_empty() {
            return Ok(());
        }
        let alone = self.0.len() == 1;
        let reasons = self.0.iter().map(|(reason, times)| {
            if alone {
                reason.clone()
            } else {
                format!("{reason} {times}")
            }
        });
        write!(f, " ({})", reasons.collect::<Vec<_>>().join(", "))
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
    fn the_total_is_shown_with_its_reasons() {
        assert_eq!(counts([("version", 0)]).to_string(), "0");
        assert_eq!(counts([("version", 12)]).to_string(), "12 (version)");
        let two = counts([("version", 10), ("fence", 2)]);
        assert_eq!(two.to_string(), "12 (fence 2, version 10)");
    }

    #[test]
    fn a_difference_is_taken_reason_by_reason() {
        let before = counts([("a", 1), ("b", 2)]);
        let after = counts([("a", 1), ("b", 5), ("c", 1)]);
        assert_eq!(after.since(&before), Some(counts([("b", 3), ("c", 1)])));
        assert_eq!(before.since(&after), None);
        assert_eq!(counts([("a", 9)]).since(&before), None, "b is gone");
    }
}
