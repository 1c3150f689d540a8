//! Who may have permits, and what the others wait for.
//!
//! A place has its permits if those of all places ahead and its own do not exceed the limit. All places
//! ahead then have theirs too, so permits are granted in order of arrival.

use super::names;
use crate::backend::Claim;

/// What the queue means for one place.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It has its permits.
    Held,
    /// It waits until this place is deleted or reduced.
    Behind(String),
    /// It waits until any place is created or deleted.
    BehindSeveral,
}

/// Decides about the place at `position`. `keeps` is what the first place still has, if it was reduced.
pub(super) fn turn(order: &[String], position: usize, keeps: Option<u32>) -> Turn {
    // A place without numbers was not created by this crate.
    let share = |place: &String| names::share(place).unwrap_or((1, 1));
    let mut shares: Vec<_> = order.iter().map(share).collect();
    if let (Some((take, _)), Some(keeps)) = (shares.first_mut(), keeps) {
        *take = keeps.min(*take);
    }
    // The latest request decides how many permits there are.
    let limit = shares.last().map_or(0, |(_, of)| u64::from(*of));
    let used = shares[..=position].iter().map(|(take, _)| u64::from(*take));
    if used.sum::<u64>() <= limit {
        return Turn::Held;
    }
    let claim = |(take, of): (u32, u32)| Claim::Permits { take, of };
    let ahead = &shares[..position];
    let blocker = match claim(shares[position]) {
        // A reader only waits for the last writer ahead, and a writer for all: for one after the other.
        Claim::READ => ahead
            .iter()
            .rposition(|share| claim(*share) == Claim::WRITE),
        Claim::WRITE => position.checked_sub(1),
        _ => None,
    };
    blocker.map_or(Turn::BehindSeveral, |at| Turn::Behind(order[at].clone()))
}

#[cfg(test)]
mod tests {
    use super::{Turn, turn};
    use crate::backend::Claim;
    use crate::backends::zookeeper::names::place_prefix;
    use crate::shared::nonce::Nonce;

    fn queue(claims: &[Claim]) -> Vec<String> {
        let place = |(number, claim): (usize, &Claim)| {
            format!("{}{number:010}", place_prefix(Nonce::random(), *claim))
        };
        claims.iter().enumerate().map(place).collect()
    }

    fn turns(order: &[String], keeps: Option<u32>) -> Vec<Turn> {
        let turn = |position| turn(order, position, keeps);
        (0..order.len()).map(turn).collect()
    }

    #[test]
    fn readers_wait_for_last_writer_and_writers_for_all() {
        let (read, write) = (Claim::READ, Claim::WRITE);
        let order = queue(&[read, read, write, read, write]);
        let behind = |at: usize| Turn::Behind(order[at].clone());
        let expected = [Turn::Held, Turn::Held, behind(1), behind(2), behind(3)];
        assert_eq!(turns(&order, None), expected);
    }

    #[test]
    fn reduced_writer_admits_readers_but_no_writer() {
        let order = queue(&[Claim::WRITE, Claim::READ, Claim::WRITE]);
        let behind = |at: usize| Turn::Behind(order[at].clone());
        assert_eq!(turns(&order, None)[1..], [behind(0), behind(1)]);
        assert_eq!(turns(&order, Some(1))[1..], [Turn::Held, behind(1)]);
    }

    #[test]
    fn latest_limit_applies_and_no_place_is_overtaken() {
        let take = |take, of| Claim::Permits { take, of };
        let order = queue(&[take(2, 9), take(2, 9), take(1, 3)]);
        let expected = [Turn::Held, Turn::BehindSeveral, Turn::BehindSeveral];
        assert_eq!(turns(&order, None), expected);
    }
}
