//! Writes levels: what every write needs, and the writes of levels that were computed from an earlier
//! read. Those happen only if their conditions still hold.

use std::sync::Arc;

use redis::{ScriptInvocation, Value};
use tokio::time::Instant;

use super::errors::bad_answer;
use super::idempotency::{self, KeyCheck, UnknownOutcomes};
use super::keys::Shard;
use super::level_keys::LevelKeys;
use super::nodes::Server;
use super::scripts::{self, Answer};
use super::{RedisStore, attempt, levels};
use crate::sql::ledger_row::LedgerRow;
use crate::{AttemptOutcome, ChangeOutcome, StoreError};
use stocklock_core::ports::{Condition, PlannedLevel, adjusted};
use stocklock_core::stock::{
    Adjustment, Deduction, Fence, Idempotency, LevelChange, OperationId, StockLevel, Warehouse,
};

/// One operation on one level: the keys and arguments that every write needs.
#[derive(Debug, Clone)]
pub(super) struct WriteRequest {
    pub(super) row: LedgerRow,
    pub(super) keys: Arc<LevelKeys>,
    /// The name of its dedup entry.
    pub(super) field: String,
    /// What the movement has in common with others, as the journal stores it.
    pub(super) common: Arc<str>,
    /// The movement as the journal stores it.
    pub(super) movement: String,
    /// Whether SQL must be asked before the write, if Redis may have lost the dedup entry.
    pub(super) key_check: KeyCheck,
}

impl WriteRequest {
    /// Lets SQL be asked if there is a key, or `unknown` has the operation.
    pub(super) fn uncheck(&mut self, unknown: &UnknownOutcomes) {
        let has_key = self.row.idempotency_key.is_some();
        let is_known = has_key || unknown.have(self.row.operation_id);
        self.key_check = if is_known {
            KeyCheck::Needed
        } else {
            KeyCheck::NotNeeded
        };
    }

    /// Adds the keys and arguments that `scripts/prelude.lua` reads.
    pub(super) fn add_call(&self, script: &mut ScriptInvocation<'_>, journal_limit: u32) {
        script
            .key(&*self.keys.level)
            .key(&self.keys.journal)
            .key(&self.keys.counters)
            .key(&self.keys.buckets.keys)
            .arg(journal_limit)
            .arg(self.keys.buckets.length)
            .arg(&*self.common);
    }

    /// Adds the arguments that the scripts read for each operation.
    pub(super) fn add_operation(&self, script: &mut ScriptInvocation<'_>) {
        script
            .arg(&self.field)
            .arg(&self.movement)
            .arg(self.row.idempotency_key.as_deref().unwrap_or_default())
            .arg(self.key_check.argument());
    }
}

/// The values to write, and the conditions of the write.
#[derive(Debug)]
struct Wanted<'a> {
    on_hand: i64,
    /// `None` keeps the current limit.
    backorder_limit: Option<i64>,
    /// Refuses the write if a later holder of this lock has written.
    fence: Option<&'a Fence>,
    /// The keys of levels, and the versions that they must have.
    expected_versions: Vec<(String, i64)>,
    /// When the caller is answered at the latest.
    deadline: Instant,
}

