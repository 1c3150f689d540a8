//! The audit of a SKU: the sums of its movements, which are read from the last checkpoint on.
//!
//! Guarantees: levels, checkpoints and movements are of one snapshot. If a movement after a checkpoint
//! has no `level_version`, because an older replica has written it, all movements are summed.

use sqlx::FromRow;

use super::dialect::{Dialect, Statement, Value, values};
use super::errors::before_commit;
use super::pool::Transaction;
use super::statements::{IN_ORDER, sums};
use crate::Result;
use crate::journal::EntryId;
use stocklock_core::stock::{Audit, Home, Sku, Warehouse};

/// How many statements an audit runs at most, besides one per [`LEVELS_PER_STATEMENT`] levels.
pub(super) const STATEMENTS: u32 = 3;

/// How many levels one statement sums. SQLite combines at most 500 queries.
const LEVELS_PER_STATEMENT: usize = 200;

/// Ends a condition on movements: those up to the journal entry ($2, $3), and those from no entry.
const UP_TO: &str = " AND NOT coalesce(journal_millis > $2
            OR journal_millis = $2 AND journal_number > $3, false)";

/// SKU.
const LEVELS: &str = "SELECT s.warehouse, s.home, s.on_hand, s.held, s.backorder_limit, s.version,
        c.level_version, c.received, c.sold, c.journal_millis, c.journal_number
    FROM stock s LEFT JOIN checkpoint c ON c.sku = s.sku AND c.warehouse = s.warehouse
    WHERE s.sku = $1 ORDER BY s.warehouse";

/// A level, and its checkpoint if it has one.
#[derive(Debug, FromRow)]
struct LevelRow {
    #[sqlx(try_from = "String")]
    warehouse: Warehouse,
    home: String,
    on_hand: i64,
    held: i64,
    backorder_limit: i64,
    version: i64,
    level_version: Option<i64>,
    received: Option<i64>,
    sold: Option<i64>,
    journal_millis: Option<i64>,
    journal_number: Option<i64>,
}

impl LevelRow {
    /// The last journal entry that the checkpoint may contain.
    fn last_entry(&self) -> EntryId {
        EntryId {
            millis: self.journal_millis.unwrap_or(0),
            number: self.journal_number.unwrap_or(0),
        }
    }

    /// Whether the checkpoint and the `movements` after it are all movements of the level. Stock in
    /// Redis has no version that older replicas count up.
    fn is_complete(&self, movements: i64) -> bool {
        let is_in_sql = self.home == Home::Sql.as_str();
        let is_gapless = |from: i64| self.version - from == movements;
        !is_in_sql || self.level_version.is_none_or(is_gapless)
    }

    fn audit(self, received: i64, sold: i64) -> Audit {
        Audit {
            received: self.received.unwrap_or(0) + received,
            sold: self.sold.unwrap_or(0) + sold,
            warehouse: self.warehouse,
            on_hand: self.on_hand,
            held: self.held,
            backorder_limit: self.backorder_limit,
            pending: 0,
        }
    }
}

/// Sums of movements.
#[derive(Debug, Clone, Copy, FromRow)]
struct SumsRow {
    /// The number of the level in the statement.
    place: i64,
    received: i64,
    sold: i64,
    movements: i64,
}

/// Audits each level of a SKU, in warehouse order. `up_to` leaves out the movements of later journal
/// entries. `None` if a checkpoint may contain some of those: the caller needs a later entry.
pub(super) async fn audit<D: Dialect>(
    tx: &mut Transaction<D>,
    sku: &Sku,
    up_to: Option<EntryId>,
) -> Result<Option<Vec<Audit>>> {
    let levels = tx.fetch(LEVELS, &values![sku.as_str()]).await;
    let levels: Vec<LevelRow> = levels.map_err(before_commit)?;
    if let Some(up_to) = up_to
        && levels.iter().any(|level| level.last_entry() > up_to)
    {
        return Ok(None);
    }
    let mut audits = Vec::with_capacity(levels.len());
    let mut levels = levels.into_iter().peekable();
    while levels.peek().is_some() {
        let mut some: Vec<LevelRow> = levels.by_ref().take(LEVELS_PER_STATEMENT).collect();
        let mut tails = sum(tx, sku, up_to, &some).await?;
        let mut incomplete = false;
        for (level, tail) in some.iter_mut().zip(&tails) {
            if !level.is_complete(tail.movements) {
                (level.level_version, level.received, level.sold) = (None, None, None);
                incomplete = true;
            }
        }
        if incomplete {
            tails = sum(tx, sku, up_to, &some).await?;
        }
        let sums = some.into_iter().zip(tails);
        audits.extend(sums.map(|(level, tail)| level.audit(tail.received, tail.sold)));
    }
    Ok(Some(audits))
}

/// Sums the movements of each level after its checkpoint.
async fn sum<D: Dialect>(
    tx: &mut Transaction<D>,
    sku: &Sku,
    up_to: Option<EntryId>,
    levels: &[LevelRow],
) -> Result<Vec<SumsRow>> {
    let (mut values, until) = match up_to {
        Some(last) => (
            values![sku.as_str(), last.millis, last.number].to_vec(),
            UP_TO,
        ),
        None => (values![sku.as_str()].to_vec(), ""),
    };
    let integer = D::WORDS.integer;
    let mut queries = Vec::with_capacity(levels.len());
    for (place, level) in levels.iter().enumerate() {
        values.push(Value::from(level.warehouse.as_str()));
        let warehouse = values.len();
        let (mut movements, mut after) = ("movement".to_owned(), String::new());
        if let Some(version) = level.level_version {
            values.push(Value::from(version));
            movements = D::WORDS.movements_by(IN_ORDER);
            after = format!(" AND level_version > ${}", values.len());
        }
        queries.push(format!(
            "SELECT cast({place} AS {integer}) AS place, {} FROM {movements}
            WHERE sku = $1 AND warehouse = ${warehouse}{after}{until}",
            sums(&D::WORDS)
        ));
    }
    let statement = Statement::for_levels(queries.join(" UNION ALL "), levels.len());
    let found = tx.fetch(statement, &values).await;
    let mut found: Vec<SumsRow> = found.map_err(before_commit)?;
    found.sort_unstable_by_key(|sums| sums.place);
    Ok(found)
}
