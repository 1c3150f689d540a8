//! The anomaly of a story: a comparison of values that the servers give.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};

/// The values, by their names in the story.
pub(crate) type Values = BTreeMap<String, i64>;

type Comparison = fn(&i64, &i64) -> bool;

const COMPARISONS: [(&str, Comparison); 4] = [
    (" != ", i64::ne),
    (" == ", i64::eq),
    (" < ", i64::lt),
    (" > ", i64::gt),
];

/// A comparison of two sums, such as `sold + left != 10`.
#[derive(Debug, Clone)]
pub(crate) struct Anomaly {
    left: &'static str,
    compare: Comparison,
    right: &'static str,
}

impl Anomaly {
    /// Parses `SUM != SUM`, or the same with `==`, `<` or `>`.
    pub(crate) fn parse(text: &'static str) -> Result<Self> {
        let found = COMPARISONS.iter().find_map(|(sign, compare)| {
            let (left, right) = text.split_once(sign)?;
            Some(Self {
                left,
                compare: *compare,
                right,
            })
        });
        found.with_context(|| format!("`{text}` is not a comparison"))
    }

    /// Whether the values show the anomaly.
    pub(crate) fn holds(&self, values: &Values) -> Result<bool> {
        let (left, right) = (sum(self.left, values)?, sum(self.right, values)?);
        Ok((self.compare)(&left, &right))
    }
}

/// The sum of numbers and values.
fn sum(terms: &str, values: &Values) -> Result<i64> {
    let term = |term: &str| {
        let number = term.parse().ok().or_else(|| values.get(term).copied());
        number.with_context(|| format!("no evidence is named `{term}`"))
    };
    terms.split(" + ").map(str::trim).map(term).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anomaly_compares_sums_of_values() {
        let values = Values::from([("sold".into(), 2), ("left".into(), 9)]);
        let holds = |text| Anomaly::parse(text).unwrap().holds(&values).unwrap();
        assert!(holds("sold + left != 10"));
        assert!(holds("sold + left == 11"));
        assert!(!holds("left < 0"));
        assert!(holds("left > sold"));
        assert!(Anomaly::parse("sold").is_err());
        assert!(Anomaly::parse("lost > 0").unwrap().holds(&values).is_err());
    }
}
