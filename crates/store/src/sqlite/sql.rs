//! Every statement of the `SQLite` store, in the same order as the other back ends'.

pub(super) const LEVEL: &str =
    "SELECT sku, warehouse, on_hand, held, backorder_limit, version, home
    FROM stock WHERE sku = ?1 AND warehouse = ?2";

pub(super) const LEVELS_OF_SKU: &str =
    "SELECT sku, warehouse, on_hand, held, backorder_limit, version, home
    FROM stock WHERE sku = ?1 ORDER BY warehouse";

pub(super) const LEVELS: &str =
    "SELECT sku, warehouse, on_hand, held, backorder_limit, version, home
    FROM stock WHERE (sku, warehouse) > (?1, ?2) ORDER BY sku, warehouse LIMIT ?3";

pub(super) const DEDUCT_IF_AVAILABLE: &str = "UPDATE stock
    SET on_hand = on_hand - ?3, version = version + 1
    WHERE sku = ?1 AND warehouse = ?2 AND home = 'sql' AND on_hand - held >= ?3 - backorder_limit
    RETURNING on_hand - held + backorder_limit";

pub(super) const DEDUCT: &str = "UPDATE stock
    SET on_hand = on_hand - ?3, version = version + 1
    WHERE sku = ?1 AND warehouse = ?2 AND home = 'sql'";

pub(super) const DEDUCT_IF_VERSION: &str = "UPDATE stock
    SET on_hand = ?3, version = version + 1
    WHERE sku = ?1 AND warehouse = ?2 AND home = 'sql' AND version = ?4";

pub(super) const DEDUCT_IF_FENCED: &str = "UPDATE stock
    SET on_hand = ?3, version = version + 1, fence = ?5, fence_source = ?6
    WHERE sku = ?1 AND warehouse = ?2 AND home = 'sql' AND version = ?4
        AND (fence_source <> ?6 OR fence <= ?5)";

pub(super) const FENCE: &str =
    "SELECT fence, fence_source FROM stock WHERE sku = ?1 AND warehouse = ?2";

pub(super) const OVERWRITE: &str = "UPDATE stock
    SET on_hand = ?3, version = version + 1
    WHERE sku = ?1 AND warehouse = ?2 AND home = 'sql'";

pub(super) const ADJUST: &str = "UPDATE stock
    SET on_hand = on_hand + ?3, version = version + 1
    WHERE sku = ?1 AND warehouse = ?2 AND home = 'sql'
    RETURNING sku, warehouse, on_hand, held, backorder_limit, version, home";

pub(super) const INSERT_LEVEL: &str = "INSERT INTO stock
    (sku, warehouse, on_hand, backorder_limit, version, home) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";

pub(super) const UPDATE_LEVEL: &str =
    "UPDATE stock SET on_hand = ?3, backorder_limit = ?4, version = ?5
    WHERE sku = ?1 AND warehouse = ?2 AND home = 'sql'";

pub(super) const INSERT_MOVEMENT: &str = "INSERT INTO movement
    (operation_id, line, sku, warehouse, kind, delta, read_version, strategy, durability, caller,
     idempotency_key, request_hash, reason, reference, available_after)
    VALUES (?1, 0, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)";

pub(super) const RECORDED: &str =
    "SELECT operation_id, sku, warehouse, kind, delta, available_after, read_version, strategy, durability, caller, idempotency_key, request_hash, reason, reference, created_at
    FROM movement
    WHERE operation_id = ?1 AND line = 0 OR caller = ?2 AND idempotency_key = ?3
    ORDER BY operation_id = ?1 DESC LIMIT 1";

pub(super) const MOVEMENTS: &str =
    "SELECT operation_id, sku, warehouse, kind, delta, available_after, read_version, strategy, durability, caller, idempotency_key, request_hash, reason, reference, created_at
    FROM movement
    WHERE sku = ?1 AND (?2 IS NULL OR warehouse = ?2) AND (?3 IS NULL OR kind = ?3)
        AND (?4 IS NULL OR reference = ?4) AND (?5 IS NULL OR operation_id < ?5)
    ORDER BY operation_id DESC, line DESC LIMIT ?6";

pub(super) const AUDIT: &str = "SELECT s.warehouse, coalesce(m.received, 0) AS received,
        coalesce(m.sold, 0) AS sold,
        s.on_hand, s.held, s.backorder_limit
    FROM stock s LEFT JOIN (
        SELECT warehouse,
            sum(CASE WHEN kind <> 'deducted' THEN delta ELSE 0 END) AS received,
            sum(CASE WHEN kind = 'deducted' THEN -delta ELSE 0 END) AS sold
        FROM movement WHERE sku = ?1 GROUP BY warehouse
    ) m ON m.warehouse = s.warehouse
    WHERE s.sku = ?1 ORDER BY s.warehouse";
