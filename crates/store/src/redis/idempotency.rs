//! Dedup entries: the executed operations that Redis remembers, each with its movement. And what must be
//! looked up in SQL because Redis may have lost its dedup entry.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use redis::Cmd;
use tokio::time::Instant;
use uuid::Uuid;

use super::RedisStore;
use super::keys::Shard;
use super::update::WriteRequest;
use crate::StoreError;
use crate::journal::{EntryId, format_line, parse_line};
use crate::sql::ledger_row::LedgerRow;
use stocklock_core::ports::Server;
use stocklock_core::stock::{Idempotency, Movement, OperationId, Sku};

/// The operations without a key that have an attempt whose outcome is unknown, each with the time at
/// which its caller is answered at the latest. Other operations without a key cannot be in SQL.
#[derive(Debug, Default)]
pub(super) struct UnknownOutcomes(Mutex<HashMap<Uuid, Instant>>);

impl UnknownOutcomes {
    pub(super) fn have(&self, operation: Uuid) -> bool {
        self.lock().contains_key(&operation)
    }

    /// Remembers what an attempt has told about the operation.
    pub(super) fn observe<T>(
        &self,
        operation: Uuid,
        deadline: Instant,
        attempt: &Result<T, StoreError>,
    ) {
        match attempt {
            Ok(_) => _ = self.lock().remove(&operation),
            Err(StoreError::OutcomeUnknown(..)) => {
                let (mut operations, now) = (self.lock(), Instant::now());
                operations.retain(|_, answered| *answered > now);
                operations.insert(operation, deadline);
            }
            Err(_) => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Uuid, Instant>> {
        // No code panics while it holds this mutex.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RedisStore {
    /// Reads the movement in the dedup entry of this key, or of this operation if it has no key.
    pub(crate) async fn remembered(
        &self,
        sku: &Sku,
        operation: OperationId,
        idempotency: Option<&Idempotency>,
    ) -> Result<Option<Movement>, StoreError> {
        let keys = self.keys().await?;
        let key = keys.dedup(Shard::for_sku(sku), sku, operation, idempotency);
        let entry: Option<String> = self.shared.read(&Cmd::get(key)).await?;
        let Some(entry) = entry else {
            return Ok(None);
        };
        // The entry has no journal entry id, so the movement has no time.
        let row = parse_line(&entry, EntryId::default()).map_err(|problem| {
            let problem = format!("this release cannot read the dedup entry {entry}: {problem}");
            StoreError::Unavailable(Server::Redis, problem.into())
        })?;
        row.movement().map(Some)
    }

    /// Looks up the operation in SQL, because Redis may have lost its dedup entry. Creates the entry of a
    /// key again. Returns whether SQL has the operation.
    ///
    /// A movement in the journal still has its dedup entry. One case is missed: a consumer read the
    /// movement, Redis lost it, and the consumer has not applied it yet.
    pub(super) async fn restore_from_sql(
        &self,
        request: &WriteRequest,
        key: Option<&Idempotency>,
    ) -> Result<bool, StoreError> {
        let (sku, operation) = (&request.row.sku, OperationId(request.row.operation_id));
        let recorded = self.sql.recorded(sku, operation, key).await?;
        // In SQL a key is unique per caller, in Redis per caller and SKU.
        let Some(movement) = recorded.filter(|found| found.sku == *sku) else {
            return Ok(false);
        };
        let Some(key) = key else { return Ok(true) };
        let row = LedgerRow::from_movement(movement, key);
        let entry = format_line(row.available_after, &row.to_journal_text());
        let mut set = redis::cmd("SET");
        set.arg(&request.dedup_key).arg(entry).arg("NX").arg("PX");
        // `read` is correct here because this SET is safe to repeat.
        let _: Option<String> = self.shared.read(set.arg(request.dedup_millis)).await?;
        Ok(true)
    }
}
