//! Names of nodes: the directory of a lock, and the places in its queue.
//!
//! A place is named `_c_<nonce>-lock-<sequence>`, like those of Apache Curator. After a lost
//! answer, it is found again by its nonce.

use std::fmt::Write;

use crate::backend::Claim;
use crate::shared::nonce::Nonce;

/// Encodes a lock name as one path element. Letters, digits and `_-:@` stay, and also `.` except at
/// the start. Every other byte becomes `%` and two hexadecimal digits.
pub(super) fn element(name: &str) -> String {
    let mut element = String::with_capacity(name.len());
    for (index, byte) in name.bytes().enumerate() {
        match byte {
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'_' | b'-' | b':' | b'@' => {
                element.push(char::from(byte));
            }
            b'.' if index > 0 => element.push('.'),
            _ => write!(element, "%{byte:02X}").expect("a string can be written to"),
        }
    }
    element
}

/// Returns the start of all node names of a nonce.
pub(super) fn nonce_prefix(nonce: Nonce) -> String {
    format!("_c_{nonce}-")
}

/// Returns the start of the node name of a claim: `_c_<nonce>-lock-`, or `_c_<nonce>-<take>-<of>-lock-`
/// with permits.
pub(super) fn place_prefix(nonce: Nonce, claim: Claim) -> String {
    let nonce = nonce_prefix(nonce);
    match claim {
        Claim::Exclusive => format!("{nonce}lock-"),
        Claim::Permits { take, of } => format!("{nonce}{take}-{of}-lock-"),
    }
}

/// Parses the nonce of a place. Those of Apache Curator have hyphens.
pub(super) fn nonce_of(place: &str) -> Option<Nonce> {
    let rest = place.strip_prefix("_c_")?;
    let hyphenated = rest.get(..36).map(|uuid| uuid.replace('-', ""));
    let hyphenated = hyphenated.and_then(|digits| Nonce::parse(&digits));
    hyphenated.or_else(|| Nonce::parse(rest.get(..32)?))
}

/// Parses what the claim of a place with permits takes, and of how many.
pub(super) fn share(place: &str) -> Option<(u32, u32)> {
    let (claim, _sequence) = place.strip_prefix("_c_")?.split_once("-lock-")?;
    let mut parts = claim.rsplit('-');
    let (of, take) = (parts.next()?, parts.next()?);
    Some((take.parse().ok()?, of.parse().ok()?))
}

/// Sorts the places of a lock by arrival, and drops all other nodes.
pub(super) fn in_order(children: Vec<String>) -> Vec<String> {
    let mut places: Vec<_> = children
        .into_iter()
        .filter_map(|name| Some((sequence(&name)?, name)))
        .collect();
    places.sort_unstable();
    places.into_iter().map(|(_, name)| name).collect()
}

/// Parses the sequence number. The server's counter is a signed 32-bit number that overflows to
/// negative values. Read as unsigned, it keeps growing.
fn sequence(name: &str) -> Option<u32> {
    let digits = name.strip_prefix("_c_")?.split_once("-lock-")?.1;
    digits.parse::<i32>().ok().map(i32::cast_unsigned)
}

#[cfg(test)]
mod tests {
    use super::{element, in_order, nonce_of, place_prefix};
    use crate::backend::Claim;
    use crate::shared::nonce::Nonce;

    #[test]
    fn nonce_of_every_place_is_found() {
        let nonce = Nonce::random();
        for claim in [
            Claim::Exclusive,
            Claim::READ,
            Claim::Permits { take: 2, of: 3 },
        ] {
            let place = format!("{}0000000001", place_prefix(nonce, claim));
            assert_eq!(nonce_of(&place), Some(nonce), "{place}");
        }
        let curator = "_c_52f2c3a4-15f2-4b9e-8d0a-4c2f9f1b7e6d-lock-0000000001";
        let digits = "52f2c3a415f24b9e8d0a4c2f9f1b7e6d";
        assert_eq!(nonce_of(curator), Nonce::parse(digits));
        assert!(Nonce::parse(digits).is_some());
        for other in ["_c_-lock-0000000001", "lock-0000000001", "_c_上海-lock-1"] {
            assert_eq!(nonce_of(other), None, "{other}");
        }
    }

    #[test]
    fn different_names_get_different_elements() {
        let names = ["a/b", "a%2Fb", "a", ".", "..", "a.b", "上", "\0", "A"];
        let mut elements: Vec<_> = names.iter().map(|name| element(name)).collect();
        assert_eq!(elements[0], "a%2Fb");
        assert_eq!(elements[3], "%2E");
        assert!(
            elements
                .iter()
                .all(|element| !element.contains(['/', '\0']))
        );
        elements.sort_unstable();
        elements.dedup();
        assert_eq!(elements.len(), names.len());
    }

    #[test]
    fn places_stay_in_order_when_the_sequence_overflows() {
        let places = [
            "_c_z-lock-2147483647",
            "other",
            "_c_a-lock--2147483648",
            "_c_b-lock-0000000009",
        ];
        let order = in_order(places.map(str::to_owned).to_vec());
        assert_eq!(order, [places[3], places[0], places[2]]);
    }
}
