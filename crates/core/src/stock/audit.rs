//! The audit: the counter held against the ledger.

use super::Warehouse;

/// What one warehouse's counter says, and what its movements say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Audit {
    /// The warehouse.
    pub warehouse: Warehouse,
    /// Units that came in: the sum of all movements that are not deductions.
    pub received: i64,
    /// Units sold: the sum of all deductions.
    pub sold: i64,
    /// What the counter says.
    pub on_hand: i64,
    /// Units promised, not yet taken.
    pub held: i64,
    /// Units that may be sold beyond what is there.
    pub backorder_limit: i64,
    /// Movements journaled but not yet in SQL (Redis home).
    pub pending: i64,
}

impl Audit {
    /// `on_hand` less the sum of all movements: units sold that the counter did not notice.
    #[must_use]
    pub fn drift(&self) -> i64 {
        self.on_hand - (self.received - self.sold)
    }

    /// Units sold that never existed, beyond the backorder limit.
    #[must_use]
    pub fn oversold(&self) -> i64 {
        (self.sold - self.received - self.backorder_limit).max(0)
    }

    /// Whether counter and ledger agree, nothing was oversold and nothing is on its way.
    #[must_use]
    pub fn consistent(&self) -> bool {
        self.drift() == 0 && self.oversold() == 0 && self.pending == 0
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
            backorder_limit,
            pending: 0,
        }
    }

    #[test]
    fn a_lost_update_shows_as_drift_before_it_shows_as_oversold() {
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
    fn what_the_backorder_limit_allows_is_not_oversold() {
        assert!(audit(10, 12, -2, 2).consistent());
    }
}
