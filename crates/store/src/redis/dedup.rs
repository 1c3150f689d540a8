//! Dedup entries: the executed operations that Redis remembers, each with its movement.

use super::RedisStore;
use super::failure::bad_answer;
use super::write_request::WriteRequest;
use crate::StoreError;
use crate::journal::{EntryId, format_line, parse_line};
use crate::sql::ledger_row::LedgerRow;
use stocklock_core::stock::{Idempotency, Movement, OperationId, Sku};

impl RedisStore {
    /// Reads the movement in the dedup entry of this key, or of this operation if it has no key.
    pub(crate) async fn remembered(
        &self,
        sku: &Sku,
        operation: OperationId,
        idempotency: Option<&Idempotency>,
    ) -> Result<Option<Movement>, StoreError> {
        let key = self
            .keys()
            .await?
            .for_sku(sku)
            .dedup(operation, idempotency);
        let entry: Option<String> = self.shared.read(redis::cmd("GET").arg(key)).await?;
        entry.map(|entry| movement(&entry)).transpose()
    }

    /// Looks up the key in SQL, because Redis may have lost its dedup entry, and creates the entry
    /// again. Returns whether SQL has the key.
    ///
    /// A movement in the journal still has its dedup entry. One case is missed: a consumer read the
    /// movement, Redis lost it, and the consumer has not applied it yet.
    pub(super) async fn restore_from_sql(
        &self,
        request: &WriteRequest,
        sku: &Sku,
        key: Option<&Idempotency>,
    ) -> Result<bool, StoreError> {
        let recorded = self.sql.recorded(sku, request.operation, key).await?;
        // In SQL a key is unique per caller, in Redis per caller and SKU.
        let (Some(key), Some(movement)) = (key, recorded.filter(|found| found.sku == *sku)) else {
            return Ok(false);
        };
        let available = movement.available_after;
        let row = LedgerRow::from_movement(movement, key);
        let entry = format_line(available, &row.to_journal_text());
        let mut set = redis::cmd("SET");
        set.arg(&request.dedup_key).arg(entry).arg("NX").arg("PX");
        // `read` is correct here because this SET is safe to repeat.
        let _: Option<String> = self
            .shared
            .read(set.arg(request.dedup_ttl_millis()))
            .await?;
        Ok(true)
    }
}

/// Parses a dedup entry, which is the movement's line in the journal entry.
fn movement(dedup_entry: &str) -> Result<Movement, StoreError> {
    // A dedup entry has no journal entry id, so the movement has no time.
    let row = parse_line(dedup_entry, EntryId::default()).map_err(|_| bad_answer(dedup_entry))?;
    row.movement()
}
