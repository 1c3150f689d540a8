//! What a deployment does that has a part of the SKUs, after its database was copied from one with more of them.
//!
//! The copy has levels, holds and movements of SKUs that belong to another shard by now. They stay as they are:
//! [`WritePool`](crate::deduct::WritePool) gives no slot for them.

use super::reclaim::AT_ONCE;
use super::{Changed, LevelService};
use crate::deduct::WriteSlot;
use crate::stock::{HoldCursor, OpenHold, Operation, OperationId, StockError};

impl LevelService {
    /// Reserves a slot for an operation; or finds its first answer, if its SKUs were of one shard when it was made,
    /// and are not any more.
    pub(super) async fn admit(
        &self,
        operation: &Operation,
    ) -> Result<Result<WriteSlot, Changed>, StockError> {
        let first = operation.first();
        let skus = || operation.lines.iter().map(|line| &line.sku);
        let error = match self.writes.admit(&first.sku, skus().skip(1)) {
            Ok(slot) => return Ok(Ok(slot)),
            Err(error) => error,
        };
        let key = operation.idempotency.as_ref();
        let is_wrong = matches!(error, StockError::WrongShard(_));
        // Without a SKU of this shard, another one answers.
        if !is_wrong || key.is_none() || !skus().any(|sku| self.writes.shard().has(sku)) {
            return Err(error);
        }
        let made = self.first_answer(&first.sku, operation.id, key).await?;
        made.map(Err).ok_or(error)
    }

    /// Refuses a change of a hold that has an open line of another shard.
    pub(super) async fn check_hold(&self, hold: OperationId) -> Result<(), StockError> {
        let shard = self.writes.shard();
        if !shard.is_part() {
            return Ok(());
        }
        let open = self.open_lines(hold).await?;
        Ok(shard.check(open.iter().map(|one| &one.sku))?)
    }

    /// The first due holds of any level of this shard. Pages that have none of them are not read again: a hold of
    /// another shard does not change here.
    pub(super) async fn due_of_shard(&self) -> Result<Vec<OpenHold>, StockError> {
        let shard = self.writes.shard();
        loop {
            let after = self.reclaims.foreign();
            let mut due = self.due(None, after).await?;
            let is_full = due.len() >= AT_ONCE as usize;
            let last = due.last().filter(|_| is_full).map(HoldCursor::from);
            due.retain(|hold| shard.has(&hold.sku));
            match last {
                Some(last) if due.is_empty() => self.reclaims.skip_foreign(last),
                _ => return Ok(due),
            }
        }
    }
}
