//! What a replica does before it serves: it warns about unsafe settings, and seeds the lab's stock.

use super::Replica;
use crate::http::lab_sku;
use stocklock_core::stock::{
    Caller, Change, Line, Operation, Precondition, Refusal, Remark, Scope, Setting, StockError,
    Warehouse,
};
use stocklock_core::strategy::{Dependency, Strategy};

/// Units of the lab's SKU.
const LAB_STOCK: i64 = 5_000;

impl Replica {
    /// Logs a warning for each setting, here or of a server, that weakens a promise.
    pub async fn warn_of_unsafe_settings(&self) {
        let api = &self.api;
        let (database, locks) = tokio::join!(api.store.unsafe_settings(), api.locks.warnings());
        let database = database.unwrap_or_else(|error| {
            vec![format!(
                "cannot check the settings of the database: {error}"
            )]
        });
        for problem in database.into_iter().chain(locks) {
            tracing::warn!("{problem}");
        }
        let lease = api.config.services.lock_lease_ms;
        let deadline = api.config.limits.request_deadline_ms;
        let on_servers = api.locks.locks.iter();
        let on_servers = on_servers.filter(|lock| lock.dependency() != Dependency::Database);
        let has_leases = on_servers.count() > 0 || api.config.service.strategy == Strategy::SqlLock;
        if has_leases && lease < deadline {
            tracing::warn!(
                ?lease,
                ?deadline,
                "LOCK_LEASE_MS is shorter than REQUEST_DEADLINE_MS: a request that pauses longer \
                 than the lease loses its lock; increase LOCK_LEASE_MS"
            );
        }
    }

    /// Creates the lab's SKU, unless it exists.
    ///
    /// # Errors
    /// The reason why the level could not be set.
    pub async fn seed_lab(&self) -> Result<(), StockError> {
        let api = &self.api;
        let setting = Change::Set(Setting {
            on_hand: Some(LAB_STOCK),
            backorder_limit: None,
            precondition: Some(Precondition::Absent),
            scope: Scope::Sku,
        });
        let line = Line::new(lab_sku(), Warehouse::default(), setting);
        let reason = Remark::parse("reason", "seeded by the lab").ok();
        let change = Operation::of_line(Caller::anonymous(), line, reason, api.deadline());
        match api.levels.change(change).await {
            Ok(_) | Err(StockError::Refused(Refusal::PreconditionFailed)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
