//! What the buyers of a run share.

use std::sync::atomic::AtomicUsize;
use std::sync::{Mutex, MutexGuard};

use bytes::Bytes;
use tokio::time::Instant;

use super::plan::RacePlan;
use super::tally::Tally;

/// What all buyers of a run share.
#[derive(Debug)]
pub(super) struct Sale {
    pub(super) plan: RacePlan,
    pub(super) sku: String,
    pub(super) path: String,
    pub(super) body: Bytes,
    pub(super) deadline: Instant,
    /// The first buyer who has no connection yet.
    pub(super) next_buyer: AtomicUsize,
    pub(super) tally: Mutex<Tally>,
    pub(super) targets: usize,
}

impl Sale {
    /// The answers so far. Never held while a buyer waits.
    pub(super) fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().expect("counting does not panic")
    }
}
