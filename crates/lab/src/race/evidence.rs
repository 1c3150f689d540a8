//! Evidence of lost units: two sales that were computed from the same level.
//!
//! 1. **The same version was read.** A strategy that reads the level in SQL records the version that it
//!    read. If two sales have the same `read_version`, both wrote a level computed from it, and the level
//!    misses one of them: a lost update.
//! 2. **The same level was written.** `redis-get-set` reads a counter in Redis, so its `read_version` is
//!    NULL. Two sales of one level that have no `read_version` and the same `available_after` are a lost
//!    update if the ledger has only such sales between them, in the order of `level_version` and without a
//!    missing number. A correct sale leaves fewer units than the sale before it, so the second one was not
//!    computed from what the first one had left.
//!
//! Only a change that is no sale can let a correct strategy write the same level twice: a receipt, an
//! adjustment, units that come back, or a new backorder limit, which leaves a movement with `delta` 0 or
//! only a new version. So each movement that is no sale ends the comparison, and so does each version
//! that the ledger does not have. The quantities of the two sales do not matter.

use std::collections::HashMap;
use std::fmt;

use serde::Serialize;
use uuid::Uuid;

use super::replica_client::Movement;

/// What the ledger shows about lost units.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "found", rename_all = "kebab-case")]
pub enum Evidence {
    /// The oldest pair of sales at two replicas that were computed from the same level; at one replica,
    /// if there is none.
    LostUpdate {
        /// The earlier sale.
        first: Box<Movement>,
        /// The later sale.
        second: Box<Movement>,
        /// The version that both read; `None` if both wrote the same level instead.
        read_version: Option<i64>,
        /// The units from which the first one was computed.
        read: i64,
        /// The number of sales that repeat the version or the level of an earlier sale.
        lost_updates: usize,
    },
    /// No two sales read the same version or wrote the same level.
    Nothing {
        /// The number of sales in the ledger.
        sales: usize,
    },
}

