//! `local-mutex`: a mutex in this process around the same read, check, write as `no-lock`.
//!
//! *Guarantees*: exact while one single process sells and no commit is in doubt; nothing once there are two.
//! *Costs*: one read and one transaction under the mutex; deductions of one SKU in one process take turns.
//! *Fails when*: a second replica runs: each holds its own mutex, and both read the same level.
//! *Use when*: you want to see why a lock that others cannot see protects nothing; never with real stock.

use std::hash::{DefaultHasher, Hash, Hasher};

use tokio::sync::{Mutex, MutexGuard};

use crate::retry::RetryPolicy;
use crate::stock::Deduction;
use crate::store::{Attempt, StockStore, StoreError};

use super::{Card, Tier, no_lock};

pub(super) const CARD: Card = Card {
    name: "local-mutex",
    tier: Tier::Unsafe,
    home: "either",
    needs: &[],
    planned: false,
    source: include_str!("local_mutex.rs"),
};

/// How many mutexes there are: enough that two hot SKUs rarely share one, and never more, however
/// many SKUs there are.
const STRIPES: usize = 256;

/// This process's mutexes, one for each stripe of (SKU, warehouse) hashes.
#[derive(Debug)]
pub struct LocalMutexes {
    stripes: Box<[Mutex<()>]>,
}

impl LocalMutexes {
    /// As many free mutexes as there are stripes.
    #[must_use]
    pub fn new() -> Self {
        Self {
            stripes: (0..STRIPES).map(|_| Mutex::new(())).collect(),
        }
    }

    /// Waits for the mutex of what is deducted, granted in the order of asking, or until
    /// `give_up` ends.
    ///
    /// A tokio mutex, not a std one, because it is held across the store's awaits.
    async fn lock(
        &self,
        deduction: &Deduction,
        give_up: impl Future<Output = ()>,
    ) -> Option<MutexGuard<'_, ()>> {
        tokio::select! {
            biased;
            held = self.stripe(deduction).lock() => Some(held),
            () = give_up => None,
        }
    }

    fn stripe(&self, deduction: &Deduction) -> &Mutex<()> {
        let mut hasher = DefaultHasher::new();
        (&deduction.sku, &deduction.warehouse).hash(&mut hasher);
        let stripe = hasher.finish() % STRIPES as u64;
        &self.stripes[usize::try_from(stripe).expect("a stripe's number is small")]
    }
}

impl Default for LocalMutexes {
    fn default() -> Self {
        Self::new()
    }
}

/// Does what `no-lock` does, with the mutex held until the outcome of the commit is known.
pub(super) async fn attempt(
    store: &dyn StockStore,
    mutexes: &LocalMutexes,
    policy: &RetryPolicy,
    deduction: &Deduction,
) -> Result<Attempt, StoreError> {
    let give_up = policy.sleep.sleep(policy.wait_limit);
    let Some(_held) = mutexes.lock(deduction, give_up).await else {
        return Err(StoreError::LockWait("the local mutex stayed taken".into()));
    };
    no_lock::attempt(store, deduction).await
}
