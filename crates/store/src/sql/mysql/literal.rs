//! Values in the text of a statement.
//!
//! None can end its quotes: plain letters and digits are quoted, every other text and all bytes are
//! written as hexadecimal digits.

use std::fmt::{self, Display, Formatter, Write};

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// A text. The literal names its character set, so that the server can use the columns' indexes.
#[derive(Clone, Copy)]
pub(super) struct Text<'a>(pub(super) &'a str);

/// Bytes.
pub(super) struct Bytes<'a>(pub(super) &'a [u8]);

/// A value, or none.
pub(super) struct Nullable<T>(pub(super) Option<T>);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if is_plain(self.0) {
            write!(f, "'{}'", self.0)
        } else {
            write!(f, "_utf8mb4 {}", Bytes(self.0.as_bytes()))
        }
    }
}

/// Whether a text has only characters that mean themselves between quotes, for every `sql_mode` and
/// character set of the connection. The server parses such a literal in half the time.
fn is_plain(text: &str) -> bool {
    text.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':'))
}

impl Display for Bytes<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("x'")?;
        for byte in self.0 {
            // `write!` of a number takes many times as long, and a message has hundreds of digits.
            f.write_char(char::from(DIGITS[usize::from(byte >> 4)]))?;
            f.write_char(char::from(DIGITS[usize::from(byte & 0xf)]))?;
        }
        f.write_str("'")
    }
}

impl<T: Display> Display for Nullable<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(value) => value.fmt(f),
            None => f.write_str("NULL"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_can_end_its_quotes() {
        for text in [
            "it's",
            "\\'; DROP TABLE stock; --",
            "上海仓",
            "a\\",
            "a b",
            "%",
            "\0",
        ] {
            let literal = Text(text).to_string();
            let digits = literal.strip_prefix("_utf8mb4 x'").unwrap();
            let digits = digits.strip_suffix('\'').unwrap();
            assert_eq!(digits.len(), 2 * text.len());
            assert!(digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        }
        assert_eq!(Text("A-1_b.c:9").to_string(), "'A-1_b.c:9'");
        assert_eq!(Text("").to_string(), "''");
        assert_eq!(Bytes(&[0, 0x27, 0xff]).to_string(), "x'0027ff'");
        assert_eq!(Nullable::<i64>(None).to_string(), "NULL");
        assert_eq!(Nullable(Some(-3)).to_string(), "-3");
    }
}
