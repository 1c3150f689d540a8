//! Writing a level that was computed from one read before, where nothing speaks against it.

use redis::Cmd;

use super::scripts::{self, Answer};
use super::step::Step;
use super::{Guard, RedisStore, attempt};
use crate::sql::ledger_row::LedgerRow;
use crate::{AttemptOutcome, StoreError};
use stocklock_core::stock::{Deduction, Fence, Idempotency, Sku, StockLevel};

/// What is to be written, and under which conditions.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    on_hand: i64,
    /// As it is, where there is none.
    backorder_limit: Option<i64>,
    fence: Option<&'a Fence>,
    /// The keys of levels, and the versions that they must still have.
    unchanged: Vec<(String, i64)>,
}

impl<'a> Wanted<'a> {
    pub(super) fn new(on_hand: i64, backorder_limit: Option<i64>) -> Self {
        Self {
            on_hand,
            backorder_limit,
            fence: None,
            unchanged: Vec::new(),
        }
    }

    /// No later holder of the lock may have written.
    fn fenced(&mut self, fence: &'a Fence) {
        self.fence = Some(fence);
    }

    /// The level must still have the version.
    pub(super) fn unchanged(&mut self, level: String, version: i64) {
        self.unchanged.push((level, version));
    }

    /// In the order of `scripts/write.lua`.
    fn write_arguments(&self, step: &Step, sure: bool, journal_limit: u32, command: &mut Cmd) {
        command.arg(4 + self.unchanged.len());
        step.write_keys(command);
        command.arg(&step.name);
        for (level, _) in &self.unchanged {
            command.arg(level);
        }
        command.arg(journal_limit);
        step.write_arguments(sure, command);
        command
            .arg(self.on_hand)
            .arg(or_nothing(self.backorder_limit));
        command.arg(or_nothing(self.fence.map(|fence| fence.token)));
        command.arg(or_nothing(self.fence.map(|fence| &fence.source)));
        for (_, version) in &self.unchanged {
            command.arg(version);
        }
    }
}

fn or_nothing(value: Option<impl ToString>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

impl RedisStore {
    /// Writes what follows from `read`, if the guard lets it pass.
    pub(crate) async fn write_from(
        &self,
        deduction: &Deduction,
        read: &StockLevel,
        guard: Guard<'_>,
    ) -> Result<AttemptOutcome, StoreError> {
        let row = LedgerRow::from_deduction(deduction, Some(read));
        let units = deduction.quantity.units();
        let (sku, key) = (&deduction.sku, deduction.idempotency.as_ref());
        let step = self.step((sku, &deduction.warehouse), &row, key).await?;
        let mut wanted = Wanted::new(read.on_hand - units, None);
        if let Guard::Fence(fence) = guard {
            wanted.fenced(fence);
        }
        if !matches!(guard, Guard::None) {
            wanted.unchanged(step.level.to_string(), read.version);
        }
        let answer = self.write(&step, sku, key, &wanted).await?;
        if answer == Answer::Absent {
            // Redis has lost it since: it is to be read again.
            return Ok(AttemptOutcome::Conflict);
        }
        attempt(answer, units)
    }

    /// Writes what is `wanted`, unless the operation is remembered here or, where that is not sure,
    /// in SQL.
    pub(super) async fn write(
        &self,
        step: &Step,
        sku: &Sku,
        key: Option<&Idempotency>,
        wanted: &Wanted<'_>,
    ) -> Result<Answer, StoreError> {
        let answer = self.try_write(step, wanted, key.is_none()).await?;
        if answer != Answer::Unsure {
            return Ok(answer);
        }
        if self.recall(step, sku, key).await? {
            return Ok(Answer::Duplicate);
        }
        self.try_write(step, wanted, true).await
    }

    async fn try_write(
        &self,
        step: &Step,
        wanted: &Wanted<'_>,
        sure: bool,
    ) -> Result<Answer, StoreError> {
        let limit = self.options.journal_limit;
        let write = |command: &mut Cmd| wanted.write_arguments(step, sure, limit, command);
        let answer = self.shared.run(&scripts::WRITE, write).await?;
        Answer::parse(answer.first().map_or("", String::as_str))
    }
}
