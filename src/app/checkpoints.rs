//! The task that writes checkpoints of the ledger, so that audits stay short. Every replica runs it: a
//! checkpoint only moves forward, so it does not matter which replica writes it. It also closes idle
//! connections to the database.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::supervise::supervise;
use stocklock_store::Store;

/// The pause before the levels are looked through again. The movements of this time are the most that
/// an audit sums, besides those that need no checkpoint yet.
const PAUSE: Duration = Duration::from_secs(5);

/// Writes checkpoints until `stop` is cancelled.
pub(super) async fn run(store: Arc<dyn Store>, stop: CancellationToken) {
    let start = || write(Arc::clone(&store), stop.clone());
    supervise("the writer of checkpoints", &stop, start).await;
}

async fn write(store: Arc<dyn Store>, stop: CancellationToken) {
    let mut failed = false;
    loop {
        let round = async {
            tokio::time::sleep(PAUSE).await;
            store.close_idle().await;
            store.write_due().await
        };
        // Dropping a round rolls back the checkpoint that it is writing.
        let written = tokio::select! {
            written = round => written,
            () = stop.cancelled() => return,
        };
        match written {
            Ok(()) => failed = false,
            Err(error) if !failed => {
                tracing::warn!(%error, "checkpoints cannot be written; audits may take longer");
                failed = true;
            }
            Err(error) => tracing::debug!(%error, "checkpoints cannot be written"),
        }
    }
}
