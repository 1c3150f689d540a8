//! The anomaly of a story: a comparison of values that the servers give.

use std::collections::BTreeMap;

use crate::Failure;

/// The values, by their names in the story.
pub(crate) type Values = BTreeMap<String, i64>;

/// A comparison of two sums, such as `sold + left != 10`.
#[derive(Debug, Clone)]
pub(crate) struct Anomaly {
    left: Vec<Term>,
    comparison: Comparison,
    right: Vec<Term>,
}

#[derive(Debug, Clone)]
enum Term {
    Number(i64),
    Value(&'static str),
}

#[derive(Debug, Clone, Copy)]
enum Comparison {
    Different,
    Equal,
    Less,
    Greater,
}

impl Anomaly {
    /// Parses `SUM != SUM`, or the same with `==`, `<` or `>`.
    pub(crate) fn parse(text: &'static str) -> Result<Self, Failure> {
        let comparisons = [
            (" != ", Comparison::Different),
            (" == ", Comparison::Equal),
            (" < ", Comparison::Less),
            (" > ", Comparison::Greater),
        ];
        let found = comparisons.iter().find_map(|(sign, comparison)| {
            let (left, right) = text.split_once(sign)?;
            Some((left, *comparison, right))
        });
        let (left, comparison, right) =
            found.ok_or_else(|| Failure::new(format!("`{text}` is not a comparison")))?;
        Ok(Self {
            left: terms(left),
            comparison,
            right: terms(right),
        })
    }

    /// Whether the values show the anomaly.
    pub(crate) fn holds(&self, values: &Values) -> Result<bool, Failure> {
        let (left, right) = (sum(&self.left, values)?, sum(&self.right, values)?);
        Ok(match self.comparison {
            Comparison::Different => left != right,
            Comparison::Equal => left == right,
            Comparison::Less => left < right,
            Comparison::Greater => left > right,
        })
    }
}

fn terms(text: &'static str) -> Vec<Term> {
    let terms = text.split(" + ").map(str::trim);
    terms
        .map(|term| term.parse().map_or(Term::Value(term), Term::Number))
        .collect()
}

fn sum(terms: &[Term], values: &Values) -> Result<i64, Failure> {
    let mut sum = 0;
    for term in terms {
        sum += match term {
            Term::Number(number) => *number,
            Term::Value(name) => *values
                .get(*name)
                .ok_or_else(|| Failure::new(format!("no evidence is named `{name}`")))?,
        };
    }
    Ok(sum)
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
