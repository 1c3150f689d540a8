//! What a caller remarks on an operation. The ledger keeps remarks; nothing here interprets them.

use serde::Serialize;

/// One remark: 1 to 200 characters, no control characters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Remark(String);

impl Remark {
    /// The maximum length in characters.
    pub const MAX_CHARS: usize = 200;

    /// The characters, as a regular expression of ECMA-262.
    pub const PATTERN: &str = r"^[^\u0000-\u001f\u007f-\u009f]+$";

    /// Parses the remark with this name.
    ///
    /// # Errors
    /// A sentence that describes a valid remark.
    pub fn parse(name: &str, text: impl Into<String>) -> Result<Self, String> {
        let text = text.into();
        if !(1..=Self::MAX_CHARS).contains(&text.chars().count())
            || text.chars().any(char::is_control)
        {
            return Err(format!(
                "{name} must have 1 to 200 characters, no control characters"
            ));
        }
        Ok(Self(text))
    }

    /// A remark with this text, which the ledger has.
    #[must_use]
    pub fn recorded(text: String) -> Self {
        Self(text)
    }

    /// The text itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<Remark> for String {
    fn from(remark: Remark) -> String {
        remark.0
    }
}

/// The remarks on one operation. Each is a column of the ledger.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Remarks {
    /// Why a level was changed, in the caller's words.
    pub reason: Option<Remark>,
    /// An identifier of another system, such as an order number.
    pub reference: Option<Remark>,
}

impl Remarks {
    /// The texts, in the order of the fields.
    #[must_use]
    pub fn texts(&self) -> [Option<&str>; 2] {
        [&self.reason, &self.reference].map(|remark| remark.as_ref().map(Remark::as_str))
    }
}
