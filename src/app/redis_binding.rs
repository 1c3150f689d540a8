//! The task that checks that Redis is still the one that has the stock of the ledger, and shows the
//! other replicas that it is used. Every replica with a Redis runs it.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::consumer::supervise;
use stocklock_core::ports::StoreError;
use stocklock_store::{BEAT_EVERY, StoreRouter};

/// Checks until `stop` is cancelled.
pub(super) async fn run(store: Arc<StoreRouter>, stop: CancellationToken) {
    let start = || confirm(Arc::clone(&store), stop.clone());
    supervise("the check of Redis's binding", &stop, start).await;
}

async fn confirm(store: Arc<StoreRouter>, stop: CancellationToken) {
    let (mut beat, mut failed) = (0, false);
    loop {
        let confirmed = tokio::select! {
            confirmed = store.confirm_redis(beat) => confirmed,
            () = stop.cancelled() => return,
        };
        match confirmed {
            Ok(seen) => (beat, failed) = (seen, false),
            // The store has logged it.
            Err(StoreError::NotBound(_)) => {}
            Err(error) if !failed => {
                tracing::warn!(%error, "it cannot be checked whether Redis still has the stock");
                failed = true;
            }
            Err(error) => tracing::debug!(%error, "Redis's binding cannot be checked"),
        }
        tokio::select! {
            () = tokio::time::sleep(BEAT_EVERY) => {}
            () = stop.cancelled() => return,
        }
    }
}
