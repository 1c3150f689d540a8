//! Writes a level that was computed from an earlier read, if the conditions of the write hold.

use redis::Cmd;

use super::scripts::{self, Answer};
use super::write_request::{KeyCheck, WriteRequest};
use super::{RedisStore, attempt};
use crate::sql::ledger_row::LedgerRow;
use crate::{AttemptOutcome, StoreError};
use stocklock_core::ports::Condition;
use stocklock_core::stock::{Deduction, Fence, Idempotency, Sku, StockLevel};

/// The values to write, and the conditions of the write.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    on_hand: i64,
    /// `None` keeps the current limit.
    backorder_limit: Option<i64>,
    fence: Option<&'a Fence>,
    /// The keys of levels, and the versions that they must have.
    expected_versions: Vec<(String, i64)>,
}

impl<'a> Wanted<'a> {
    pub(super) fn new(on_hand: i64, backorder_limit: Option<i64>) -> Self {
        Self {
            on_hand,
            backorder_limit,
            fence: None,
            expected_versions: Vec::new(),
        }
    }

    /// Refuses the write if a later holder of the lock has written.
    fn fenced(&mut self, fence: &'a Fence) {
        self.fence = Some(fence);
    }

    /// Refuses the write if the level has another version.
    pub(super) fn expect_version(&mut self, level: String, version: i64) {
        self.expected_versions.push((level, version));
    }

    /// Adds the keys and arguments in the order of `scripts/write.lua`.
    fn write_arguments(
        &self,
        request: &WriteRequest,
        key_check: KeyCheck,
        journal_limit: u32,
        command: &mut Cmd,
    ) {
        command.arg(4 + self.expected_versions.len());
        request.write_keys(command);
        command.arg(&request.dedup_key);
        for (level, _) in &self.expected_versions {
            command.arg(level);
        }
        command.arg(journal_limit);
        request.write_arguments(key_check, command);
        command
            .arg(self.on_hand)
            .arg(or_empty(self.backorder_limit));
        command.arg(or_empty(self.fence.map(|fence| fence.token)));
        command.arg(or_empty(self.fence.map(|fence| &fence.source)));
        for (_, version) in &self.expected_versions {
            command.arg(version);
        }
    }
}

fn or_empty(value: Option<impl ToString>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

impl RedisStore {
    /// Deducts from the level `read`, if the guard holds.
    pub(crate) async fn write_from(
        &self,
        deduction: &Deduction,
        read: &StockLevel,
        guard: Condition<'_>,
    ) -> Result<AttemptOutcome, StoreError> {
        let row = LedgerRow::from_deduction(deduction, Some(read));
        let units = deduction.quantity.units();
        let (sku, key) = (&deduction.sku, deduction.idempotency.as_ref());
        let request = self
            .write_request((sku, &deduction.warehouse), &row, key)
            .await?;
        let mut wanted = Wanted::new(read.on_hand - units, None);
        if let Condition::Fence(fence) = guard {
            wanted.fenced(fence);
        }
        if !matches!(guard, Condition::None) {
            wanted.expect_version(request.level.to_string(), read.version);
        }
        let answer = self.write(&request, sku, key, &wanted).await?;
        if answer == Answer::Absent {
            // Redis lost the level since it was read: read it again.
            return Ok(AttemptOutcome::Conflict);
        }
        attempt(answer, units)
    }

    /// Writes `wanted`, unless the operation was executed before. If Redis may have lost the key, asks
    /// SQL for it.
    pub(super) async fn write(
        &self,
        request: &WriteRequest,
        sku: &Sku,
        key: Option<&Idempotency>,
        wanted: &Wanted<'_>,
    ) -> Result<Answer, StoreError> {
        let answer = self
            .try_write(request, wanted, KeyCheck::for_key(key))
            .await?;
        if answer != Answer::KeyMayBeLost {
            return Ok(answer);
        }
        if self.restore_from_sql(request, sku, key).await? {
            return Ok(Answer::Duplicate);
        }
        self.try_write(request, wanted, KeyCheck::Done).await
    }

    async fn try_write(
        &self,
        request: &WriteRequest,
        wanted: &Wanted<'_>,
        key_check: KeyCheck,
    ) -> Result<Answer, StoreError> {
        let limit = self.options.journal_limit;
        let write = |command: &mut Cmd| wanted.write_arguments(request, key_check, limit, command);
        let answer = self.shared.run(&scripts::WRITE, write).await?;
        Answer::parse(answer.first().map_or("", String::as_str))
    }
}
