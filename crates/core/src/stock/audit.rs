//! The audit: compares the level with the ledger.

use super::Warehouse;

/// The numbers of one level, and the sums of its movements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Audit {
    /// The warehouse.
    pub warehouse: Warehouse,
    /// Units that came in: the sum of all movements that are not deductions. So returned units count
    /// if they are on hand again.
    pub received: i64,
    /// Units sold: the sum of all deductions. Units that came back later were sold too.
    pub sold: i64,
    /// Units on hand according to the level.
    pub on_hand: i64,
    /// Units promised, not yet taken.
    pub held: i64,
    /// The sum of all movements of held units.
    pub held_sum: i64,
    /// Units that may be sold beyond the units on hand.
    pub backorder_limit: i64,
}

impl Audit {
    /// `on_hand` minus the sum of all movements: units of lost updates.
    #[must_use]
    pub fn drift(&self) -> i64 {
        self.on_hand - (self.received - self.sold)
    }

    /// `held` minus the sum of its movements.
    #[must_use]
    pub fn held_drift(&self) -> i64 {
        self.held - self.held_sum
    }

    /// Units sold that never existed, beyond the backorder limit.
    #[must_use]
    pub fn oversold(&self) -> i64 {
        (self.sold - self.received - self.backorder_limit).max(0)
    }

    /// Whether level and ledger agree, and nothing was oversold.
    #[must_use]
    pub fn consistent(&self) -> bool {
        self.drift() == 0 && self.held_drift() == 0 && self.oversold() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn audit(received: i64, sold: i64, on_hand: i64, backorder_limit: i64) -> Audit {
        let warehouse = Warehouse::default();
        Audit {
            warehouse,
            received,
            sold,
            on_hand,
            held: 0,
            held_sum: 0,
            backorder_limit,
        }
    }

    #[test]
    fn lost_update_is_drift_before_it_is_oversold() {
        let lost = audit(10, 2, 9, 0);
        assert_eq!(
            (lost.drift(), lost.oversold(), lost.consistent()),
            (1, 0, false)
        );
        let oversold = audit(10, 11, 0, 0);
        assert_eq!(
            (oversold.drift(), oversold.oversold(), oversold.consistent()),
            (1, 1, false)
        );
    }

    #[test]
    fn lost_hold_is_drift() {
        let lost = Audit {
            held_sum: 1,
            ..audit(10, 2, 8, 0)
        };
        assert_eq!((lost.held_drift(), lost.consistent()), (-1, false));
    }

    #[test]
    fn sales_within_backorder_limit_are_not_oversold() {
        assert!(audit(10, 12, -2, 2).consistent());
    }
}
