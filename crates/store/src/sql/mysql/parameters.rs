//! Converts the numbered parameters `$1` … of a statement, because the driver has positional ones.

use sqlx::MySql;
use sqlx::query::Query;

use crate::sql::statement::{self, Statement, Value, trusted};

/// A statement with its values for the driver.
pub(super) fn query(
    statement: Statement,
    values: &[Value<'_>],
) -> sqlx::Result<Query<'static, MySql, <MySql as sqlx::Database>::Arguments>> {
    let Statement { text, persistent } = statement;
    let (text, values) = positional(text.as_str(), values);
    let text = trusted(text);
    statement::query(Statement { text, persistent }, &values)
}

/// Replaces each parameter by a `?`. Returns the values in the order of the text.
fn positional<'a>(numbered: &str, values: &[Value<'a>]) -> (String, Vec<Value<'a>>) {
    let mut ordered = Vec::with_capacity(values.len());
    let text = replace(numbered, |text, number| {
        ordered.push(values[number - 1]);
        text.push('?');
    });
    (text, ordered)
}

/// Replaces each parameter by what `push` adds for its number.
pub(super) fn replace(numbered: &str, mut push: impl FnMut(&mut String, usize)) -> String {
    let mut parts = numbered.split('$');
    let mut text = String::with_capacity(2 * numbered.len());
    text.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let digits = part.bytes().take_while(u8::is_ascii_digit).count();
        match part[..digits].parse() {
            Ok(number) => push(&mut text, number),
            // A path in JSON.
            Err(_) => text.push('$'),
        }
        text.push_str(&part[digits..]);
    }
    text
}

#[cfg(test)]
pub(super) mod tests {
    use std::fmt::Write as _;

    use super::*;

    /// Replaces each parameter by the literal of its value. The texts need no escapes.
    pub(in crate::sql::mysql) fn with_literals(numbered: &str, values: &[Value<'_>]) -> String {
        replace(numbered, |text, number| match values[number - 1] {
            Value::Int(Some(number)) => *text += &number.to_string(),
            Value::Text(Some(plain)) => text.extend(["'", plain, "'"]),
            Value::Bytes(Some(bytes)) => push_bytes(text, bytes),
            Value::Uuid(Some(uuid)) => push_bytes(text, uuid.as_bytes()),
            Value::Int(None) | Value::Text(None) | Value::Bytes(None) | Value::Uuid(None) => {
                text.push_str("NULL");
            }
        })
    }

    fn push_bytes(text: &mut String, bytes: &[u8]) {
        let digits = bytes.iter().fold(String::new(), |mut digits, byte| {
            write!(digits, "{byte:02x}").expect("memory");
            digits
        });
        text.extend(["x'", &digits, "'"]);
    }

    #[test]
    fn numbered_parameters_become_positional() {
        let values: Vec<Value<'_>> = (1..=10_i64).map(Value::from).collect();
        let numbered = "SELECT $2, '$[0]', $1 WHERE a = $2 AND b = $10";
        let (text, values) = positional(numbered, &values);
        assert_eq!(text, "SELECT ?, '$[0]', ? WHERE a = ? AND b = ?");
        let numbers = values.iter().map(|value| match value {
            Value::Int(Some(number)) => *number,
            other => panic!("{other:?}"),
        });
        assert_eq!(numbers.collect::<Vec<_>>(), [2, 1, 2, 10]);
    }
}
