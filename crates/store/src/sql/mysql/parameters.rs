//! Puts values in the place of the parameters `$1` … of a statement: a `?` and a value to bind, or a
//! literal in the text.
//!
//! No literal can end its quotes: plain letters and digits are quoted, every other text and all
//! bytes are written as hexadecimal digits.

use crate::sql::dialect::Value;

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Replaces each parameter by a `?`. Returns the values in the order of the text.
pub(super) fn positional<'a>(numbered: &str, values: &[Value<'a>]) -> (String, Vec<Value<'a>>) {
    let mut ordered = Vec::with_capacity(values.len());
    let text = replace(numbered, |text, number| {
        ordered.push(values[number - 1]);
        text.push('?');
    });
    (text, ordered)
}

/// Replaces each parameter by the literal of its value.
pub(super) fn with_literals(numbered: &str, values: &[Value<'_>]) -> String {
    replace(numbered, |text, number| push(text, values[number - 1]))
}

/// The literals of a row, in parentheses.
pub(super) fn literals(row: &[Value<'_>]) -> String {
    let mut text = String::from("(");
    for (number, value) in row.iter().enumerate() {
        if number > 0 {
            text.push_str(", ");
        }
        push(&mut text, *value);
    }
    text + ")"
}

fn replace(numbered: &str, mut push: impl FnMut(&mut String, usize)) -> String {
    let mut parts = numbered.split('$');
    let mut text = String::with_capacity(2 * numbered.len());
    text.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let digits = part.bytes().take_while(u8::is_ascii_digit).count();
        push(&mut text, part[..digits].parse().unwrap_or_default());
        text.push_str(&part[digits..]);
    }
    text
}

fn push(text: &mut String, value: Value<'_>) {
    match value {
        Value::Int(Some(number)) => text.push_str(&number.to_string()),
        Value::Text(Some(plain)) if is_plain(plain) => text.extend(["'", plain, "'"]),
        Value::Text(Some(other)) => {
            // The literal names its character set, so that the server can use the columns' indexes.
            text.push_str("_utf8mb4 ");
            push_bytes(text, other.as_bytes());
        }
        Value::Bytes(Some(bytes)) => push_bytes(text, bytes),
        Value::Uuid(Some(uuid)) => push_bytes(text, uuid.as_bytes()),
        Value::Int(None) | Value::Text(None) | Value::Bytes(None) | Value::Uuid(None) => {
            text.push_str("NULL");
        }
    }
}

/// Whether a text has only characters that mean themselves between quotes, for every `sql_mode` and
/// character set of the connection. The server parses such a literal in half the time.
fn is_plain(text: &str) -> bool {
    text.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':'))
}

/// Without `write!`, which takes many times as long, and a message has hundreds of digits.
fn push_bytes(text: &mut String, bytes: &[u8]) {
    text.push_str("x'");
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 0xf)]));
    }
    text.push('\'');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::dialect::values;

    #[test]
    fn numbered_parameters_become_positional() {
        let values: Vec<Value<'_>> = (1..=10_i64).map(Value::from).collect();
        let (text, values) = positional("SELECT $2, $1 WHERE a = $2 AND b = $10", &values);
        assert_eq!(text, "SELECT ?, ? WHERE a = ? AND b = ?");
        let numbers = values.iter().map(|value| match value {
            Value::Int(Some(number)) => *number,
            other => panic!("{other:?}"),
        });
        assert_eq!(numbers.collect::<Vec<_>>(), [2, 1, 2, 10]);
    }

    #[test]
    fn no_text_can_end_its_quotes() {
        let hostile = [
            "it's",
            "\\'; DROP TABLE stock; --",
            "上海仓",
            "a\\",
            "a b",
            "%",
            "\0",
            "$1",
        ];
        for text in hostile {
            let literal = with_literals("$1", &values![text]);
            let digits = literal.strip_prefix("_utf8mb4 x'").unwrap();
            let digits = digits.strip_suffix('\'').unwrap();
            assert_eq!(digits.len(), 2 * text.len());
            assert!(digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        }
        let values = values!["A-1_b.c:9", "", &[0, 0x27, 0xff][..], None::<i64>, -3];
        let text = with_literals("$1 $2 $3 $4 $5", &values);
        assert_eq!(text, "'A-1_b.c:9' '' x'0027ff' NULL -3");
        assert_eq!(literals(&values[3..]), "(NULL, -3)");
    }
}
