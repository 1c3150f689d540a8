//! The keys that every write of a level needs. They are kept, because it takes longer to put them together.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::cluster::Slot;
use super::idempotency::Buckets;
use super::keys::{Keys, Shard};
use stocklock_core::stock::{Sku, Warehouse};

/// How many [`LevelKeys`] are kept at most: a client can name any number of warehouses.
const KEPT: usize = 10_000;

/// The keys that a write of a level needs.
#[derive(Debug)]
pub(super) struct LevelKeys {
    pub(super) level: Arc<str>,
    pub(super) journal: String,
    /// The journal's counters.
    pub(super) counters: String,
    /// Where dedup entries may be.
    pub(super) buckets: Buckets,
    /// The slot of all of them.
    pub(super) slot: Slot,
}

/// The keys of the levels that were written.
#[derive(Debug, Default)]
pub(super) struct KeptKeys(Mutex<Kept>);

/// The maps are nested so that no name is copied to look one up.
#[derive(Debug, Default)]
struct Kept {
    /// How many there are in both maps.
    count: usize,
    /// Those of operations without and with an idempotency key.
    maps: [HashMap<Sku, HashMap<Warehouse, Arc<LevelKeys>>>; 2],
}

impl KeptKeys {
    /// The keys for an operation with or without an idempotency key, whose requests have this deadline.
    /// `keys` and `deadline` must always be the same.
    pub(super) fn get(
        &self,
        keys: &Keys,
        (sku, warehouse): (&Sku, &Warehouse),
        has_key: bool,
        deadline: Duration,
    ) -> Arc<LevelKeys> {
        // No code panics while it holds this mutex.
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_sku = kept.maps[usize::from(has_key)].get(sku);
        if let Some(found) = of_sku.and_then(|of_sku| of_sku.get(warehouse)) {
            return Arc::clone(found);
        }
        let shard = Shard::for_sku(sku);
        let new = Arc::new(LevelKeys {
            level: keys.level(shard, sku, warehouse).into(),
            journal: keys.journal(shard),
            counters: keys.counters(shard),
            buckets: Buckets::new(keys, shard, has_key, deadline),
            slot: keys.slot(shard),
        });
        if kept.count >= KEPT {
            *kept = Kept::default();
        }
        kept.count += 1;
        let map = &mut kept.maps[usize::from(has_key)];
        let of_sku = map.entry(sku.clone()).or_default();
        of_sku.insert(warehouse.clone(), Arc::clone(&new));
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_keys_are_those_of_the_level_and_the_operation() {
        let (kept, keys) = (KeptKeys::default(), Keys("1f".to_owned()));
        let name = |sku: &str, warehouse: &str| {
            let sku = Sku::parse(sku).expect("a SKU");
            (sku, Warehouse::parse(warehouse).expect("a warehouse"))
        };
        let get = |(sku, warehouse): &(Sku, Warehouse), has_key| {
            let found = kept.get(&keys, (sku, warehouse), has_key, Duration::from_secs(5));
            (found.level.to_string(), found.buckets.length)
        };
        for _ in 0..2 {
            for (sku, warehouse) in [("a", "main"), ("a", "other"), ("b", "main")] {
                let place = name(sku, warehouse);
                let level = format!(":{sku}:{warehouse}");
                for (has_key, length) in [(true, 12 * 3_600_000), (false, 15_000)] {
                    let found = get(&place, has_key);
                    assert!(found.0.ends_with(&level), "{found:?}");
                    assert_eq!(found.1, length);
                }
            }
        }
    }

    /// Goal: requests for warehouses that do not exist take no memory for good.
    #[test]
    fn number_of_kept_keys_is_bounded() {
        let (kept, keys) = (KeptKeys::default(), Keys("1f".to_owned()));
        let sku = Sku::parse("a").expect("a SKU");
        for number in 0..=KEPT {
            let warehouse = Warehouse::parse(format!("w{number}")).expect("a warehouse");
            kept.get(&keys, (&sku, &warehouse), true, Duration::from_secs(5));
        }
        let kept = kept.0.lock().expect("no panic");
        let maps = kept.maps.iter().flat_map(HashMap::values);
        assert_eq!(maps.map(HashMap::len).sum::<usize>(), 1);
        assert_eq!(kept.count, 1);
    }
}
