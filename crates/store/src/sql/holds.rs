//! The rows of open holds: read under the locks of their levels, written with the movements of a plan, listed,
//! and extended.
//!
//! Guarantees: a row is deleted only by the transaction that records the end of its line. Each of those has
//! locked the level of the line first.

use async_trait::async_trait;
use uuid::Uuid;

use super::SqlStore;
use super::dialect::Dialect;
use super::errors::{Inserted, inserted};
use super::pool::PooledConnection;
use super::rows::rows;
use super::statement::values;
use super::write::{Hex, json};
use crate::{Result, StoreError};
use stocklock_core::plan::{HoldLine, Plan, Snapshot};
use stocklock_core::ports::HoldStore;
use stocklock_core::stock::{
    Change, HoldCursor, HoldFilter, How, Movement, MovementKind, NEVER, OpenHold, Operation,
    OperationId, Remark, Sku, Warehouse,
};

rows! {
    #[derive(Debug)]
    struct HoldRow(OpenHold) {
        hold = |operation_id: Uuid| OperationId(operation_id),
        line,
        sku as String,
        warehouse as String,
        units,
        expires_at,
        now,
        reference = |reference: Option<String>| reference.map(Remark::recorded),
    }
}

fn open(rows: Vec<HoldRow>) -> Vec<OpenHold> {
    rows.into_iter().map(|HoldRow(open)| open).collect()
}

/// Reads the holds that operations end, and the clock if one begins or ends.
pub(super) async fn read_holds<D: Dialect>(
    connection: &mut PooledConnection<D>,
    operations: &[Operation],
    snapshot: &mut Snapshot,
) -> Result<()> {
    let lines = || operations.iter().flat_map(|operation| &operation.lines);
    let ends = lines().filter_map(|line| match line.change {
        Change::End(end) => Some(end),
        _ => None,
    });
    let ends: Vec<_> = ends.collect();
    if ends.is_empty() && !lines().any(|line| matches!(line.change, Change::Hold(_))) {
        return Ok(());
    }
    let mut found = Vec::new();
    if !ends.is_empty() {
        let lines = json(
            ends.iter()
                .map(|end| (Hex(end.hold.0.as_bytes()), end.line)),
        );
        let values = values![&*lines];
        found = open(connection.rows(&D::texts().open_lines, &values).await?);
    }
    snapshot.now = if let Some(row) = found.first() {
        row.now
    } else {
        let clock: Vec<(i64,)> = connection.rows(&D::texts().clock, &[]).await?;
        clock.first().map_or(0, |(now,)| *now)
    };
    let row = |row: OpenHold| ((row.hold, row.line), (row.units, row.expires_at));
    snapshot.holds.extend(found.into_iter().map(row));
    for end in ends {
        let line = (end.hold, end.line);
        // What has expired already need not expire again, however it ended.
        if !snapshot.holds.contains_key(&line) && end.how != How::Expire {
            let last = last_end(connection, line).await?;
            snapshot.ends.extend(last.map(|kind| (line, kind)));
        }
    }
    Ok(())
}

/// How a line of a hold ended at last.
async fn last_end<D: Dialect>(
    connection: &mut PooledConnection<D>,
    (hold, line): HoldLine,
) -> Result<Option<MovementKind>> {
    let last = &D::texts().last_end;
    let mut found: Vec<(String,)> = connection.rows(last, &values![hold.0, line]).await?;
    Ok(found.pop().map(|(kind,)| kind.into()))
}

