//! `local-mutex`: a mutex in this process around the same read, check, write as `no-lock`.
//!
//! *Guarantees*: exact while a single process sells and no outcome is unknown; nothing with two processes.
//! *Costs*: one read and one transaction under the mutex; deductions of one SKU in one process take turns.
//! *Fails when*: a second replica runs: each replica has its own mutex, and both read the same level.
//! *Use when*: you want to see that a lock which other processes cannot see protects nothing; never with real stock.

use std::hash::{DefaultHasher, Hash, Hasher};

use tokio::sync::{Mutex, MutexGuard};

use super::{Card, Tier, no_lock};
use crate::deduct::DeductionRun;
use crate::ports::{AttemptOutcome, StoreError};
use crate::stock::Deduction;

pub(super) const CARD: Card = Card {
    name: "local-mutex",
    tier: Tier::Unsafe,
    needs: &[],
    source: include_str!("local_mutex.rs"),
};

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
    async fn lock(
        &self,
        deduction: &Deduction,
        limit: impl Future<Output = ()>,
    ) -> Option<MutexGuard<'_, ()>> {
        tokio::select! {
            biased;
            held = self.stripe(deduction).lock() => Some(held),
            () = limit => None,
        }
    }

    fn stripe(&self, deduction: &Deduction) -> &Mutex<()> {
        let mut hasher = DefaultHasher::new();
        (&deduction.sku, &deduction.warehouse).hash(&mut hasher);
        let stripe = hasher.finish() % STRIPES as u64;
        &self.stripes[usize::try_from(stripe).expect("a stripe's number is small")]
    }
}

/// The attempt of `no-lock`, with the mutex held until the outcome of the commit is known.
pub(super) async fn attempt(run: &DeductionRun<'_>) -> Result<AttemptOutcome, StoreError> {
    let policy = &run.context.policy;
    let limit = policy.sleep.sleep(policy.wait_limit);
    let Some(_held) = run.context.mutexes.lock(run.deduction, limit).await else {
        return Err(StoreError::LockWait("the local mutex stayed locked".into()));
    };
    no_lock::attempt(run).await
}
