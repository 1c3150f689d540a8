//! What the buyers of a run share.

use std::sync::atomic::AtomicUsize;
use std::sync::{Mutex, MutexGuard};

use bytes::Bytes;
use serde_json::json;
use tokio::time::Instant;

use super::plan::RacePlan;
use super::replica_client::WAREHOUSE;
use super::tally::Tally;

/// What all buyers of a run share.
#[derive(Debug)]
pub(super) struct Sale {
    pub(super) plan: RacePlan,
    /// One for each line of an order.
    pub(super) skus: Vec<String>,
    pub(super) path: String,
    pub(super) deadline: Instant,
    /// The first buyer who has no connection yet.
    pub(super) next_buyer: AtomicUsize,
    pub(super) tally: Mutex<Tally>,
    pub(super) targets: usize,
}

impl Sale {
    /// The body of a buyer's orders. Each buyer begins with another line.
    pub(super) fn body(&self, buyer: usize) -> Bytes {
        let line =
            |sku| json!({"sku": sku, "warehouse": WAREHOUSE, "quantity": self.plan.quantity});
        let mut lines: Vec<_> = self.skus.iter().map(line).collect();
        let first = buyer % lines.len();
        lines.rotate_left(first);
        let body = match (&mut lines[..], self.plan.holds) {
            ([line], false) => line.take(),
            (lines, _) => json!({ "lines": lines }),
        };
        body.to_string().into()
    }

    /// The answers so far. Never held while a buyer waits.
    pub(super) fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().expect("counting does not panic")
    }
}
