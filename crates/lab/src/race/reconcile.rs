//! Compares the operations that buyers were given with the operations in the ledger.
//!
//! Sums cannot show a sale to one buyer that was answered to another. Sets of operation ids can.

use uuid::Uuid;

/// The difference between answers and ledger.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Reconciliation {
    /// Answered 200, but not in the ledger. An id that two orders were given counts once here.
    pub(super) lost: Vec<Uuid>,
    /// In the ledger, but not in any answer.
    pub(super) unanswered: Vec<Uuid>,
}

impl Reconciliation {
    /// Compares both lists. Their order does not matter, but the number of equal ids does.
    pub(super) fn new(mut answered: Vec<Uuid>, mut ledger: Vec<Uuid>) -> Self {
        answered.sort_unstable();
        ledger.sort_unstable();
        let mut difference = Self::default();
        let mut ledger = ledger.into_iter().peekable();
        for id in answered {
            while let Some(smaller) = ledger.next_if(|recorded| *recorded < id) {
                difference.unanswered.push(smaller);
            }
            if ledger.next_if_eq(&id).is_none() {
                difference.lost.push(id);
            }
        }
        difference.unanswered.extend(ledger);
        difference
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare(answered: &[u128], ledger: &[u128]) -> (Vec<u128>, Vec<u128>) {
        let ids = |numbers: &[u128]| numbers.iter().copied().map(Uuid::from_u128).collect();
        let numbers = |ids: Vec<Uuid>| ids.into_iter().map(|id| id.as_u128()).collect();
        let Reconciliation { lost, unanswered } = Reconciliation::new(ids(answered), ids(ledger));
        (numbers(lost), numbers(unanswered))
    }

    #[test]
    fn equal_sets_have_no_difference() {
        assert_eq!(compare(&[], &[]), (vec![], vec![]));
        assert_eq!(compare(&[3, 1, 2], &[2, 3, 1]), (vec![], vec![]));
    }

    #[test]
    fn differences_are_found_at_every_position() {
        assert_eq!(
            compare(&[5, 1, 3], &[4, 2, 6]),
            (vec![1, 3, 5], vec![2, 4, 6])
        );
        assert_eq!(compare(&[1, 2], &[]), (vec![1, 2], vec![]));
        assert_eq!(compare(&[], &[2, 1]), (vec![], vec![1, 2]));
        assert_eq!(compare(&[1, 2, 4], &[1, 3, 4]), (vec![2], vec![3]));
    }

    #[test]
    fn id_given_to_two_orders_is_a_lost_sale() {
        assert_eq!(compare(&[1, 1, 2], &[1, 2]), (vec![1], vec![]));
    }
}
