//! Rows of an import: each is an operation of one level.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::refusal;
use crate::plan::{Plan, Snapshot};
use crate::ports::AttemptOutcome;
use crate::stock::{Operation, Sku, StockError, StockLevel, Warehouse};

/// Levels by their names.
pub type Levels = BTreeMap<(Sku, Warehouse), StockLevel>;

/// Previews rows: returns the version of the level after each, and changes `levels` as the rows would. Does not access
/// the database.
///
/// # Errors
/// Those of [`LevelService::change`](super::LevelService::change), for each row by itself.
pub fn preview(levels: &mut Levels, rows: &[Operation]) -> Vec<Result<Option<i64>, StockError>> {
    let named = rows.iter().flat_map(Operation::levels);
    let named: BTreeMap<_, _> = named
        .filter_map(|(sku, warehouse)| {
            let name = (sku.clone(), warehouse.clone());
            levels.get(&name).cloned().map(|level| (name, level))
        })
        .collect();
    let snapshot = Snapshot {
        levels: named.into_values().collect(),
        ..Snapshot::default()
    };
    let plan = Plan::new(&snapshot, rows, Instant::now());
    let written = vec![Some(0); plan.levels.len()];
    let answers = plan.committed(&written).into_iter().zip(rows);
    let answer = |(answer, row): (Option<_>, &Operation)| match answer
        .unwrap_or(Ok(AttemptOutcome::Conflict))?
    {
        AttemptOutcome::Changed(changed) => {
            let level = changed.level;
            let version = Some(level.version);
            levels.insert((level.sku.clone(), level.warehouse.clone()), level);
            Ok(version)
        }
        refused => Err(refusal(row.first(), refused)),
    };
    answers.map(answer).collect()
}
