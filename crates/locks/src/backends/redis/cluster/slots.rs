//! Hash slots.

use crc16::{State, XMODEM};

const SLOTS: u16 = 16_384;

/// The slot of a key: of the text between its first `{` and the next `}`, if there is any, so that keys
/// with the same text are at the same node.
pub(in super::super) fn slot(key: &str) -> u16 {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'));
    let tag = tag.map(|(tag, _)| tag).filter(|tag| !tag.is_empty());
    State::<XMODEM>::calculate(tag.unwrap_or(key).as_bytes()) % SLOTS
}

#[cfg(test)]
mod tests {
    use super::slot;

    /// The slots are those of `CLUSTER KEYSLOT`.
    #[test]
    fn slot_is_that_of_the_server() {
        for (key, expected) in [
            ("123456789", 12_739),
            ("lock{a}:token", 15_495),
            ("a", 15_495),
            ("{}a", 10_875),
            ("x{{}y", 4_092),
        ] {
            assert_eq!(slot(key), expected, "{key}");
        }
    }
}
