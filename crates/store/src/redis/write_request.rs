//! The keys, values and arguments that every write to a level needs.

use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;

use super::{KEY_DEDUP_TTL, OPERATION_DEDUP_TTL, RedisStore};
use crate::StoreError;
use crate::sql::ledger_row::LedgerRow;
use stocklock_core::stock::{Idempotency, OperationId, Sku, Warehouse};

/// One operation on one level.
#[derive(Debug)]
pub(super) struct WriteRequest {
    pub(super) operation: OperationId,
    /// The key of the level.
    pub(super) level: Arc<str>,
    /// The key of the journal.
    pub(super) journal: String,
    /// The key of the journal's counters.
    pub(super) counters: String,
    /// The key of the dedup entry.
    pub(super) dedup_key: String,
    /// The movement as the journal stores it.
    pub(super) movement: String,
    /// How long Redis keeps the dedup entry.
    pub(super) dedup_ttl: Duration,
}

/// A write that deducts units.
#[derive(Debug)]
pub(super) struct DeductRequest {
    pub(super) write: Arc<WriteRequest>,
    pub(super) units: i64,
    pub(super) key_check: KeyCheck,
}

/// Whether SQL must be asked for the idempotency key before the write, if Redis may have lost it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyCheck {
    Needed,
    /// SQL does not have the key, or the operation has none.
    Done,
}

impl KeyCheck {
    /// The check that an operation with this key starts with.
    pub(super) fn for_key(key: Option<&Idempotency>) -> Self {
        match key {
            Some(_) => Self::Needed,
            None => Self::Done,
        }
    }
}

impl RedisStore {
    pub(super) async fn write_request(
        &self,
        (sku, warehouse): (&Sku, &Warehouse),
        row: &LedgerRow,
        idempotency: Option<&Idempotency>,
    ) -> Result<WriteRequest, StoreError> {
        let keys = self.keys().await?;
        let sku_keys = keys.for_sku(sku);
        let operation = OperationId(row.operation_id);
        Ok(WriteRequest {
            operation,
            level: sku_keys.level(warehouse).into(),
            journal: keys.journal(sku_keys.shard),
            counters: keys.counters(sku_keys.shard),
            dedup_key: sku_keys.dedup(operation, idempotency),
            movement: row.to_journal_text(),
            dedup_ttl: idempotency.map_or(OPERATION_DEDUP_TTL, |_| KEY_DEDUP_TTL),
        })
    }
}

impl WriteRequest {
    /// Adds the keys that `scripts/prelude.lua` reads.
    pub(super) fn write_keys(&self, command: &mut Cmd) {
        command
            .arg(&*self.level)
            .arg(&self.journal)
            .arg(&self.counters);
    }

    /// Adds the arguments that the scripts read for each operation.
    pub(super) fn write_arguments(&self, key_check: KeyCheck, command: &mut Cmd) {
        command
            .arg(&self.movement)
            .arg(self.dedup_ttl_millis())
            .arg(u8::from(key_check == KeyCheck::Done));
    }

    pub(super) fn dedup_ttl_millis(&self) -> u64 {
        u64::try_from(self.dedup_ttl.as_millis()).unwrap_or(u64::MAX)
    }
}
