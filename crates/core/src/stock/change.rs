//! Changes of a level that are not sales: setting it, and adjusting it.

use super::{Home, Idempotency, OperationId, Revision, Sku, Warehouse};

/// Why a level was changed, in the words of whoever did: 1 to 200 characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason(String);

/// Something outside that a movement belongs to, such as an order number: 1 to 200 characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference(String);

macro_rules! short_text {
    ($name:ident, $what:literal) => {
        impl $name {
            /// Parses the text.
            ///
            /// # Errors
            /// A sentence that says what it may look like.
            pub fn parse(text: impl Into<String>) -> Result<Self, &'static str> {
                let text = text.into();
                if !(1..=200).contains(&text.chars().count()) || text.chars().any(char::is_control)
                {
                    return Err(concat!(
                        $what,
                        " must have 1 to 200 characters, no control characters"
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
    };
}
short_text!(Reason, "reason");
short_text!(Reference, "reference");

/// What must hold of the SKU for a change to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Precondition {
    /// It has levels already (`If-Match: *`).
    Exists,
    /// It has none yet (`If-None-Match: *`).
    Absent,
    /// Its levels are as the caller last saw them, in one of these states (`If-Match: "…"`).
    OneOf(Vec<Revision>),
}

/// Sets a level, creating it where there is none.
#[derive(Debug, Clone)]
pub struct LevelChange {
    /// Identity of the movement that records the difference.
    pub operation: OperationId,
    /// What.
    pub sku: Sku,
    /// Where.
    pub warehouse: Warehouse,
    /// The level that shall be.
    pub on_hand: i64,
    /// The new backorder limit; `None` keeps the old one (zero for a new level).
    pub backorder_limit: Option<i64>,
    /// The home, which an existing level must already have; `None` keeps it.
    pub home: Option<Home>,
    /// Why.
    pub reason: Option<Reason>,
    /// What the caller insists on.
    pub precondition: Option<Precondition>,
}

/// Adds to or takes from a level.
#[derive(Debug, Clone)]
pub struct Adjustment {
    /// Its identity.
    pub operation: OperationId,
    /// What.
    pub sku: Sku,
    /// Where.
    pub warehouse: Warehouse,
    /// Units that came in (positive) or went missing (negative); never zero.
    pub delta: i64,
    /// Why.
    pub reason: Reason,
    /// What it belongs to.
    pub reference: Option<Reference>,
    /// The caller's key, when one was sent.
    pub idempotency: Option<Idempotency>,
}
