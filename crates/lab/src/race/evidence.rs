//! Evidence of lost units: two sales that read the same version of the level.
//!
//! A strategy that reads, checks and writes records the version that it read. If two sales read the
//! same version, both wrote a value computed from it, and the counter misses one of them: a lost
//! update.

use std::collections::HashMap;
use std::fmt;

use serde::Serialize;
use uuid::Uuid;

use super::replica_client::Movement;

/// What the ledger shows about lost units.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "found", rename_all = "kebab-case")]
pub enum Evidence {
    /// The oldest pair of sales that read the same version at two replicas; at one, if there is none.
    LostUpdate {
        /// The earlier sale.
        first: Box<Movement>,
        /// The later sale.
        second: Box<Movement>,
        /// The version that both read.
        read_version: i64,
        /// The level that both read.
        read: i64,
        /// The number of sales that read a version which an earlier sale had read.
        lost_updates: usize,
    },
    /// No two sales read the same version.
    Nothing {
        /// The number of sales in the ledger.
        sales: usize,
    },
}

impl Evidence {
    /// Finds the first lost update in a ledger that is sorted newest first. `replica` names the one that
    /// answered an operation.
    pub(super) fn find(
        newest_first: &[Movement],
        replica: impl Fn(Uuid) -> Option<String>,
    ) -> Self {
        let mut readers: HashMap<i64, &Movement> = HashMap::new();
        let (mut oldest, mut apart) = (None, None);
        let mut lost_updates = 0;
        let sales = newest_first.iter().rev().filter(|row| row.is_sale());
        for later in sales.clone() {
            let Some(version) = later.read_version else {
                continue;
            };
            let earlier = *readers.entry(version).or_insert(later);
            if earlier.id != later.id {
                lost_updates += 1;
                let pair = (earlier, later, version);
                oldest.get_or_insert(pair);
                if apart.is_none() && replica(earlier.id) != replica(later.id) {
                    apart = Some(pair);
                }
            }
        }
        let Some((first, second, read_version)) = apart.or(oldest) else {
            let sales = sales.count();
            return Self::Nothing { sales };
        };
        let answered = |sale: &Movement| {
            let replica = replica(sale.id);
            Box::new(Movement {
                replica,
                ..sale.clone()
            })
        };
        Self::LostUpdate {
            first: answered(first),
            second: answered(second),
            read_version,
            read: first.available_after - first.delta,
            lost_updates,
        }
    }
}

/// The last eight digits of an operation id. The first ones are the time, which is similar in all
/// ids of a race.
pub(super) fn short(id: Uuid) -> String {
    format!("…{:08x}", id.as_u128() & 0xffff_ffff)
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LostUpdate {
                first,
                second,
                read_version,
                read,
                lost_updates,
            } => {
                let (a, b) = (short(first.id), short(second.id));
                write!(f, "{a} and {b} both read version {read_version} = {read}, ")?;
                match (first.available_after, second.available_after) {
                    (a, b) if a == b => write!(f, "both wrote {a}")?,
                    (a, b) => write!(f, "wrote {a} and {b}")?,
                }
                match lost_updates - 1 {
                    0 => Ok(()),
                    more => write!(f, " (and {more} more like it)"),
                }
            }
            Self::Nothing { sales } => {
                f.write_str("units were lost, but no two of ")?;
                write!(f, "{sales} sales read the same version")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ledger of these sales, oldest first: the version that was read, and the level after it.
    fn find(sales: &[(Option<i64>, i64)]) -> Evidence {
        let movement = |(id, &(read_version, available_after))| Movement {
            id: Uuid::from_u128(id),
            kind: "deducted".to_owned(),
            delta: -1,
            available_after,
            read_version,
            created_at: String::new(),
            replica: None,
        };
        let mut ledger: Vec<_> = (10..).zip(sales).map(movement).collect();
        ledger.reverse();
        Evidence::find(&ledger, |_| None)
    }

    #[test]
    fn oldest_pair_with_the_same_version_is_found() {
        let sales = [16, 17, 17, 18, 18].map(|version| (Some(version), 26 - version));
        let pair = "…0000000b and …0000000c both read version 17 = 10, both wrote 9";
        assert_eq!(find(&sales[..3]).to_string(), pair);
        let all = format!("{pair} (and 1 more like it)");
        assert_eq!(find(&sales).to_string(), all);
    }

    #[test]
    fn pair_at_two_replicas_is_preferred() {
        let movement = |(id, read_version)| Movement {
            id: Uuid::from_u128(id),
            kind: "deducted".to_owned(),
            delta: -1,
            available_after: 9,
            read_version: Some(read_version),
            created_at: String::new(),
            replica: None,
        };
        let newest_first = [(4, 8), (3, 8), (2, 7), (1, 7)].map(movement);
        let replica = |id: Uuid| Some(if id.as_u128() == 4 { "b" } else { "a" }.to_owned());
        let Evidence::LostUpdate {
            first,
            second,
            lost_updates,
            ..
        } = Evidence::find(&newest_first, replica)
        else {
            panic!("there are two");
        };
        let names = [first, second].map(|sale| sale.replica.expect("a name"));
        assert_eq!((names, lost_updates), (["a".to_owned(), "b".to_owned()], 2));
    }

    #[test]
    fn sales_without_a_version_prove_nothing() {
        let evidence = find(&[(Some(1), 9), (None, 8), (None, 8)]);
        assert_eq!(evidence, Evidence::Nothing { sales: 3 });
    }
}
