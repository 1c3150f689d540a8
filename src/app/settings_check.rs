//! Warns at start about settings, here or of the servers, that weaken a promise.

use super::Replica;
use stocklock_store::StockStore;

impl Replica {
    /// Logs a warning for each unsafe setting.
    pub async fn warn_of_unsafe_settings(&self) {
        let (database, locks) =
            tokio::join!(self.stores.store.unsafe_settings(), self.locks.warnings());
        match database {
            Ok(problems) => problems
                .iter()
                .for_each(|problem| tracing::warn!("{problem}")),
            Err(error) => tracing::warn!(%error, "cannot check the settings of the database"),
        }
        for problem in locks {
            tracing::warn!("{problem}");
        }
        let lease = self.config.services.lock_lease_ms;
        let deadline = self.config.limits.request_deadline_ms;
        if self.locks.locks().iter().next().is_some() && lease < deadline {
            tracing::warn!(
                ?lease,
                ?deadline,
                "LOCK_LEASE_MS is shorter than REQUEST_DEADLINE_MS: a request that pauses longer \
                 than the lease loses its lock; increase LOCK_LEASE_MS"
            );
        }
    }
}
