//! Holds: units that are set aside for a caller, until they are sold, given back, or their time is over.
//!
//! A line of a hold is open as long as the store has its row. The operation that ends it deletes the row, so
//! it ends once. Only an expired line can be sold afterwards, if the units are available.

use super::{MovementKind, OperationId, Quantity, Remark, Sku, Warehouse};

/// The end of a hold that does not expire.
pub const NEVER: i64 = i64::MAX;

/// Units to set aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holding {
    /// How many.
    pub quantity: Quantity,
    /// For how many milliseconds. `None`: until they are sold or given back.
    pub lasts: Option<i64>,
}

impl Holding {
    /// When it ends if it begins at `now`: milliseconds since 1970, or [`NEVER`].
    #[must_use]
    pub fn expires_at(self, now: i64) -> i64 {
        self.lasts.map_or(NEVER, |lasts| now.saturating_add(lasts))
    }
}

/// The end of a line of a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ending {
    /// The operation id of the hold.
    pub hold: OperationId,
    /// The line of the hold. The line of its end has the same number.
    pub line: i64,
    /// How it ends.
    pub how: How,
    /// The units of its row, if that was there when it was read without a lock. They never change.
    pub open: Option<i64>,
}

/// How a line of a hold ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Units are sold. Those that were held beyond them are given back.
    Confirm {
        /// How many units are sold.
        units: i64,
        /// Whether they may be sold although the time of the hold is over.
        late: bool,
    },
    /// All are given back.
    Release,
    /// The same, because the time of the hold is over. Refused if it is not.
    Expire,
}

/// A line of a hold that is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenHold {
    /// The operation id of the hold.
    pub hold: OperationId,
    /// The line.
    pub line: i64,
    /// The SKU.
    pub sku: Sku,
    /// The warehouse.
    pub warehouse: Warehouse,
    /// Units that are held.
    pub units: i64,
    /// When it ends, on the database's clock: milliseconds since 1970, or [`NEVER`].
    pub expires_at: i64,
    /// That clock, when the line was read.
    pub now: i64,
    /// The reference of the hold. Its sale gets it, too.
    pub reference: Option<Remark>,
}

impl OpenHold {
    /// Whether its time is over.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.expires_at <= self.now
    }
}

/// A page of open lines of holds, in the order of their ends.
#[derive(Debug, Clone)]
pub struct HoldFilter {
    /// The level. `None`: all.
    pub level: Option<(Sku, Warehouse)>,
    /// The last one of the page before.
    pub after: Option<HoldCursor>,
    /// Only those whose time is over.
    pub only_due: bool,
    /// The maximum number.
    pub limit: u32,
}

/// A place in the order of the ends of holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldCursor {
    /// [`OpenHold::expires_at`].
    pub expires_at: i64,
    /// The operation id of the hold.
    pub hold: OperationId,
    /// The line.
    pub line: i64,
}

impl From<&OpenHold> for HoldCursor {
    fn from(open: &OpenHold) -> Self {
        Self {
            expires_at: open.expires_at,
            hold: open.hold,
            line: open.line,
        }
    }
}

/// Whether a hold whose time is over can still be sold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Late {
    /// If the units are available.
    Allowed,
    /// Never.
    Refused,
}

/// What has become of a line of a hold that ended with a movement of this kind.
#[must_use]
pub fn state(kind: &MovementKind) -> &'static str {
    match kind {
        MovementKind::Deducted => "confirmed",
        MovementKind::Expired => "expired",
        _ => "released",
    }
}
