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
    /// The oldest pair of sales that read the same version.
    LostUpdate {
        /// The earlier sale.
        first: Movement,
        /// The later sale.
        second: Movement,
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
    /// Finds the first lost update in a ledger that is sorted newest first.
    pub(super) fn find(newest_first: &[Movement]) -> Self {
        let mut readers: HashMap<i64, &Movement> = HashMap::new();
        let mut oldest = None;
        let mut lost_updates = 0;
        let sales = newest_first.iter().rev().filter(|row| row.is_sale());
        for later in sales.clone() {
            let Some(version) = later.read_version else {
                continue;
            };
            let earlier = *readers.entry(version).or_insert(later);
            if earlier.id != later.id {
                lost_updates += 1;
                oldest.get_or_insert((earlier, later, version));
            }
        }
        let Some((first, second, read_version)) = oldest else {
            let sales = sales.count();
            return Self::Nothing { sales };
        };
        Self::LostUpdate {
            first: first.clone(),
            second: second.clone(),
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

    fn sale(id: u128, read_version: Option<i64>, available_after: i64) -> Movement {
        Movement {
            id: Uuid::from_u128(id),
            kind: "deducted".to_owned(),
            delta: -1,
            available_after,
            read_version,
        }
    }

    #[test]
    fn oldest_pair_with_the_same_version_is_found() {
        let ledger = [
            sale(14, Some(18), 8),
            sale(13, Some(18), 8),
            sale(12, Some(17), 9),
            sale(11, Some(17), 9),
            sale(10, Some(16), 10),
        ];
        let pair = "…0000000b and …0000000c both read version 17 = 10, both wrote 9";
        let all = format!("{pair} (and 1 more like it)");
        assert_eq!(Evidence::find(&ledger).to_string(), all);
        assert_eq!(Evidence::find(&ledger[2..]).to_string(), pair);
    }

    #[test]
    fn receipts_and_sales_without_a_version_prove_nothing() {
        let mut received = sale(1, Some(1), 10);
        received.kind = "received".to_owned();
        let sales = [sale(4, None, 8), sale(3, None, 8), sale(2, Some(1), 9)];
        let evidence = Evidence::find(&[&sales[..], &[received]].concat());
        assert_eq!(evidence, Evidence::Nothing { sales: 3 });
    }
}
