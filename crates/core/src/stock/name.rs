//! Names: SKU and warehouse, 1 to 64 Unicode letters, combining marks or digits plus `.`, `_` and `-`, in
//! normal form NFC. Another form is refused, so that no two names differ only in how a mark is encoded.
//!
//! Any script is allowed: `上海仓` is a warehouse, and so is `हिन्दी`, whose vowels are marks. Names are
//! case-sensitive.
//!
//! Characters to which Unicode has given no meaning are accepted too. A later version may make them letters,
//! which a replica with an older table must know. And a list of what is refused is short enough for a
//! regular expression, while the letters are 140,000.

use std::fmt;
use std::iter::once;
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};
use unicode_normalization::{IsNormalized, is_nfc, is_nfc_quick};
use unicode_properties::{GeneralCategory, GeneralCategoryGroup as Group, UnicodeGeneralCategory};

/// The maximum length of a name in characters.
pub const MAX_NAME_CHARS: usize = 64;

/// Why a text is not a valid name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {problem}")]
pub struct InvalidName {
    what: &'static str,
    problem: &'static str,
}

/// A stock keeping unit: what is sold.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct Sku(Arc<str>);

impl Sku {
    /// Parses a SKU.
    ///
    /// # Errors
    /// If `text` is not a valid name, or is `deduct`, which is the route `/stock/deduct`.
    pub fn parse(text: impl Into<String>) -> Result<Self, InvalidName> {
        let text = parse_name("sku", text.into())?;
        if text == "deduct" {
            return Err(InvalidName {
                what: "sku",
                problem: "must not be `deduct`, which is a route",
            });
        }
        Ok(Self(text.into()))
    }

    /// The SKU as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A warehouse: the place where units are stored.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct Warehouse(Arc<str>);

impl Warehouse {
    /// Parses a warehouse's name.
    ///
    /// # Errors
    /// If `text` is not a valid name.
    pub fn parse(text: impl Into<String>) -> Result<Self, InvalidName> {
        Ok(Self(parse_name("warehouse", text.into())?.into()))
    }

    /// The warehouse as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Warehouse {
    fn default() -> Self {
        Self("main".into())
    }
}

/// Whether a name may have this character. Some letters are never in normal form, for example the Kelvin sign.
#[must_use]
pub fn is_name_char(c: char) -> bool {
    // Most names are ASCII, and a look-up in the tables of Unicode is a search.
    if c.is_ascii() {
        return c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    }
    let is_listed = match c.general_category_group() {
        Group::Letter | Group::Mark | Group::Number => true,
        Group::Other => match c.general_category() {
            GeneralCategory::PrivateUse => true,
            GeneralCategory::Unassigned => !is_noncharacter(c),
            _ => false,
        },
        Group::Punctuation | Group::Symbol | Group::Separator => false,
    };
    is_listed && is_nfc_quick(once(c)) != IsNormalized::No
}

/// Whether no version of Unicode ever gives it a meaning.
fn is_noncharacter(c: char) -> bool {
    matches!(c, '\u{fdd0}'..='\u{fdef}') || u32::from(c) & 0xfffe == 0xfffe
}

fn parse_name(what: &'static str, text: String) -> Result<String, InvalidName> {
    let problem = if text.is_empty() {
        "must not be empty"
    } else if text.chars().count() > MAX_NAME_CHARS {
        "must have at most 64 characters"
    } else if !text.chars().all(is_name_char) {
        "may have letters, marks, digits and `.`, `_`, `-` only"
    } else if !is_nfc(&text) {
        "must be in the Unicode normal form NFC"
    } else if text.chars().all(|c| c == '.') {
        // URL clients resolve `/stock/.` and `/stock/..` before they send them.
        "must not consist of dots alone"
    } else {
        return Ok(text);
    };
    Err(InvalidName { what, problem })
}

macro_rules! text_conversions {
    ($name:ident) => {
        impl TryFrom<String> for $name {
            type Error = InvalidName;
            fn try_from(text: String) -> Result<Self, InvalidName> {
                Self::parse(text)
            }
        }
        impl From<$name> for String {
            fn from(name: $name) -> String {
                (*name.0).to_owned()
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}
text_conversions!(Sku);
text_conversions!(Warehouse);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_any_script_are_accepted() {
        for name in [
            "1001",
            "上海仓",
            "Größe-4.5_b",
            &"é".repeat(64),
            "हिन्दी",
            "শাড়ি",
            "தமிழ்",
            "เสื้อยืด",
            "မြန်မာ",
            "½",
            // A letter that Unicode has not assigned yet may become one.
            "\u{378}",
        ] {
            assert_eq!(Warehouse::parse(name).unwrap().as_str(), name);
        }
    }

    #[test]
    fn invalid_names_are_refused() {
        for name in [
            "",
            " ",
            "a b",
            "a/b",
            "..",
            ".",
            "a\0",
            "a'b",
            "😀",
            "a\u{200d}b",
            "\u{ffff}",
            "a\u{a0}b",
            "“a”",
            "€",
            // Symbols, although `char::is_alphanumeric` holds for them.
            "Ⓐ",
            "🄰",
            &"a".repeat(65),
            // `é` and `한` decomposed, and the Kelvin sign, which is composed to `K`.
            "e\u{301}",
            "\u{1112}\u{1161}\u{11ab}",
            "\u{212a}",
        ] {
            assert!(Warehouse::parse(name).is_err(), "{name:?}");
            assert!(Sku::parse(name).is_err(), "{name:?}");
        }
        assert!(Sku::parse("deduct").is_err());
    }
}
