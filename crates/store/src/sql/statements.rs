//! The words in which the statements of the dialects differ, and what several statements share.
//!
//! Parameters are numbered. A statement that has one user stands beside it.

use std::sync::LazyLock;

use super::ledger_row::LedgerRow;
use super::statement::Statement;
use stocklock_core::stock::Remarks;

/// The words of one dialect.
#[derive(Debug)]
pub(crate) struct Words {
    /// Begins a transaction that writes.
    pub(crate) begin: &'static str,
    /// Begins a transaction that reads one snapshot.
    pub(crate) begin_snapshot: &'static str,
    /// Excludes other transactions that may create a level of the SKU `$1`, if `begin` does not.
    pub(crate) lock_sku: Option<&'static str>,
    /// Whether a locking read waits for rows that another transaction has inserted and not committed.
    /// A transaction that creates a level then finds others that do, by reading after its insert.
    pub(crate) waits_for_inserts: bool,
    /// Follows a query whose rows are locked.
    pub(crate) lock_rows: &'static str,
    /// The same. It fails if a row is locked.
    pub(crate) lock_rows_now: &'static str,
    /// The same for a query on `wanted` and `stock`, without the rows that are locked.
    pub(crate) lock_free_rows: &'static str,
    /// `JOIN stock`, so that the levels are found by their names.
    pub(crate) join_stock: &'static str,
    /// Begins a transaction whose statements wait at most 100 ms for a row, if they follow `soon`.
    pub(crate) begin_brief: &'static str,
    /// Before `SELECT`: it waits at most 100 ms for a row, if `begin_brief` does not say so.
    pub(crate) soon: &'static str,
    /// The clock in milliseconds since 1970, at the moment of its evaluation: not at the start of the
    /// statement or transaction.
    pub(crate) now: &'static str,
    /// The column `created_at` as RFC 3339 text.
    pub(crate) created_at: &'static str,
    /// The 64-bit integer in a `cast`.
    pub(crate) integer: &'static str,
    /// Follows the columns of a query that reads no table.
    pub(crate) no_table: &'static str,
    /// Follows the table of a query that must use `$index`, if the optimizer would read more rows.
    pub(crate) use_index: &'static str,
    /// Begins a transaction that also reads what others have not committed, if an insert into the
    /// ledger may wait for more than the same key.
    pub(crate) begin_read_uncommitted: Option<&'static str>,
    /// A table of the arrays in the JSON array `$1`: a text, another text, and the bytes of which the
    /// first text has the hexadecimal digits.
    pub(crate) wanted: &'static str,
    /// Whether a prepared statement still has the right plan when the ledger has grown.
    pub(crate) plans_for_any_size: bool,
}

impl Words {
    /// The movements in the order of an index.
    pub(crate) fn movements_by(&self, index: &str) -> String {
        format!("movement{}", self.use_index.replace("$index", index))
    }
}

/// The index of a level's movements in the order of their commits.
pub(crate) const IN_ORDER: &str = "movement_in_order";

/// The same index of the movements of one kind. Sales have none, unless the database has only complete
/// indexes.
pub(crate) const OF_KIND: &str = "movement_of_kind";

/// The same index of the movements with one reference.
pub(crate) const OF_REFERENCE: &str = "movement_of_level_reference";

/// The index of a caller's movements with one reference, in the order of their operations.
pub(crate) const OF_CALLER_REFERENCE: &str = "movement_of_reference";

/// The columns of `LevelRow`.
pub(crate) const LEVEL_COLUMNS: &str = "sku, warehouse, on_hand, held, backorder_limit, version";

/// The columns that start every insert into the ledger: `line` is always 0, the others have the values of
/// `LedgerRow::known`, except for the last two.
pub(crate) static INSERT_COLUMNS: LazyLock<String> = LazyLock::new(|| {
    let remarks = Remarks::NAMES.join(", ");
    format!(
        "operation_id, line, sku, warehouse, kind, delta, read_version, strategy, caller, \
         idempotency_key, request_hash, {remarks}, available_after, level_version"
    )
});

/// The parameters of those columns but the last two.
pub(crate) static INSERT_PARAMETERS: LazyLock<String> = LazyLock::new(|| {
    let numbers = (2..=LedgerRow::KNOWN).map(|number| format!("${number}"));
    format!("$1, 0, {}", numbers.collect::<Vec<_>>().join(", "))
});

/// The parameter of the column `delta`.
pub(crate) const DELTA: &str = "$5";

/// The parameters that follow those: of an insert, `available_after`, `level_version`, `reverses`,
/// `returned` and its expiry; of a conditional write, its expiry and those of the level.
pub(crate) static NEXT_PARAMETERS: LazyLock<[String; 5]> =
    LazyLock::new(|| [1, 2, 3, 4, 5].map(|number| format!("${}", LedgerRow::KNOWN + number)));

/// The columns of `LedgerRow`, except for `line` and `created_at`.
pub(crate) static LEDGER_COLUMNS: LazyLock<String> = LazyLock::new(|| {
    let remarks = Remarks::NAMES.join(", ");
    format!(
        "operation_id, sku, warehouse, kind, delta, held_delta, available_after, level_version, read_version, \
         strategy, caller, idempotency_key, request_hash, {remarks}, reverses, returned"
    )
});

/// Reads the server's clock.
pub(crate) fn clock(words: &Words) -> Statement {
    let Words { now, integer, .. } = words;
    Statement::built(format!("SELECT cast({now} AS {integer})"))
}

/// Reads one level: SKU, warehouse.
pub(crate) fn level(lock_rows: &str) -> Statement {
    Statement::built(format!(
        "SELECT {LEVEL_COLUMNS} FROM stock WHERE sku = $1 AND warehouse = $2{lock_rows}"
    ))
}

/// The same. It locks the row, and waits at most 100 ms for it in a transaction of [`Words::begin_brief`].
pub(crate) fn level_soon(words: &Words) -> Statement {
    let locking = level(words.lock_rows);
    Statement::built(format!("{}{}", words.soon, locking.text.as_str()))
}

/// Reads the levels whose names are in a list: see [`Words::wanted`].
pub(crate) fn wanted_levels(words: &Words, lock_rows: &str) -> Statement {
    let Words {
        wanted, join_stock, ..
    } = words;
    Statement::built(format!(
        "SELECT {LEVEL_COLUMNS} FROM {wanted} {join_stock}
            ON stock.sku = wanted.text_1 AND stock.warehouse = wanted.text_2{lock_rows}"
    ))
}

/// Reads the levels of a SKU.
pub(crate) fn levels_of_sku(lock_rows: &str) -> Statement {
    Statement::built(format!(
        "SELECT {LEVEL_COLUMNS} FROM stock WHERE sku = $1 ORDER BY warehouse{lock_rows}"
    ))
}

/// The sums of a query on movements. The sums of `bigint` are decimals until they are cast.
pub(crate) fn sums(words: &Words) -> String {
    let integer = words.integer;
    format!(
        "cast(coalesce(sum(CASE WHEN kind <> 'deducted' THEN delta ELSE 0 END), 0) AS {integer})
                AS received,
            cast(coalesce(sum(CASE WHEN kind = 'deducted' THEN -delta ELSE 0 END), 0) AS {integer})
                AS sold,
            cast(coalesce(sum(held_delta), 0) AS {integer}) AS held"
    )
}
