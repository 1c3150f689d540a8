//! How many entries one transaction applies.
//!
//! A batch has a dozen round trips, one after the other, besides those that grow with its entries. On a busy
//! machine a small batch spends most of its time waiting for them, so large ones apply more per second.

use super::Valid;
use crate::StoreError;

/// A transaction takes no further entry once it has this many movements. It is fewer while SQL is too
/// slow for this many.
pub(super) const MAX_BATCH: usize = 2_000;

/// Whether a smaller transaction may succeed.
pub(in crate::redis) fn took_too_long(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::TooSlow(_) | StoreError::LockWait(_) | StoreError::OutcomeUnknown(..)
    )
}

/// How many entries the next transaction applies, which takes no further entry once it has `most`
/// movements. If only a few more would be left for another transaction, it takes all.
pub(super) fn batch_size(entries: &[Valid<'_, '_>], most: usize) -> usize {
    count(entries.iter().map(|(_, entry)| entry.movements.len()), most)
}

/// The same for entries with these numbers of movements.
fn count(entries: impl ExactSizeIterator<Item = usize> + Clone, most: usize) -> usize {
    if entries.clone().sum::<usize>() <= most + most / 4 {
        return entries.len();
    }
    let mut movements = 0;
    let fits = |entry: &usize| {
        let before = movements;
        movements += entry;
        before < most
    };
    entries.take_while(fits).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_transaction_takes_the_few_that_are_left() {
        for (entries, most, first) in [
            (&[62; 10][..], 500, 10),
            (&[50; 10], 400, 10),
            (&[50; 11], 400, 8),
            (&[64; 20], 500, 8),
            (&[64; 3], 1, 1),
            (&[1; 3], 1, 1),
            (&[1], 1, 1),
            (&[], 500, 0),
        ] {
            let counted = count(entries.iter().copied(), most);
            assert_eq!(counted, first, "{entries:?}, at most {most}");
        }
    }
}