/// Deletes the lines of holds that a plan ends, and inserts those that it opens, in the transaction that has
/// locked their levels.
///
/// [`Inserted::Duplicate`]: an earlier attempt at the operation has made its hold, and its outcome was unknown.
///
/// # Errors
/// [`StoreError::Aborted`] if a line has been extended since it was read.
pub(super) async fn write<D: Dialect>(
    connection: &mut PooledConnection<D>,
    plan: &Plan<'_>,
) -> Result<Inserted> {
    if !plan.ended.is_empty() {
        let ended = plan.ended.iter();
        let ended = ended.map(|((hold, line), due_at)| (Hex(hold.0.as_bytes()), line, due_at));
        let lines = json(ended);
        let values = values![&*lines];
        let deleted = connection.change(&D::texts().delete_holds, &values).await?;
        if deleted != plan.ended.len() as u64 {
            let problem = "a hold was extended meanwhile";
            return Err(StoreError::Aborted(problem.into()));
        }
    }
    let Some(lines) = opened(plan) else {
        return Ok(Inserted::New);
    };
    let insert = &D::texts().insert_holds;
    inserted(connection.execute(insert, &values![&*lines]).await, false)
}

/// The lines of holds that a plan opens, for `wanted_lines`.
fn opened(plan: &Plan<'_>) -> Option<String> {
    let lines = plan.movements().filter_map(|(movement, level)| {
        let operation = movement.operation;
        Some((
            Hex(operation.id.0.as_bytes()),
            movement.ledger_line,
            movement.expires_at?,
            level.sku.as_str(),
            level.warehouse.as_str(),
            movement.held_delta,
            operation.remarks.reference.as_ref().map(Remark::as_str),
        ))
    });
    let mut lines = lines.peekable();
    lines.peek().is_some().then(|| json(lines))
}

#[async_trait]
impl<D: Dialect> HoldStore for SqlStore<D> {
    async fn children(&self, parent: OperationId) -> Result<Vec<Movement>> {
        let children = &D::texts().children;
        let found = self
            .select_movements(&self.readers, children, &values![parent.0])
            .await?;
        self.at_standby(found).await
    }

    async fn open_lines(&self, holds: &[OperationId]) -> Result<Vec<OpenHold>> {
        let list = json(holds.iter().map(|hold| (Hex(hold.0.as_bytes()),)));
        let statement = &D::texts().holds_with_ids;
        let found = self
            .select(&self.readers, statement, &values![&*list])
            .await;
        Ok(open(found?))
    }

    async fn open_holds(&self, filter: &HoldFilter) -> Result<Vec<OpenHold>> {
        let texts = D::texts();
        let mut last = NEVER;
        if filter.only_due {
            let clock: Vec<(i64,)> = self.select(&self.readers, &texts.clock, &[]).await?;
            last = clock.first().map_or(0, |(now,)| *now);
        }
        let first = HoldCursor {
            expires_at: i64::MIN,
            hold: OperationId(Uuid::nil()),
            line: 0,
        };
        let after = filter.after.unwrap_or(first);
        let limit = i64::from(filter.limit);
        let mut values = values![after.expires_at, after.hold.0, after.line, limit, last].to_vec();
        let mut statement = &texts.holds_page;
        if let Some((sku, warehouse)) = &filter.level {
            statement = &texts.holds_page_of_level;
            values.extend(values![sku.as_str(), warehouse.as_str()]);
        }
        let found = self.select(&self.readers, statement, &values).await?;
        Ok(open(found))
    }

    async fn was_held(&self, sku: &Sku, warehouse: &Warehouse) -> Result<bool> {
        let level = values![sku.as_str(), warehouse.as_str()];
        let last = &D::texts().was_held;
        let found: Vec<(i64,)> = self.select(&self.readers, last, &level).await?;
        Ok(!found.is_empty())
    }

    async fn extend(&self, hold: OperationId, lasts: Option<i64>) -> Result<Vec<OpenHold>> {
        let list = json([(Hex(hold.0.as_bytes()),)].into_iter());
        let found = self.write(async {
            let texts = D::texts();
            let connection = self.writers.acquire().await?;
            let mut tx = connection.begin(texts.begin.as_str()).await?;
            let extension = values![hold.0, lasts];
            tx.change(&texts.extend_hold, &extension).await?;
            let found = tx.rows(&texts.holds_with_ids, &values![&*list]).await?;
            tx.commit().await?;
            Ok(open(found))
        });
        found.await
    }
}