impl Evidence {
    /// Finds the first lost update in the ledger of one level. `replica` names the one that answered an
    /// operation.
    pub(super) fn find(ledger: &[Movement], replica: impl Fn(Uuid) -> Option<String>) -> Self {
        let mut in_order: Vec<_> = ledger.iter().collect();
        in_order.sort_unstable_by_key(|row| row.level_version);
        let mut readers: HashMap<i64, &Movement> = HashMap::new();
        let mut writers: HashMap<i64, &Movement> = HashMap::new();
        let (mut oldest, mut apart) = (None, None);
        let (mut sales, mut lost_updates) = (0, 0);
        let mut next_version = None;
        for later in in_order {
            let is_next =
                next_version.replace(later.level_version + 1) == Some(later.level_version);
            if !is_next || !later.is_sale() || later.read_version.is_some() {
                writers.clear();
            }
            if !later.is_sale() {
                continue;
            }
            sales += 1;
            let earlier = match later.read_version {
                Some(version) => *readers.entry(version).or_insert(later),
                None => *writers.entry(later.available_after).or_insert(later),
            };
            if earlier.id != later.id {
                lost_updates += 1;
                let pair = (earlier, later);
                oldest.get_or_insert(pair);
                if apart.is_none() && replica(earlier.id) != replica(later.id) {
                    apart = Some(pair);
                }
            }
        }
        let Some((first, second)) = apart.or(oldest) else {
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
            read_version: first.read_version,
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
                let (wrote, then) = (first.available_after, second.available_after);
                match read_version {
                    Some(version) => {
                        write!(f, "{a} and {b} both read version {version} = {read}, ")?;
                        if wrote == then {
                            write!(f, "both wrote {wrote}")?;
                        } else {
                            write!(f, "wrote {wrote} and {then}")?;
                        }
                    }
                    None => write!(
                        f,
                        "{a} and {b} both wrote {wrote}, and no units were added between them"
                    )?,
                }
                match lost_updates - 1 {
                    0 => Ok(()),
                    more => write!(f, " (and {more} more like it)"),
                }
            }
            Self::Nothing { sales } => {
                f.write_str("units were lost, but no two of ")?;
                write!(
                    f,
                    "{sales} sales read the same version or wrote the same level"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ledger of one level with 10 units at the start, in the order of its versions. `-1` is a sale of
    /// one unit without a version. Parts after `:` are the level that it wrote (`=`), the version that it
    /// read (`@`), and its own version (`#`, otherwise the next one). A change upwards, or one that ends in `?`, is no sale.
    fn ledger(text: &str) -> Vec<Movement> {
        let (mut left, mut version) = (10, 10);
        let movement = |(id, word): (u128, &str)| {
            let mut parts = word.split(':');
            let delta = parts.next().expect("a delta");
            let change: i64 = delta.trim_end_matches('?').parse().expect("a number");
            (left, version) = (left + change, version + 1);
            let mut read_version = None;
            for part in parts {
                let number = part[1..].parse().expect("a number");
                match &part[..1] {
                    "=" => left = number,
                    "@" => read_version = Some(number),
                    "#" => version = number,
                    other => panic!("{other}"),
                }
            }
            let is_sale = change < 0 && !delta.ends_with('?');
            Movement {
                id: Uuid::from_u128(id),
                kind: if is_sale { "deducted" } else { "adjusted" }.to_owned(),
                delta: change,
                available_after: left,
                level_version: version,
                read_version,
                created_at: String::new(),
                replica: None,
            }
        };
        (10..).zip(text.split_whitespace()).map(movement).collect()
    }

    fn find(text: &str) -> String {
        let mut rows = ledger(text);
        rows.reverse();
        Evidence::find(&rows, |_| None).to_string()
    }

    #[test]
    fn two_sales_that_read_the_same_version_are_found() {
        let pair = "…0000000b and …0000000c both read version 17 = 10, both wrote 9";
        assert_eq!(find("-1:=10:@16 -1:@17 -1:=9:@17"), pair);
        let all = format!("{pair} (and 1 more like it)");
        assert_eq!(find("-1:=10:@16 -1:@17 -1:=9:@17 -1:@18 -1:=8:@18"), all);
        // What lies between them does not matter, and neither do the quantities.
        let other = "…0000000a and …0000000d both read version 10 = 10, wrote 9 and 8";
        assert_eq!(find("-1:@10 +5 -1 -2:=8:@10"), other);
    }

    #[test]
    fn two_sales_that_wrote_the_same_level_are_found() {
        let pair = "…0000000b and …0000000c both wrote 8, and no units were added between them";
        assert_eq!(find("-1 -1 -1:=8"), pair);
        assert_eq!(find("-1 -1 -3:=8"), pair);
        let found = find("-1 -1 -1:=8 -1 -1:=7 -1:=7");
        assert_eq!(found, format!("{pair} (and 2 more like it)"));
        // Other sales may lie between them.
        let apart = "…0000000a and …0000000d both wrote 9, and no units were added between them";
        assert_eq!(find("-1 -1 -1 -1:=9"), apart);
    }

    /// Ledgers that a correct strategy can write.
    #[test]
    fn same_level_after_another_change_proves_nothing() {
        for text in [
            "-1 -1 -1 -1",
            "-1 -3 -2 -4 -1",
            // A receipt of one unit or more, and units that came back.
            "-1 +1 -1 -1",
            "-2 +2 -2 +2 -2",
            "-1 +5 -6 -1",
            // The backorder limit rises by one: a movement of 0 units, or only a new version.
            "-1 +0:=10 -1",
            "-1 -1:=9:#13",
            // Below zero.
            "-10 -1 -1 +2 -1 -1",
            // An adjustment downwards, and the limit rises later.
            "-1 -1? +0:=10 -1",
        ] {
            let rows = ledger(text);
            let evidence = Evidence::find(&rows, |_| None);
            let sales = rows.iter().filter(|row| row.is_sale()).count();
            assert_eq!(evidence, Evidence::Nothing { sales }, "{text}");
        }
    }

    /// A sale of a strategy that reads the level in SQL can write any level.
    #[test]
    fn sales_with_and_without_a_version_are_not_compared() {
        let text = "-1 -1:@11 -1:=9";
        let nothing =
            "units were lost, but no two of 3 sales read the same version or wrote the same level";
        assert_eq!(find(text), nothing);
    }

    #[test]
    fn order_of_the_versions_decides() {
        let rows = ledger("-1 +1 -1 -1");
        for shift in 0..rows.len() {
            let mut rows = rows.clone();
            rows.rotate_left(shift);
            let evidence = Evidence::find(&rows, |_| None);
            assert_eq!(evidence, Evidence::Nothing { sales: 3 }, "{shift}");
        }
    }

    #[test]
    fn pair_at_two_replicas_is_preferred() {
        for text in ["-1:@7 -1:=9:@7 -1:@8 -1:=8:@8", "-1 -1:=9 -1 -1:=8"] {
            let replica = |id: Uuid| Some(if id.as_u128() == 13 { "b" } else { "a" }.to_owned());
            let Evidence::LostUpdate {
                first,
                second,
                lost_updates,
                ..
            } = Evidence::find(&ledger(text), replica)
            else {
                panic!("{text}: there are two");
            };
            let names = [first, second].map(|sale| sale.replica.expect("a name"));
            let expected = (["a".to_owned(), "b".to_owned()], 2);
            assert_eq!((names, lost_updates), expected, "{text}");
        }
    }
}
