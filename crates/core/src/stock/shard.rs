//! Shards: several deployments, each with its own database, divide the SKUs by a hash.
//!
//! nginx finds the shard of a SKU with `split_clients` (`deploy/sharded/nginx.sh`), and this file computes the
//! same. The hash has [`SLOTS`] slots of equal width, and a shard has the slots of one range. So each border
//! of n shards is also one of 2n: a shard can be divided into two, and no SKU leaves it for a third.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use super::Sku;

/// The number of slots. nginx has a line of 0.1% for each. Never change this: it maps SKUs to databases.
const SLOTS: u32 = 1_000;

/// How many values of the hash a slot has. nginx computes the same for 0.1%, and adds it up. The last slot has
/// the rest of the values, too.
const WIDTH: u32 = u32::MAX / SLOTS;

/// The maximum number of shards.
const MAX_SHARDS: u32 = 100;

/// SKUs of other shards.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "this is shard {own}, which does not have {}: send the header X-Sku with the SKU, so that the proxy finds its \
     shard; all lines of an operation must be of one shard",
    names(.foreign)
)]
pub struct WrongShard {
    own: Shard,
    /// Each with the number of its shard.
    foreign: BTreeSet<(Sku, u32)>,
}

fn names(foreign: &BTreeSet<(Sku, u32)>) -> String {
    let names = foreign.iter();
    let names = names.map(|(sku, shard)| format!("{sku} (shard {shard})"));
    names.collect::<Vec<_>>().join(", ")
}

/// Which SKUs a deployment has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// From 1.
    number: u32,
    /// How many shards there are.
    of: u32,
}

impl Shard {
    /// The only shard, which has all SKUs.
    pub const WHOLE: Self = Self { number: 1, of: 1 };

    /// Whether there are others.
    #[must_use]
    pub const fn is_part(self) -> bool {
        self.of > 1
    }

    /// Whether it has the SKU with this name.
    #[must_use]
    pub fn owns(self, name: &[u8]) -> bool {
        !self.is_part() || self.owner(name) == self.number
    }

    /// The number of the shard that has the SKU with this name.
    #[must_use]
    pub fn owner(self, name: &[u8]) -> u32 {
        let slot = (hash(name) / WIDTH).min(SLOTS - 1);
        // The slots of shard k end before `SLOTS * k / of`, rounded down.
        ((slot + 1) * self.of).div_ceil(SLOTS)
    }

    /// Refuses SKUs of other shards.
    ///
    /// # Errors
    /// It names all of them.
    pub fn check<'a>(self, skus: impl IntoIterator<Item = &'a Sku>) -> Result<(), WrongShard> {
        let foreign = skus.into_iter().filter(|sku| !self.has(sku));
        let foreign: BTreeSet<_> = foreign
            .map(|sku| (sku.clone(), self.owner(sku.as_str().as_bytes())))
            .collect();
        if foreign.is_empty() {
            return Ok(());
        }
        Err(WrongShard { own: self, foreign })
    }

    /// Whether it has this SKU.
    #[must_use]
    pub fn has(self, sku: &Sku) -> bool {
        self.owns(sku.as_str().as_bytes())
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('/');
        let numbers =
            numbers.and_then(|(number, of)| Some((number.parse().ok()?, of.parse().ok()?)));
        let shard = numbers.map(|(number, of)| Self { number, of });
        let shard =
            shard.filter(|Self { number, of }| (1..=*of).contains(number) && *of <= MAX_SHARDS);
        // `01/2` and `+1/2` are not written so.
        let shard = shard.filter(|shard| shard.to_string() == text);
        shard.ok_or_else(|| {
            format!("expected K/N, shard K of N, with K from 1 to N and N up to {MAX_SHARDS}, such as 2/3")
        })
    }
}

/// `MurmurHash2` of 32 bits, with the seed 0, as nginx has it.
fn hash(bytes: &[u8]) -> u32 {
    const FACTOR: u32 = 0x5bd1_e995;
    // nginx does so with the length of a longer text, too; the name of a SKU has at most 256 bytes.
    #[expect(clippy::cast_possible_truncation, reason = "as nginx does")]
    let mut hash = bytes.len() as u32;
    let (words, rest) = bytes.as_chunks::<4>();
    for word in words {
        let word = u32::from_le_bytes(*word).wrapping_mul(FACTOR);
        let word = (word ^ (word >> 24)).wrapping_mul(FACTOR);
        hash = hash.wrapping_mul(FACTOR) ^ word;
    }
    if !rest.is_empty() {
        for (place, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * place);
        }
        hash = hash.wrapping_mul(FACTOR);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(FACTOR);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SKUs, and their shards of 2, 3, 4, 8 and 100 as the real nginx computes them. Never change a line:
    /// a database would not have the SKU.
    const VECTORS: &str = include_str!("shard.txt");

    fn shard(text: &str) -> Result<Shard, String> {
        text.parse()
    }

    #[test]
    fn shards_are_those_of_nginx() {
        let lines = VECTORS.lines().filter(|line| !line.starts_with('#'));
        let mut seen = 0;
        for line in lines {
            let mut words = line.split(' ');
            let sku = words.next().expect("a SKU").as_bytes();
            let expected: Vec<u32> = words.map(|word| word.parse().expect("a number")).collect();
            let found = ["1/2", "1/3", "1/4", "1/8", "1/100"];
            let found = found.map(|text| shard(text).expect("a shard").owner(sku));
            assert_eq!(found[..], expected, "{line}");
            seen += 1;
        }
        assert!(seen >= 20, "{seen}");
    }

    #[test]
    fn half_of_a_shard_is_in_no_other_shard() {
        for of in 1..=MAX_SHARDS / 2 {
            let (before, after) = (
                Shard { number: 1, of },
                Shard {
                    number: 1,
                    of: 2 * of,
                },
            );
            let mut sizes = vec![0; 2 * of as usize];
            for number in 0..2_000 {
                let sku = format!("sku-{number}");
                let owner = after.owner(sku.as_bytes());
                assert_eq!(
                    owner.div_ceil(2),
                    before.owner(sku.as_bytes()),
                    "{sku} {of}"
                );
                sizes[owner as usize - 1] += 1;
            }
            assert!(sizes.iter().all(|size| *size > 0), "{of}: {sizes:?}");
        }
    }

    #[test]
    fn shard_is_a_number_of_at_most_a_hundred() {
        for text in ["1/1", "1/2", "2/2", "100/100"] {
            assert_eq!(shard(text).expect("a shard").to_string(), text);
        }
        let invalid =
            "|1|/|1/|/2|0/2|3/2|1/0|1/101|-1/2|+1/2|01/2| 1/2|1/2 |1/2/3|1:2|a/b|4294967297/2";
        for text in invalid.split('|') {
            assert!(shard(text).is_err(), "{text}");
        }
    }

    #[test]
    fn refusal_names_each_foreign_sku_once() {
        let names = (0..20).map(|number| Sku::parse(format!("s{number}")).expect("a SKU"));
        let names: Vec<_> = names.collect();
        let own = shard("1/2").expect("a shard");
        let refused = own
            .check(names.iter().chain(&names))
            .expect_err("some are foreign");
        let text = refused.to_string();
        for name in &names {
            let count = text.matches(&format!("{name} (shard 2)")).count();
            assert_eq!(count, usize::from(!own.has(name)), "{name}: {text}");
        }
        assert!(Shard::WHOLE.check(&names).is_ok());
    }
}
