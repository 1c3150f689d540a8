//! The statements that are the same in every dialect but for a few words.

/// The statements of one dialect. Parameters are numbered.
#[derive(Debug)]
pub(crate) struct Statements {
    /// Begins a transaction that writes.
    pub(crate) begin: &'static str,
    /// Begins a transaction that may create a level.
    pub(crate) begin_set_level: &'static str,
    /// Begins a transaction that reads one snapshot.
    pub(crate) begin_snapshot: &'static str,
    /// Excludes other transactions that may create a level of the SKU `$1`, if `begin_set_level`
    /// and row locks do not.
    pub(crate) lock_sku: Option<&'static str>,
    /// SKU, warehouse.
    pub(crate) level: &'static str,
    /// The same, and locks the row.
    pub(crate) level_locked: &'static str,
    /// SKU.
    pub(crate) levels_of_sku: &'static str,
    /// The same, and locks the rows.
    pub(crate) levels_of_sku_locked: &'static str,
    /// SKU and warehouse after which the page starts, number of rows.
    pub(crate) levels: &'static str,
    /// SKU, warehouse, units to add.
    pub(crate) change_on_hand: &'static str,
    /// SKU, warehouse.
    pub(crate) fence: &'static str,
    /// SKU, warehouse, `on_hand`, `backorder_limit`, version, home.
    pub(crate) insert_level: &'static str,
    /// SKU, warehouse, `on_hand`, `backorder_limit`, version.
    pub(crate) update_level: &'static str,
    /// The values of `LedgerRow::values`, then `available_after`.
    pub(crate) insert_movement: &'static str,
    /// Operation, caller, key.
    pub(crate) recorded: &'static str,
    /// SKU, warehouse, kind, reference, operation before which the page starts, number of rows.
    pub(crate) movements: &'static str,
    /// SKU. One statement, so the sums are of one snapshot.
    pub(crate) audit: &'static str,
    /// SKU, and the journal entry up to which movements count.
    pub(crate) audit_up_to: &'static str,
    /// The identity of the ledger.
    pub(crate) ledger_id: &'static str,
    /// SKU, warehouse.
    pub(crate) mirror: &'static str,
    /// SKU, warehouse, `on_hand`, held, `backorder_limit`, version, and the journal entry. Changes
    /// nothing if the row is from a later entry.
    pub(crate) update_mirror: &'static str,
    /// The values of `LedgerRow::values`, then `available_after` and the journal entry. Inserts
    /// nothing if the operation is recorded. If another operation has the key, the movement is
    /// recorded without it.
    pub(crate) insert_entry: &'static str,
    /// SKU. The latest journal entry among its movements.
    pub(crate) last_entry: &'static str,
}

/// The columns of `LevelRow`.
macro_rules! level_columns {
    () => {
        "sku, warehouse, on_hand, held, backorder_limit, version, home"
    };
}

/// The columns of `LedgerRow::values`, which start every insert.
macro_rules! insert_columns {
    () => {
        "operation_id, line, sku, warehouse, kind, delta, read_version, strategy, durability, \
         caller, idempotency_key, request_hash, reason, reference, available_after"
    };
}

/// The columns of `LedgerRow`. `$created_at` is the dialect's expression for RFC 3339 text.
macro_rules! ledger_columns {
    ($created_at:literal) => {
        concat!(
            "operation_id, sku, warehouse, kind, delta, available_after, read_version, strategy, \
             durability, caller, idempotency_key, request_hash, reason, reference, ",
            $created_at,
            " AS created_at"
        )
    };
}

