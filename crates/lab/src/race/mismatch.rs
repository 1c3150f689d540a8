//! Compares the operations that buyers were given with the operations in the ledger.
//!
//! Sums cannot show a sale to one buyer that was answered to another. Sets of operation ids can.

use serde::Serialize;
use uuid::Uuid;

/// The number of operation ids that are shown as examples.
const EXAMPLES: usize = 5;

/// The difference between the answers and the ledger.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Mismatch {
    /// Orders answered 200 whose operation is not in the ledger: lost sales.
    pub lost: i64,
    /// The first few of their operations.
    pub lost_ids: Vec<Uuid>,
    /// Sales in the ledger that no answer names, beyond the orders with an unknown outcome:
    /// phantom sales. An order that was refused but sold is one of them.
    pub phantom: i64,
    /// The first few operations in the ledger that no answer names.
    pub phantom_ids: Vec<Uuid>,
}

impl Mismatch {
    /// Adds that of another SKU of the same orders.
    pub(super) fn add(&mut self, other: &Self) {
        self.lost += other.lost;
        self.phantom += other.phantom;
        for (ids, more) in [
            (&mut self.lost_ids, &other.lost_ids),
            (&mut self.phantom_ids, &other.phantom_ids),
        ] {
            ids.extend(more);
            ids.truncate(EXAMPLES);
        }
    }

    /// Compares the operation ids in the answers with those in the ledger, which may contain `unknown`
    /// other orders.
    pub(super) fn new(answered: Vec<Uuid>, ledger: Vec<Uuid>, unknown: i64) -> Self {
        let (lost_ids, unanswered) = differences(answered, ledger);
        let (lost, lost_ids) = beyond(lost_ids, 0);
        let (phantom, phantom_ids) = beyond(unanswered, unknown);
        Self {
            lost,
            lost_ids,
            phantom,
            phantom_ids,
        }
    }
}

/// The number of ids in excess of `expected`, and a few of them.
fn beyond(mut ids: Vec<Uuid>, expected: i64) -> (i64, Vec<Uuid>) {
    let count = i64::try_from(ids.len()).expect("a length fits into 64 bits");
    let excess = (count - expected).max(0);
    ids.truncate(if excess > 0 { EXAMPLES } else { 0 });
    (excess, ids)
}

/// The ids that are only in the answers, and those that are only in the ledger. An id that two
/// orders were given is once only in the answers.
fn differences(mut answered: Vec<Uuid>, mut ledger: Vec<Uuid>) -> (Vec<Uuid>, Vec<Uuid>) {
    answered.sort_unstable();
    ledger.sort_unstable();
    let (mut lost, mut unanswered) = (Vec::new(), Vec::new());
    let mut ledger = ledger.into_iter().peekable();
    for id in answered {
        while let Some(smaller) = ledger.next_if(|recorded| *recorded < id) {
            unanswered.push(smaller);
        }
        if ledger.next_if_eq(&id).is_none() {
            lost.push(id);
        }
    }
    unanswered.extend(ledger);
    (lost, unanswered)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_found_at_every_position() {
        let ids = |numbers: &[u128]| numbers.iter().copied().map(Uuid::from_u128).collect();
        for (answered, ledger, lost, unanswered) in [
            (&[][..], &[][..], &[][..], &[][..]),
            (&[3, 1, 2], &[2, 3, 1], &[], &[]),
            (&[5, 1, 3], &[4, 2, 6], &[1, 3, 5], &[2, 4, 6]),
            (&[1, 2], &[], &[1, 2], &[]),
            (&[], &[2, 1], &[], &[1, 2]),
            (&[1, 2, 4], &[1, 3, 4], &[2], &[3]),
            (&[1, 1, 2], &[1, 2], &[1], &[]),
        ] {
            let found = differences(ids(answered), ids(ledger));
            assert_eq!(found, (ids(lost), ids(unanswered)));
        }
    }
}