fn or_empty(value: Option<impl ToString>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

impl RedisStore {
    pub(super) async fn request(
        &self,
        row: LedgerRow,
        key: Option<&Idempotency>,
    ) -> Result<WriteRequest, StoreError> {
        let keys = self.keys().await?;
        let (place, deadline) = ((&row.sku, &row.warehouse), self.options.request_deadline);
        let operation = OperationId(row.operation_id);
        Ok(WriteRequest {
            keys: self.kept_keys.get(keys, place, key.is_some(), deadline),
            field: idempotency::field(&row.sku, operation, key),
            common: row.common_text().into(),
            movement: row.movement_text(),
            key_check: KeyCheck::Needed,
            row,
        })
    }

    /// Deducts from the level `read`, if the condition holds.
    pub(crate) async fn write_from(
        &self,
        deduction: &Deduction,
        read: &StockLevel,
        condition: Condition<'_>,
    ) -> Result<AttemptOutcome, StoreError> {
        let row = LedgerRow::from_deduction(deduction, Some(read));
        let units = deduction.quantity.units();
        let key = deduction.idempotency.as_ref();
        let request = self.request(row, key).await?;
        let expected = (request.keys.level.to_string(), read.version);
        let (fence, expected_versions) = match condition {
            Condition::None => (None, vec![]),
            Condition::Version => (None, vec![expected]),
            Condition::Fence(fence) => (Some(fence), vec![expected]),
        };
        let wanted = Wanted {
            on_hand: read.on_hand - units,
            backorder_limit: None,
            fence,
            expected_versions,
            deadline: deduction.deadline,
        };
        match self.write(request, key, &wanted).await? {
            // Redis lost the level since it was read: read it again.
            Answer::Absent => Ok(AttemptOutcome::Conflict),
            Answer::Full => Err(self.capacity.exceeded()),
            answer => attempt(answer, units),
        }
    }

    /// Sets an existing level. `warehouses` are all warehouses of the SKU.
    pub(crate) async fn set_level(
        &self,
        change: &LevelChange,
        warehouses: &[Warehouse],
    ) -> Result<ChangeOutcome, StoreError> {
        let existing = self.levels_in(&change.sku, warehouses).await?;
        let planned = match PlannedLevel::new(change, &existing) {
            Ok(planned) if planned.is_creation() => return Ok(ChangeOutcome::UnknownSku),
            Ok(planned) => planned,
            Err(done @ ChangeOutcome::Done { .. }) => {
                // An earlier attempt may have written the level, and too few replicas have it.
                let is_kept = self.is_replicated(&change.sku, &existing).await?;
                return Ok(if is_kept {
                    done
                } else {
                    ChangeOutcome::Conflict
                });
            }
            Err(outcome) => return Ok(outcome),
        };
        let row = LedgerRow::from_level_change(change, &planned);
        let written = (planned.level, row, change.deadline);
        self.write_level(written, &existing, None).await
    }

    /// Adds units to a level, or removes them.
    pub(crate) async fn adjust(
        &self,
        adjustment: &Adjustment,
    ) -> Result<ChangeOutcome, StoreError> {
        let Adjustment { sku, warehouse, .. } = adjustment;
        let Some(read) = self.level(sku, warehouse).await? else {
            return Ok(ChangeOutcome::UnknownSku);
        };
        let key = adjustment.idempotency.as_ref();
        let level = match adjusted(adjustment, &read) {
            Ok(level) => level,
            Err(refused) => {
                // Redis may have lost the key of the adjustment that took the last units.
                let row = LedgerRow::from_adjustment(adjustment, &read);
                let request = self.request(row, key).await?;
                let is_recorded = key.is_some() && self.restore(&request, key).await?;
                return Ok(if is_recorded {
                    ChangeOutcome::Duplicate
                } else {
                    refused
                });
            }
        };
        let row = LedgerRow::from_adjustment(adjustment, &level);
        let written = (level, row, adjustment.deadline);
        self.write_level(written, &[read], key).await
    }

    /// Writes a level and its movement before the deadline, if all levels in `read` still have their
    /// versions.
    async fn write_level(
        &self,
        (level, row, deadline): (StockLevel, LedgerRow, Instant),
        read: &[StockLevel],
        key: Option<&Idempotency>,
    ) -> Result<ChangeOutcome, StoreError> {
        let keys = self.keys().await?;
        let shard = Shard::for_sku(&level.sku);
        let expected = |read: &StockLevel| {
            let key = keys.level(shard, &read.sku, &read.warehouse);
            (key, read.version)
        };
        let wanted = Wanted {
            on_hand: level.on_hand,
            backorder_limit: Some(level.backorder_limit),
            fence: None,
            expected_versions: read.iter().map(expected).collect(),
            deadline,
        };
        let request = self.request(row, key).await?;
        Ok(match self.write(request, key, &wanted).await? {
            Answer::Written { .. } => ChangeOutcome::Done {
                level,
                created: false,
            },
            Answer::Duplicate => ChangeOutcome::Duplicate,
            // The level was changed or lost since it was read: read it again.
            Answer::Absent | Answer::Conflict | Answer::Fenced => ChangeOutcome::Conflict,
            // The expected versions exclude too few units. `write` has checked the key in SQL.
            answer @ (Answer::Insufficient { .. } | Answer::KeyMayBeLost { .. }) => {
                return Err(bad_answer(answer));
            }
            Answer::Full => return Err(self.capacity.exceeded()),
        })
    }

    /// Writes `wanted`, unless the operation was executed before. If Redis may have lost the key, asks
    /// SQL for it.
    async fn write(
        &self,
        request: WriteRequest,
        key: Option<&Idempotency>,
        wanted: &Wanted<'_>,
    ) -> Result<Answer, StoreError> {
        let operation = request.row.operation_id;
        let answer = self.write_checked(request, key, wanted).await;
        self.unknown.observe(operation, wanted.deadline, &answer);
        answer
    }

    async fn write_checked(
        &self,
        mut request: WriteRequest,
        key: Option<&Idempotency>,
        wanted: &Wanted<'_>,
    ) -> Result<Answer, StoreError> {
        request.uncheck(&self.unknown);
        for _ in 0..levels::MAX_LOADS {
            let loaded = match self.try_write(&request, wanted).await? {
                Answer::KeyMayBeLost { loaded } => loaded,
                answer => return Ok(answer),
            };
            if self.restore(&request, key).await? {
                return Ok(Answer::Duplicate);
            }
            request.key_check = KeyCheck::Done { loaded };
        }
        Err(levels::evicted_again())
    }

    async fn try_write(
        &self,
        request: &WriteRequest,
        wanted: &Wanted<'_>,
    ) -> Result<Answer, StoreError> {
        let write =
            |server: Arc<Server>| async move { self.write_on(&server, request, wanted).await };
        self.nodes.on(request.keys.slot, write).await
    }

    async fn write_on(
        &self,
        server: &Server,
        request: &WriteRequest,
        wanted: &Wanted<'_>,
    ) -> Result<Answer, StoreError> {
        let expiry = server.shared.expiry(wanted.deadline).await?;
        let mut script = scripts::WRITE.prepare_invoke();
        request.add_call(&mut script, self.capacity.movements());
        request.add_operation(&mut script);
        script
            .arg(wanted.on_hand)
            .arg(or_empty(wanted.backorder_limit))
            .arg(or_empty(wanted.fence.map(|fence| fence.token)))
            .arg(or_empty(wanted.fence.map(|fence| &fence.source)))
            .arg(expiry.at);
        for (level, version) in &wanted.expected_versions {
            script.key(level).arg(*version);
        }
        let answer = self.writer.run(server, &script).await;
        let answer = answer.map_err(|failed| failed.writing().expiring(expiry))?;
        Answer::parse(answer.first().unwrap_or(&Value::Nil))
    }
}
