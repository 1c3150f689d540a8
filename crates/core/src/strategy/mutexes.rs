//! The mutexes of one process, by level.

use std::hash::{DefaultHasher, Hash, Hasher};

use tokio::sync::{Mutex, MutexGuard};

use crate::stock::Operation;

/// The number of mutexes: enough that two hot SKUs rarely share one, and bounded for any number of
/// SKUs.
const STRIPES: usize = 256;

/// The mutexes of this process, one for each stripe of (SKU, warehouse) hashes.
#[derive(Debug)]
pub struct LocalMutexes {
    stripes: Box<[Mutex<()>]>,
}

impl Default for LocalMutexes {
    fn default() -> Self {
        Self {
            stripes: (0..STRIPES).map(|_| Mutex::new(())).collect(),
        }
    }
}

impl LocalMutexes {
    /// Waits for the mutex of the deduction's level, in arrival order, or until `limit` ends.
    ///
    /// A tokio mutex, not a std one, because it is held across the awaits of the store.
    pub(super) async fn lock(
        &self,
        deduction: &Operation,
        limit: impl Future<Output = ()>,
    ) -> Option<MutexGuard<'_, ()>> {
        tokio::select! {
            biased;
            held = self.stripe(deduction).lock() => Some(held),
            () = limit => None,
        }
    }

    fn stripe(&self, deduction: &Operation) -> &Mutex<()> {
        let mut hasher = DefaultHasher::new();
        deduction.level().hash(&mut hasher);
        let stripe = hasher.finish() % STRIPES as u64;
        &self.stripes[usize::try_from(stripe).expect("a stripe's number is small")]
    }
}
