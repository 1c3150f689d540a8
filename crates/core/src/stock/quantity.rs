//! The number of units that one deduction takes: 1 to 10,000.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Units taken by one deduction. Never zero or negative: a negative number would add stock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Quantity(u32);

/// The number is outside 1..=10,000.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("quantity must be a whole number from 1 to {}", Quantity::MAX.0)]
pub struct InvalidQuantity;

impl Quantity {
    /// One unit.
    pub const ONE: Self = Self(1);
    /// The maximum that one deduction may take.
    pub const MAX: Self = Self(10_000);

    /// As many of them as `units`, and all if those are more. `None` if `units` is not positive.
    #[must_use]
    pub fn at_most(self, units: i64) -> Option<Self> {
        let units = u32::try_from(units.min(self.units())).ok()?;
        Self::try_from(units).ok()
    }

    /// The number of units, in the integer type of levels.
    #[must_use]
    pub fn units(self) -> i64 {
        i64::from(self.0)
    }
}

impl TryFrom<u32> for Quantity {
    type Error = InvalidQuantity;
    fn try_from(units: u32) -> Result<Self, InvalidQuantity> {
        if (1..=Self::MAX.0).contains(&units) {
            Ok(Self(units))
        } else {
            Err(InvalidQuantity)
        }
    }
}

impl From<Quantity> for u32 {
    fn from(quantity: Quantity) -> u32 {
        quantity.0
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_inclusive() {
        assert_eq!(Quantity::try_from(0), Err(InvalidQuantity));
        assert_eq!(Quantity::try_from(1), Ok(Quantity::ONE));
        assert_eq!(Quantity::try_from(10_000), Ok(Quantity::MAX));
        assert_eq!(Quantity::try_from(10_001), Err(InvalidQuantity));
    }
}
