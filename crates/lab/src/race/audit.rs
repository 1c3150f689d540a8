//! The audit after a run: counter against ledger, once SQL has what was journaled in Redis.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::replica_client::{Audit, ReplicaClient};
use super::target::Target;
use super::{RaceError, not_shared};

/// Between two looks: the replicas bring the journals into SQL many times in a second.
const PAUSE: Duration = Duration::from_millis(20);

/// Audits the SKU until nothing is pending, or until `limit` has passed; the last audit tells which.
/// Stock that lives in SQL never has anything pending.
pub(super) async fn read(
    service: &mut ReplicaClient,
    sku: &str,
    target: &Target,
    limit: Duration,
) -> Result<Audit, RaceError> {
    let until = Instant::now() + limit;
    loop {
        let audit = service.audit(sku).await?;
        let audit = audit.ok_or_else(|| not_shared(target, target))?;
        if audit.pending == 0 || Instant::now() >= until {
            return Ok(audit);
        }
        sleep(PAUSE).await;
    }
}
