//! The task in the background: it writes checkpoints of the ledger, so that audits stay short, ends holds whose
//! time is over, and closes idle connections to the database. Every replica runs it: a checkpoint only moves
//! forward, and a hold ends once, so it does not matter which replica does it. No sale depends on it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::supervise::{Outage, supervise};
use stocklock_core::level_service::LevelService;
use stocklock_core::stock::StockError;
use stocklock_store::Store;

/// The pause before the levels are looked through again. The movements of this time are the most that
/// an audit sums, besides those that need no checkpoint yet.
const PAUSE: Duration = Duration::from_secs(5);

/// Writes checkpoints until `stop` is cancelled.
pub(super) async fn run(store: Arc<dyn Store>, levels: LevelService, stop: CancellationToken) {
    let start = || write(Arc::clone(&store), levels.clone(), stop.clone());
    supervise("the writer of checkpoints", &stop, start).await;
}

async fn write(store: Arc<dyn Store>, levels: LevelService, stop: CancellationToken) {
    let mut outage = Outage::default();
    loop {
        let round = async {
            tokio::time::sleep(PAUSE).await;
            store.close_idle().await;
            let expired = expire(&levels).await;
            store.write_due().await?;
            expired
        };
        // Dropping a round rolls back the checkpoint that it is writing.
        let written = tokio::select! {
            written = round => written,
            () = stop.cancelled() => return,
        };
        let problem =
            "checkpoints cannot be written, or holds cannot be ended; audits may take longer";
        outage.note(written, problem);
    }
}

/// Ends holds whose time is over, until none is left that can end, or the next round is due.
async fn expire(levels: &LevelService) -> Result<(), StockError> {
    let deadline = Instant::now() + PAUSE;
    while Instant::now() < deadline && levels.expire_due(deadline).await? > 0 {}
    Ok(())
}
