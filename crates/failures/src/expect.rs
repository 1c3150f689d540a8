//! What a step expects, and the answers that steps have named.

use std::collections::BTreeMap;
use std::fmt;

/// The answer of a step whose command waits.
pub(crate) const WAITS: &str = "waits";

/// What a step expects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) answer: Answer,
    /// The name under which later commands find the answer; several if it has several parts.
    pub(crate) name: Option<&'static str>,
}

/// The answer that a step expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Exactly this. `error CODE` is the error with this code.
    Text(&'static str),
    /// The server must list the connection as waiting.
    Waits,
    /// The command is repeated until it answers this.
    Until(&'static str),
    /// Any answer that is not an error.
    Any,
}

impl fmt::Display for Answer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) | Self::Until(text) => write!(out, "`{text}`"),
            Self::Waits => write!(out, "`{WAITS}`"),
            Self::Any => out.write_str("without an error"),
        }
    }
}

impl Expected {
    pub(crate) fn parse(text: &'static str) -> Self {
        let (text, name) = match text.split_once(" as ") {
            Some((text, name)) => (text, Some(name)),
            None => (text, None),
        };
        let answer = match text {
            WAITS => Answer::Waits,
            "*" => Answer::Any,
            text => text
                .strip_prefix("until ")
                .map_or(Answer::Text(text), Answer::Until),
        };
        Self { answer, name }
    }
}

/// Whether an answer is the expected one.
pub(crate) fn matches(expected: &str, answer: &str) -> bool {
    let is_error = expected.starts_with("error ");
    answer == expected || (is_error && answer.starts_with(&format!("{expected}:")))
}

/// The answers that steps have named.
#[derive(Debug, Default)]
pub(crate) struct Named(BTreeMap<String, Value>);

#[derive(Debug)]
struct Value {
    actual: String,
    /// What is shown: an answer that differs in each run is shown by its name.
    shown: String,
}

impl Named {
    /// `names` are one name, or one for each part of an answer with commas: `n, version`.
    pub(crate) fn insert(&mut self, names: &str, actual: &str, shown: &str) {
        let names: Vec<_> = names.split(", ").collect();
        let actual = actual.splitn(names.len(), ", ");
        let shown = shown.splitn(names.len(), ", ");
        for (name, (actual, shown)) in names.into_iter().zip(actual.zip(shown)) {
            let value = Value {
                actual: actual.to_owned(),
                shown: shown.to_owned(),
            };
            self.0.insert(name.to_owned(), value);
        }
    }

    /// A text with `{name}` and `{name-1}` replaced by the answers: as they are sent, and as they are
    /// shown.
    pub(crate) fn fill(&self, text: &str) -> (String, String) {
        let (mut sent, mut shown) = (text.to_owned(), text.to_owned());
        for (name, value) in &self.0 {
            let exact = format!("{{{name}}}");
            sent = sent.replace(&exact, &value.actual);
            shown = shown.replace(&exact, &value.shown);
            for (sign, factor) in [("-", -1), ("+", 1)] {
                let start = format!("{{{name}{sign}");
                while let Some((before, rest)) = sent.split_once(&start) {
                    let Some((by, after)) = rest.split_once('}') else {
                        break;
                    };
                    let Some(sum) = sum(&value.actual, by, factor) else {
                        break;
                    };
                    let term = format!("{start}{by}}}");
                    sent = format!("{before}{sum}{after}");
                    shown = shown.replacen(&term, &sum.to_string(), 1);
                }
            }
        }
        (sent, shown)
    }
}

fn sum(value: &str, by: &str, factor: i64) -> Option<i64> {
    Some(value.parse::<i64>().ok()? + factor * by.parse::<i64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_answers_fill_commands() {
        let mut named = Named::default();
        named.insert("a, v", "10, 1", "10, 1");
        named.insert("t", "f, 00", "<t>");
        let (sent, shown) = named.fill("SET n {a-1} {a} {v} {t} {b}");
        assert_eq!(sent, "SET n 9 10 1 f, 00 {b}");
        assert_eq!(shown, "SET n 9 10 1 <t> {b}");
    }

    #[test]
    fn errors_match_by_their_code() {
        assert!(matches("error 1213", "error 1213: Deadlock found"));
        assert!(!matches("error 121", "error 1213: Deadlock found"));
        assert!(!matches("1", "10"));
    }
}