/// The columns of `AuditRow`. The sums of `bigint` are decimals until they are cast to `$integer`.
macro_rules! audit {
    ($integer:literal, $filter:literal) => {
        concat!(
            "SELECT s.warehouse, coalesce(m.received, 0) AS received, coalesce(m.sold, 0) AS sold,
                s.on_hand, s.held, s.backorder_limit
            FROM stock s LEFT JOIN (
                SELECT warehouse,
                    cast(sum(CASE WHEN kind <> 'deducted' THEN delta ELSE 0 END) AS ",
            $integer,
            ") AS received,
                    cast(sum(CASE WHEN kind = 'deducted' THEN -delta ELSE 0 END) AS ",
            $integer,
            ") AS sold
                FROM movement WHERE sku = $1",
            $filter,
            " GROUP BY warehouse
            ) m ON m.warehouse = s.warehouse
            WHERE s.sku = $1 ORDER BY s.warehouse"
        )
    };
}

/// The statements of a dialect, given the words in which it differs.
macro_rules! statements {
    (
        begin: $begin:literal,
        begin_set_level: $begin_set_level:literal,
        begin_snapshot: $begin_snapshot:literal,
        lock_sku: $lock_sku:expr,
        lock_rows: $lock_rows:literal,
        created_at: $created_at:literal,
        integer: $integer:literal,
        entry_time: $entry_time:literal,
        no_table: $no_table:literal $(,)?
    ) => {
        $crate::sql::statements::Statements {
            begin: $begin,
            begin_set_level: $begin_set_level,
            begin_snapshot: $begin_snapshot,
            lock_sku: $lock_sku,
            level: concat!(
                "SELECT ",
                level_columns!(),
                " FROM stock WHERE sku = $1 AND warehouse = $2"
            ),
            level_locked: concat!(
                "SELECT ",
                level_columns!(),
                " FROM stock WHERE sku = $1 AND warehouse = $2",
                $lock_rows
            ),
            levels_of_sku: concat!(
                "SELECT ",
                level_columns!(),
                " FROM stock WHERE sku = $1 ORDER BY warehouse"
            ),
            levels_of_sku_locked: concat!(
                "SELECT ",
                level_columns!(),
                " FROM stock WHERE sku = $1 ORDER BY warehouse",
                $lock_rows
            ),
            // MariaDB would read the index from its start for `(sku, warehouse) > ($1, $2)`.
            levels: concat!(
                "SELECT ",
                level_columns!(),
                " FROM stock
                WHERE sku >= $1 AND (sku > $1 OR warehouse > $2)
                ORDER BY sku, warehouse LIMIT $3"
            ),
            change_on_hand: "UPDATE stock SET on_hand = on_hand + $3, version = version + 1
                WHERE sku = $1 AND warehouse = $2 AND home = 'sql'",
            fence: "SELECT fence, fence_source FROM stock WHERE sku = $1 AND warehouse = $2",
            insert_level: "INSERT INTO stock
                (sku, warehouse, on_hand, backorder_limit, version, home)
                VALUES ($1, $2, $3, $4, $5, $6)",
            update_level: "UPDATE stock SET on_hand = $3, backorder_limit = $4, version = $5
                WHERE sku = $1 AND warehouse = $2 AND home = 'sql'",
            insert_movement: concat!(
                "INSERT INTO movement (",
                insert_columns!(),
                ")
                VALUES ($1, 0, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)"
            ),
            recorded: concat!(
                "SELECT ",
                ledger_columns!($created_at),
                " FROM movement
                WHERE operation_id = $1 AND line = 0 OR caller = $2 AND idempotency_key = $3
                ORDER BY operation_id = $1 DESC LIMIT 1"
            ),
            movements: concat!(
                "SELECT ",
                ledger_columns!($created_at),
                " FROM movement
                WHERE sku = $1 AND ($2 IS NULL OR warehouse = $2) AND ($3 IS NULL OR kind = $3)
                    AND ($4 IS NULL OR reference = $4) AND ($5 IS NULL OR operation_id < $5)
                ORDER BY operation_id DESC, line DESC LIMIT $6"
            ),
            audit: audit!($integer, ""),
            audit_up_to: audit!(
                $integer,
                " AND NOT coalesce(journal_millis > $2
                    OR journal_millis = $2 AND journal_number > $3, false)"
            ),
            ledger_id: "SELECT id FROM ledger",
            mirror: concat!(
                "SELECT ",
                level_columns!(),
                ", journal_millis, journal_number
                FROM stock WHERE sku = $1 AND warehouse = $2"
            ),
            update_mirror: "UPDATE stock
                SET on_hand = $3, held = $4, backorder_limit = $5, version = $6,
                    journal_millis = $7, journal_number = $8
                WHERE sku = $1 AND warehouse = $2 AND home = 'redis'
                    AND (journal_millis < $7 OR journal_millis = $7 AND journal_number < $8)",
            insert_entry: concat!(
                "INSERT INTO movement (",
                insert_columns!(),
                ",
                    created_at, journal_millis, journal_number)
                SELECT $1, 0, $2, $3, $4, $5, $6, $7, $8, $9,
                    CASE WHEN EXISTS (
                        SELECT 1 FROM movement WHERE caller = $9 AND idempotency_key = $10
                    ) THEN NULL ELSE $10 END,
                    $11, $12, $13, $14, ",
                $entry_time,
                ", $15, $16",
                $no_table,
                " WHERE NOT EXISTS (SELECT 1 FROM movement WHERE operation_id = $1 AND line = 0)"
            ),
            last_entry: "SELECT journal_millis, journal_number FROM movement
                WHERE sku = $1 AND journal_millis IS NOT NULL
                ORDER BY journal_millis DESC, journal_number DESC LIMIT 1",
        }
    };
}
pub(crate) use {audit, insert_columns, ledger_columns, level_columns, statements};
