//! The level of a SKU in a warehouse, and what a caller can require of it before a change.

use std::fmt;

use sha2::{Digest, Sha256};

use super::{Sku, Warehouse};

/// The largest absolute value of a number of a level, in units. It is far below the limits of 64 bits
/// and of the integers that JSON readers represent exactly.
pub const MAX_UNITS: i64 = 1_000_000_000_000;

/// The maximum number of lines of a request, and of levels of an operation.
pub const MAX_LINES: usize = 100;

/// One row of stock, as read at one instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StockLevel {
    /// The SKU.
    pub sku: Sku,
    /// The warehouse.
    pub warehouse: Warehouse,
    /// Units on the shelf; below zero by at most `backorder_limit`.
    pub on_hand: i64,
    /// Units promised, not yet taken.
    pub held: i64,
    /// Units that may be sold beyond the units on hand.
    pub backorder_limit: i64,
    /// Increases by at least one with every change of the row.
    pub version: i64,
}

impl StockLevel {
    /// A level that has no movement yet.
    #[must_use]
    pub fn empty(sku: Sku, warehouse: Warehouse) -> Self {
        Self {
            sku,
            warehouse,
            on_hand: 0,
            held: 0,
            backorder_limit: 0,
            version: 0,
        }
    }

    /// Units that may still be deducted: `on_hand - held + backorder_limit`.
    #[must_use]
    pub fn available(&self) -> i64 {
        self.on_hand - self.held + self.backorder_limit
    }
}

/// The state of all levels of a SKU, for `ETag` and `If-Match`. If two revisions are equal, no
/// level changed in between.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revision(String);

impl Revision {
    /// The revision of `levels`: all levels of one SKU, in warehouse order.
    #[must_use]
    pub fn of(levels: &[StockLevel]) -> Self {
        let mut hash = Sha256::new();
        for level in levels {
            hash.update(level.warehouse.as_str());
            hash.update([0]);
            hash.update(level.version.to_be_bytes());
        }
        let digest = hash.finalize();
        let first_half = digest
            .iter()
            .take(8)
            .fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
        Self(format!("{first_half:016x}"))
    }

    /// A revision that a caller sent.
    #[must_use]
    pub fn from_text(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The last level of a page; the next page starts after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LevelCursor {
    /// Its SKU.
    pub sku: Sku,
    /// Its warehouse.
    pub warehouse: Warehouse,
}

impl LevelCursor {
    /// Parses what [`fmt::Display`] wrote; `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (sku, warehouse) = text.split_once('/')?;
        Some(Self {
            sku: Sku::parse(sku).ok()?,
            warehouse: Warehouse::parse(warehouse).ok()?,
        })
    }

    /// SKU and warehouse of a cursor. Without one, those that are before all others.
    #[must_use]
    pub fn names(cursor: Option<&Self>) -> (&str, &str) {
        cursor.map_or(("", ""), |one| (one.sku.as_str(), one.warehouse.as_str()))
    }
}

impl From<&StockLevel> for LevelCursor {
    fn from(level: &StockLevel) -> Self {
        Self {
            sku: level.sku.clone(),
            warehouse: level.warehouse.clone(),
        }
    }
}

impl fmt::Display for LevelCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.sku, self.warehouse)
    }
}

/// What must hold for the levels in a [`Scope`], so that a change is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Precondition {
    /// There is one (`If-Match: *`).
    Exists,
    /// There is none (`If-None-Match: *`).
    Absent,
    /// They are in one of these states, which the caller read before (`If-Match: "…"`). The state of
    /// the whole SKU counts in every scope.
    OneOf(Vec<Revision>),
}

/// The levels that a precondition is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// All levels of the SKU.
    Sku,
    /// The level that is set.
    Level,
}
