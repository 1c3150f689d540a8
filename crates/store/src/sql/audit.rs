//! The audit of a SKU: the sums of its movements, which are read from the last checkpoint on.
//!
//! Guarantees: levels, checkpoints and movements are of one snapshot.

use super::dialect::Dialect;
use super::pool::Transaction;
use super::rows::rows;
use super::statement::{Statement, Value, values};
use super::statements::IN_ORDER;
use crate::Result;
use stocklock_core::stock::{Audit, Sku, Warehouse};

/// How many statements an audit runs at most, besides one per [`LEVELS_PER_STATEMENT`] levels.
pub(super) const STATEMENTS: u32 = 2;

/// How many levels one statement sums. SQLite combines at most 500 queries.
const LEVELS_PER_STATEMENT: usize = 200;

rows! {
    /// A level, and its checkpoint or zeros.
    #[derive(Debug)]
    struct LevelRow {
        warehouse: Warehouse as String,
        on_hand: i64,
        held: i64,
        backorder_limit: i64,
        /// The version up to which the sums are.
        summed: i64,
        received: i64,
        sold: i64,
        held_sum: i64,
    }
}

rows! {
    /// Sums of movements.
    #[derive(Debug)]
    struct SumsRow {
        /// The number of the level in the statement.
        place: i64,
        received: i64,
        sold: i64,
        held: i64,
    }
}

/// Audits each level of a SKU, in warehouse order.
pub(super) async fn audit<D: Dialect>(tx: &mut Transaction<D>, sku: &Sku) -> Result<Vec<Audit>> {
    let statement = &D::texts().audit_levels;
    let levels: Vec<LevelRow> = tx.rows(statement, &values![sku.as_str()]).await?;
    let mut audits = Vec::with_capacity(levels.len());
    for levels in levels.chunks(LEVELS_PER_STATEMENT) {
        let tails = sum(tx, sku, levels).await?;
        let sums = levels.iter().zip(tails);
        audits.extend(sums.map(|(level, tail)| Audit {
            received: level.received + tail.received,
            sold: level.sold + tail.sold,
            warehouse: level.warehouse.clone(),
            on_hand: level.on_hand,
            held: level.held,
            held_sum: level.held_sum + tail.held,
            backorder_limit: level.backorder_limit,
        }));
    }
    Ok(audits)
}

/// Sums the movements of each level after its checkpoint.
async fn sum<D: Dialect>(
    tx: &mut Transaction<D>,
    sku: &Sku,
    levels: &[LevelRow],
) -> Result<Vec<SumsRow>> {
    let mut values = values![sku.as_str()].to_vec();
    let (integer, movements) = (
        D::texts().integer.as_str(),
        D::texts().movements_by(IN_ORDER),
    );
    let mut queries = Vec::with_capacity(levels.len());
    for (place, level) in levels.iter().enumerate() {
        values.push(Value::from(level.warehouse.as_str()));
        let warehouse = values.len();
        values.push(Value::from(level.summed));
        queries.push(format!(
            "SELECT cast({place} AS {integer}) AS place, {} FROM {movements}
            WHERE sku = $1 AND warehouse = ${warehouse} AND level_version > ${}",
            D::texts().sums.as_str(),
            values.len()
        ));
    }
    let statement = Statement::for_levels(queries.join(" UNION ALL "), levels.len());
    let mut found: Vec<SumsRow> = tx.rows(statement, &values).await?;
    found.sort_unstable_by_key(|sums| sums.place);
    Ok(found)
}
