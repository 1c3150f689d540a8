//! Every statement of the MariaDB and `MySQL` store, in the same order as the other back ends'.

pub(super) const LEVEL: &str =
    "SELECT sku, warehouse, on_hand, held, backorder_limit, version, home
    FROM stock WHERE sku = ? AND warehouse = ?";

pub(super) const LEVEL_LOCKED: &str =
    "SELECT sku, warehouse, on_hand, held, backorder_limit, version, home
    FROM stock WHERE sku = ? AND warehouse = ? FOR UPDATE";

pub(super) const LEVELS_OF_SKU: &str =
    "SELECT sku, warehouse, on_hand, held, backorder_limit, version, home
    FROM stock WHERE sku = ? ORDER BY warehouse";

pub(super) const LEVELS_OF_SKU_LOCKED: &str =
    "SELECT sku, warehouse, on_hand, held, backorder_limit, version, home
    FROM stock WHERE sku = ? ORDER BY warehouse FOR UPDATE";

/// At READ COMMITTED row locks do not cover rows that are yet to come. At REPEATABLE READ the
/// locking read locks the gaps as well, so that of two transactions that find a SKU absent one
/// only can create it: else they could give it two homes. Holds for this one transaction.
pub(super) const BEGIN_WITH_GAPS_LOCKED: &str =
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; BEGIN";

/// Not `(sku, warehouse) > (?, ?)`, for which the server would read the index from its start.
pub(super) const LEVELS: &str =
    "SELECT sku, warehouse, on_hand, held, backorder_limit, version, home
    FROM stock WHERE sku >= ? AND (sku > ? OR warehouse > ?) ORDER BY sku, warehouse LIMIT ?";

pub(super) const DEDUCT: &str = "UPDATE stock
    SET on_hand = on_hand - ?, version = version + 1
    WHERE sku = ? AND warehouse = ? AND home = 'sql'";

pub(super) const FENCE: &str =
    "SELECT fence, fence_source FROM stock WHERE sku = ? AND warehouse = ?";

pub(super) const ADJUST: &str = "UPDATE stock
    SET on_hand = on_hand + ?, version = version + 1
    WHERE sku = ? AND warehouse = ? AND home = 'sql'";

pub(super) const INSERT_LEVEL: &str = "INSERT INTO stock
    (sku, warehouse, on_hand, backorder_limit, version, home) VALUES (?, ?, ?, ?, ?, ?)";

pub(super) const UPDATE_LEVEL: &str =
    "UPDATE stock SET on_hand = ?, backorder_limit = ?, version = ?
    WHERE sku = ? AND warehouse = ? AND home = 'sql'";

pub(super) const INSERT_MOVEMENT: &str = "INSERT INTO movement
    (operation_id, line, sku, warehouse, kind, delta, read_version, strategy, durability, caller,
     idempotency_key, request_hash, reason, reference, available_after)
    VALUES (?, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";

pub(super) const RECORDED: &str = "SELECT operation_id, sku, warehouse, kind, delta,
        available_after, read_version, strategy, durability, caller, idempotency_key, request_hash, reason, reference,
        date_format(created_at, '%Y-%m-%dT%H:%i:%s.%fZ') AS created_at
    FROM movement
    WHERE operation_id = ? AND line = 0 OR caller = ? AND idempotency_key = ?
    ORDER BY operation_id = ? DESC LIMIT 1";

pub(super) const MOVEMENTS: &str = "SELECT operation_id, sku, warehouse, kind, delta,
        available_after, read_version, strategy, durability, caller, idempotency_key, request_hash, reason, reference,
        date_format(created_at, '%Y-%m-%dT%H:%i:%s.%fZ') AS created_at
    FROM movement
    WHERE sku = ? AND (? IS NULL OR warehouse = ?) AND (? IS NULL OR kind = ?)
        AND (? IS NULL OR reference = ?) AND (? IS NULL OR operation_id < ?)
    ORDER BY operation_id DESC, line DESC LIMIT ?";

/// One statement, therefore one snapshot. The sums of `bigint` are `decimal` until they are cast.
pub(super) const AUDIT: &str = "SELECT s.warehouse, coalesce(m.received, 0) AS received,
        coalesce(m.sold, 0) AS sold,
        s.on_hand, s.held, s.backorder_limit
    FROM stock s LEFT JOIN (
        SELECT warehouse,
            cast(sum(CASE WHEN kind <> 'deducted' THEN delta ELSE 0 END) AS signed) AS received,
            cast(sum(CASE WHEN kind = 'deducted' THEN -delta ELSE 0 END) AS signed) AS sold
        FROM movement WHERE sku = ? GROUP BY warehouse
    ) m ON m.warehouse = s.warehouse
    WHERE s.sku = ? ORDER BY s.warehouse";

pub(super) const SETTINGS: &str = "SELECT cast(@@innodb_flush_log_at_trx_commit AS signed),
        cast(@@log_bin AS signed), cast(@@sync_binlog AS signed)";
