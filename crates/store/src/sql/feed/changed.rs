//! What a replica remembers of its writes, until it has published them.

use std::collections::HashSet;
use std::mem;
use std::sync::OnceLock;

use parking_lot::{Mutex, MutexGuard};

use stocklock_core::stock::{Sku, Warehouse};

/// How many levels are remembered at most. Others are found when all levels are looked through.
const REMEMBERED: usize = 100_000;

/// A level that has changed.
pub(super) type Place = (Sku, Warehouse);

/// The levels that this replica has changed and not published yet. None are remembered if events are off.
#[derive(Debug, Default)]
pub(in crate::sql) struct Changed(OnceLock<Mutex<HashSet<Place>>>);

impl Changed {
    /// Remembers from now on.
    pub(super) fn follow(&self) {
        self.0.get_or_init(Mutex::default);
    }

    /// Whether levels are remembered.
    pub(super) fn is_followed(&self) -> bool {
        self.0.get().is_some()
    }

    fn levels(&self) -> Option<MutexGuard<'_, HashSet<Place>>> {
        Some(self.0.get()?.lock())
    }

    /// Remembers levels that a write may have changed, after its end.
    pub(in crate::sql) fn remember<'a>(
        &self,
        of: impl IntoIterator<Item = (&'a Sku, &'a Warehouse)>,
    ) {
        let Some(mut levels) = self.levels() else {
            return;
        };
        for (sku, warehouse) in of {
            if levels.len() >= REMEMBERED {
                return;
            }
            levels.insert((sku.clone(), warehouse.clone()));
        }
    }

    /// Takes all of them.
    pub(super) fn take(&self) -> Vec<Place> {
        let taken = self.levels().map(|mut levels| mem::take(&mut *levels));
        taken.into_iter().flatten().collect()
    }
}
