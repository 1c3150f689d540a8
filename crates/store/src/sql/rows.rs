//! The rows of `stock`.

use sqlx::FromRow;

use stocklock_core::stock::{Sku, StockLevel, Warehouse};

/// A row of `stock`.
#[derive(Debug, FromRow)]
pub(crate) struct LevelRow {
    #[sqlx(try_from = "String")]
    sku: Sku,
    #[sqlx(try_from = "String")]
    warehouse: Warehouse,
    on_hand: i64,
    held: i64,
    backorder_limit: i64,
    version: i64,
}

/// The levels of rows.
pub(crate) fn levels(rows: Vec<LevelRow>) -> Vec<StockLevel> {
    let level = |row: LevelRow| StockLevel {
        sku: row.sku,
        warehouse: row.warehouse,
        on_hand: row.on_hand,
        held: row.held,
        backorder_limit: row.backorder_limit,
        version: row.version,
    };
    rows.into_iter().map(level).collect()
}
