//! What a caller remarks on an operation. The ledger keeps remarks; nothing here interprets them.

/// One remark: 1 to 200 characters, no control characters.
#[derive(Debug, Clone, PartialEq, Eq)]
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

/// Declares [`Remarks`] from the names.
macro_rules! remarks {
    ($($(#[$doc:meta])+ $name:ident,)+) => {
        /// The remarks on one operation. Each is a column of the ledger.
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        pub struct Remarks { $($(#[$doc])+ pub $name: Option<Remark>,)+ }

        impl Remarks {
            /// The columns.
            pub const NAMES: [&str; [$(stringify!($name)),+].len()] = [$(stringify!($name)),+];

            /// The texts, in the order of [`Remarks::NAMES`].
            #[must_use]
            pub fn texts(&self) -> [Option<&str>; Self::NAMES.len()] {
                [$(self.$name.as_ref().map(Remark::as_str)),+]
            }

            /// The remarks with these texts, which the ledger has.
            #[must_use]
            pub fn recorded([$($name),+]: [Option<String>; Self::NAMES.len()]) -> Self {
                Self { $($name: $name.map(Remark),)+ }
            }
        }
    };
}

remarks! {
    /// Why a level was changed, in the caller's words.
    reason,
    /// An identifier of another system, such as an order number.
    reference,
}
