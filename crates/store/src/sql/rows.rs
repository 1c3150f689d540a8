//! The rows that the SQL stores read, except those of the ledger.

use sqlx::FromRow;

use super::ledger_row::corrupt;
use crate::journal::EntryId;
use crate::{Result, StoreError};
use stocklock_core::stock::{Home, Sku, StockLevel, Warehouse};

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
    home: String,
}

impl TryFrom<LevelRow> for StockLevel {
    type Error = StoreError;

    fn try_from(row: LevelRow) -> Result<Self> {
        Ok(Self {
            sku: row.sku,
            warehouse: row.warehouse,
            on_hand: row.on_hand,
            held: row.held,
            backorder_limit: row.backorder_limit,
            version: row.version,
            home: Home::parse(&row.home).ok_or_else(|| corrupt("home", &row.home))?,
        })
    }
}

/// The levels of rows.
pub(crate) fn levels(rows: Vec<LevelRow>) -> Result<Vec<StockLevel>> {
    rows.into_iter().map(StockLevel::try_from).collect()
}

/// The columns of [`MirrorRow`].
pub(crate) const MIRROR_COLUMNS: &str =
    "sku, warehouse, on_hand, held, backorder_limit, version, home,
    journal_millis, journal_number, ledger_version";

/// A level of Redis-home stock as SQL has it, with the journal entry that it comes from.
#[derive(Debug, Clone, PartialEq, Eq, FromRow)]
pub(crate) struct MirrorRow {
    #[sqlx(flatten, try_from = "LevelRow")]
    pub(crate) level: StockLevel,
    #[sqlx(flatten)]
    pub(crate) entry: EntryId,
    /// The highest `level_version` of its movements. `None` if only older releases have applied any.
    pub(crate) ledger_version: Option<i64>,
}
