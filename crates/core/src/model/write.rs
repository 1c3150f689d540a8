//! What a plan writes on the model: levels on their conditions, movements, and holds, in one transaction.

use super::store::{Entry, MemoryStore, Row};
use super::transaction::Transaction;
use crate::plan::{HoldLine, Plan, PlannedLevel, PlannedMovement};
use crate::ports::StoreError;
use crate::stock::{OpenHold, Sku, Warehouse};

/// What is written, and on which condition.
#[derive(Debug, Clone)]
pub(super) struct Write {
    levels: Vec<LevelWrite>,
    movements: Vec<MovementWrite>,
    opened: Vec<OpenHold>,
    ended: Vec<(HoldLine, i64)>,
    pub(super) expires_at: i64,
    /// Whether it waits for a locked row. Otherwise it leaves out the level.
    waits: bool,
    /// Whether all levels are written, or none.
    is_whole: bool,
}

#[derive(Debug, Clone)]
pub(super) struct LevelWrite {
    sku: Sku,
    warehouse: Warehouse,
    delta: i64,
    held_delta: i64,
    available_delta: i64,
    backorder_limit: Option<i64>,
    movements: i64,
    /// The version that the level must have.
    version: Option<i64>,
}

#[derive(Debug, Clone)]
pub(super) struct MovementWrite {
    entry: Entry,
    level: usize,
    /// The movements of the level that follow, and the units that they add to those that are available.
    after: (i64, i64),
}

/// How a write ended.
pub(super) enum Written {
    /// The units that are available in each level; `None`: it was left out.
    Levels(Vec<Option<i64>>),
    Duplicate,
}

impl Write {
    pub(super) fn new(plan: &Plan<'_>, expires_at: i64, waits: bool) -> Self {
        let levels = plan.levels.iter().map(|level| LevelWrite {
            sku: level.sku.clone(),
            warehouse: level.warehouse.clone(),
            delta: level.delta,
            held_delta: level.held_delta,
            available_delta: level.available_delta,
            backorder_limit: level.backorder_limit,
            movements: level.movements,
            version: level.read_version(),
        });
        let movements = plan.movements.iter().map(|movement| MovementWrite {
            entry: Entry::of(movement.recorded(&plan.levels[movement.level])),
            level: movement.level,
            after: plan.after(movement),
        });
        Self {
            levels: levels.collect(),
            movements: movements.collect(),
            opened: plan.movements().filter_map(opened).collect(),
            ended: plan.ended.clone(),
            expires_at,
            waits,
            is_whole: waits || !plan.is_divisible(),
        }
    }
}

/// The row of a hold.
fn opened((movement, level): (&PlannedMovement<'_>, &PlannedLevel<'_>)) -> Option<OpenHold> {
    Some(OpenHold {
        hold: movement.operation.id,
        line: movement.ledger_line,
        sku: level.sku.clone(),
        warehouse: level.warehouse.clone(),
        units: movement.held_delta,
        expires_at: movement.expires_at?,
        now: 0,
        reference: movement.operation.remarks.reference.clone(),
    })
}

impl MemoryStore {
    /// Writes the levels and their movements, and commits. The movements of a level that is left out are
    /// not written.
    pub(super) async fn put_and_commit(
        &self,
        mut tx: Transaction,
        write: Write,
    ) -> Result<Written, StoreError> {
        if !write.waits {
            self.step("SELECT FOR UPDATE SKIP LOCKED").await?;
        }
        let mut available = Vec::new();
        let mut after = Vec::new();
        for level in &write.levels {
            let place = (&level.sku, &level.warehouse);
            let is_free = write.waits || tx.try_lock_row(place);
            let row = if is_free {
                self.put(&mut tx, level, write.expires_at).await?
            } else {
                None
            };
            available.push(row.as_ref().map(|row| row.level.available()));
            after.push(row.map(|row| row.level));
        }
        let written = available.iter().flatten().count();
        if written == 0 || (write.is_whole && written < write.levels.len()) {
            if self.tables.lock().clock >= write.expires_at {
                self.decisions.note("a write has expired");
            }
            return Ok(Written::Levels(vec![None; available.len()]));
        }
        if !tx.end_holds(write.ended) {
            return Ok(Written::Levels(vec![None; available.len()]));
        }
        tx.open_holds(write.opened);
        for movement in write.movements {
            let Some(level) = &after[movement.level] else {
                continue;
            };
            let (movements, units) = movement.after;
            let mut entry = movement.entry;
            entry.movement.available_after = level.available() - units;
            entry.movement.level_version = level.version - movements;
            if !tx.insert(entry).await? {
                return Ok(Written::Duplicate);
            }
        }
        if written > 1 {
            self.decisions.note("several levels in one transaction");
        }
        tx.commit().await?;
        Ok(Written::Levels(available))
    }

    /// `UPDATE` of one level, if its condition holds.
    async fn put(
        &self,
        tx: &mut Transaction,
        level: &LevelWrite,
        expires_at: i64,
    ) -> Result<Option<Row>, StoreError> {
        let holds = |row: &Row| {
            level
                .version
                .is_none_or(|version| row.level.version == version)
                && row.level.available() + level.available_delta >= 0
        };
        let set = |row: &mut Row| {
            row.level.on_hand += level.delta;
            row.level.held += level.held_delta;
            row.level.backorder_limit = level.backorder_limit.unwrap_or(row.level.backorder_limit);
            // The update itself adds one.
            row.level.version += level.movements - 1;
        };
        let place = (&level.sku, &level.warehouse);
        tx.update(place, holds, set, expires_at).await
    }
}
