//! The evidence: two movements that were computed from the same read.
//!
//! A read-check-write records the version that it had read. Two sales with the same one both
//! subtracted from the same level, so one of them is missing from the counter: a lost update.

use std::collections::HashMap;
use std::fmt;

use serde::Serialize;

use super::replica_client::Movement;

/// What the ledger shows about units that were lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "found", rename_all = "kebab-case")]
pub enum Evidence {
    /// The oldest pair of sales from the same read.
    LostUpdate {
        /// The operation that sold first.
        first: Sale,
        /// The operation that sold the same units again.
        second: Sale,
        /// The version that both had read.
        read_version: i64,
        /// The units that both had read.
        read: i64,
        /// All sales whose read an earlier one had read too, this second one included.
        lost_updates: usize,
    },
    /// No two sales tell of the same read.
    Nothing {
        /// The sales that were looked at.
        sales: usize,
    },
}

/// One of two sales from the same read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Sale {
    /// Its operation.
    pub operation: String,
    /// The units that it wrote.
    pub wrote: i64,
}

/// Looks for the first lost update in a ledger, newest movement first.
pub(super) fn find(newest_first: &[Movement]) -> Evidence {
    let mut readers: HashMap<i64, &Movement> = HashMap::new();
    let mut oldest = None;
    let mut lost_updates = 0;
    let sales = newest_first.iter().rev().filter(|m| m.kind == "deducted");
    for sale in sales.clone() {
        let Some(version) = sale.read_version else {
            continue;
        };
        if let Some(earlier) = readers.get(&version) {
            lost_updates += 1;
            oldest.get_or_insert((*earlier, sale, version));
        } else {
            readers.insert(version, sale);
        }
    }
    match oldest {
        Some((first, second, read_version)) => Evidence::LostUpdate {
            first: Sale::of(first),
            second: Sale::of(second),
            read_version,
            read: first.available_after - first.delta,
            lost_updates,
        },
        None => Evidence::Nothing {
            sales: sales.count(),
        },
    }
}

impl Sale {
    fn of(movement: &Movement) -> Self {
        Self {
            operation: movement.id.clone(),
            wrote: movement.available_after,
        }
    }

    /// The end of the operation's id: its beginning is the time, the same for a whole race.
    fn short(&self) -> &str {
        let start = self.operation.len().saturating_sub(8);
        self.operation.get(start..).unwrap_or(&self.operation)
    }
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
                let (a, b) = (first.short(), second.short());
                write!(
                    f,
                    "…{a} and …{b} both read version {read_version} = {read}, "
                )?;
                if first.wrote == second.wrote {
                    write!(f, "both wrote {}", first.wrote)?;
                } else {
                    write!(f, "wrote {} and {}", first.wrote, second.wrote)?;
                }
                match lost_updates - 1 {
                    0 => Ok(()),
                    more => write!(f, " (and {more} more like it)"),
                }
            }
            Self::Nothing { sales } => {
                write!(
                    f,
                    "units were lost, but no two of {sales} sales tell of the same read"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sale(id: &str, read_version: Option<i64>, available_after: i64) -> Movement {
        Movement {
            id: format!("01939a5c-0000-7000-8000-0000{id:0>8}"),
            kind: "deducted".to_owned(),
            delta: -1,
            available_after,
            read_version,
        }
    }

    #[test]
    fn the_oldest_pair_from_one_read_is_found() {
        let ledger = [
            sale("e", Some(18), 8),
            sale("d", Some(18), 8),
            sale("c", Some(17), 9),
            sale("b", Some(17), 9),
            sale("a", Some(16), 10),
        ];
        let evidence = find(&ledger);
        assert_eq!(
            evidence.to_string(),
            "…0000000b and …0000000c both read version 17 = 10, both wrote 9 (and 1 more like it)"
        );
        assert_eq!(
            find(&ledger[2..]).to_string(),
            "…0000000b and …0000000c both read version 17 = 10, both wrote 9"
        );
    }

    #[test]
    fn movements_without_a_read_or_of_another_kind_prove_nothing() {
        let mut received = sale("a", Some(1), 10);
        received.kind = "received".to_owned();
        let ledger = [
            sale("d", None, 8),
            sale("c", None, 8),
            sale("b", Some(1), 9),
            received,
        ];
        assert_eq!(find(&ledger), Evidence::Nothing { sales: 3 });
    }
}
