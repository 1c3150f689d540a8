//! Every statement of the `PostgreSQL` store, in the same order as the other back ends'.

pub(super) const LEVEL: &str =
    "SELECT sku, warehouse, on_hand, held, backorder_limit, version, home
    FROM stock WHERE sku = $1 AND warehouse = $2";

pub(super) const LEVEL_LOCKED: &str =
    "SELECT sku, warehouse, on_hand, held, backorder_limit, version, home
    FROM stock WHERE sku = $1 AND warehouse = $2 FOR UPDATE";

pub(super) const LEVELS_OF_SKU: &str =
    "SELECT sku, warehouse, on_hand, held, backorder_limit, version, home
    FROM stock WHERE sku = $1 ORDER BY warehouse";

pub(super) const LEVELS_OF_SKU_LOCKED: &str =
    "SELECT sku, warehouse, on_hand, held, backorder_limit, version, home
    FROM stock WHERE sku = $1 ORDER BY warehouse FOR UPDATE";

/// Row locks do not cover rows that are yet to come, so setters of one SKU's levels exclude each
/// other by this: else two of them could both find it absent, and give it two homes.
pub(super) const LOCK_SKU: &str = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))";

pub(super) const LEVELS: &str =
    "SELECT sku, warehouse, on_hand, held, backorder_limit, version, home
    FROM stock WHERE (sku, warehouse) > ($1, $2) ORDER BY sku, warehouse LIMIT $3";

/// What writes a level, as one statement with what records the deduction: it is a transaction by
/// itself, takes one round trip, and holds the row's lock across none. The parameters up to `$13`
/// are the movement's, the others the level's; the answer is what remains, or no row where the
/// level's condition did not hold.
macro_rules! with_movement {
    ($update:literal) => {
        concat!(
            "WITH written AS (",
            $update,
            " RETURNING on_hand - held + backorder_limit AS available)
            INSERT INTO movement
                (operation_id, line, sku, warehouse, kind, delta, read_version, strategy,
                 durability, caller, idempotency_key, request_hash, reason, reference,
                 available_after)
            SELECT $1, 0, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, available
            FROM written RETURNING available_after"
        )
    };
}

pub(super) const DEDUCT_IF_AVAILABLE: &str = with_movement!(
    "UPDATE stock SET on_hand = on_hand - $14, version = version + 1
    WHERE sku = $2 AND warehouse = $3 AND home = 'sql'
        AND on_hand - held >= $14 - backorder_limit"
);

pub(super) const DEDUCT: &str = "UPDATE stock
    SET on_hand = on_hand - $3, version = version + 1
    WHERE sku = $1 AND warehouse = $2 AND home = 'sql'";

pub(super) const DEDUCT_IF_VERSION: &str = with_movement!(
    "UPDATE stock SET on_hand = $14, version = version + 1
    WHERE sku = $2 AND warehouse = $3 AND home = 'sql' AND version = $15"
);

pub(super) const DEDUCT_IF_FENCED: &str = with_movement!(
    "UPDATE stock SET on_hand = $14, version = version + 1, fence = $16, fence_source = $17
    WHERE sku = $2 AND warehouse = $3 AND home = 'sql' AND version = $15
        AND (fence_source <> $17 OR fence <= $16)"
);

pub(super) const FENCE: &str =
    "SELECT fence, fence_source FROM stock WHERE sku = $1 AND warehouse = $2";

/// Whatever it is by now; but the limit may have been lowered, which the CHECK would refuse.
pub(super) const OVERWRITE: &str = with_movement!(
    "UPDATE stock SET on_hand = $14, version = version + 1
    WHERE sku = $2 AND warehouse = $3 AND home = 'sql' AND $14 - held >= -backorder_limit"
);

pub(super) const ADJUST: &str = "UPDATE stock
    SET on_hand = on_hand + $3, version = version + 1
    WHERE sku = $1 AND warehouse = $2 AND home = 'sql'
    RETURNING sku, warehouse, on_hand, held, backorder_limit, version, home";

pub(super) const INSERT_LEVEL: &str = "INSERT INTO stock
    (sku, warehouse, on_hand, backorder_limit, version, home) VALUES ($1, $2, $3, $4, $5, $6)";

pub(super) const UPDATE_LEVEL: &str =
    "UPDATE stock SET on_hand = $3, backorder_limit = $4, version = $5
    WHERE sku = $1 AND warehouse = $2 AND home = 'sql'";

pub(super) const INSERT_MOVEMENT: &str = "INSERT INTO movement
    (operation_id, line, sku, warehouse, kind, delta, read_version, strategy, durability, caller,
     idempotency_key, request_hash, reason, reference, available_after)
    VALUES ($1, 0, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)";

pub(super) const RECORDED: &str = r#"SELECT operation_id, sku, warehouse, kind, delta,
        available_after, read_version, strategy, durability, caller, idempotency_key, request_hash, reason, reference,
        to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS created_at
    FROM movement
    WHERE operation_id = $1 AND line = 0 OR caller = $2 AND idempotency_key = $3
    ORDER BY operation_id = $1 DESC LIMIT 1"#;

pub(super) const MOVEMENTS: &str = r#"SELECT operation_id, sku, warehouse, kind, delta,
        available_after, read_version, strategy, durability, caller, idempotency_key, request_hash, reason, reference,
        to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS created_at
    FROM movement
    WHERE sku = $1 AND ($2 IS NULL OR warehouse = $2) AND ($3 IS NULL OR kind = $3)
        AND ($4 IS NULL OR reference = $4) AND ($5 IS NULL OR operation_id < $5)
    ORDER BY operation_id DESC, line DESC LIMIT $6"#;

/// One statement, therefore one snapshot. The sums of `bigint` are `numeric` until they are cast.
pub(super) const AUDIT: &str = "SELECT s.warehouse, coalesce(m.received, 0) AS received,
        coalesce(m.sold, 0) AS sold,
        s.on_hand, s.held, s.backorder_limit
    FROM stock s LEFT JOIN (
        SELECT warehouse,
            sum(CASE WHEN kind <> 'deducted' THEN delta ELSE 0 END)::bigint AS received,
            sum(CASE WHEN kind = 'deducted' THEN -delta ELSE 0 END)::bigint AS sold
        FROM movement WHERE sku = $1 GROUP BY warehouse
    ) m ON m.warehouse = s.warehouse
    WHERE s.sku = $1 ORDER BY s.warehouse";

pub(super) const SETTINGS: &str = "SELECT current_setting('synchronous_commit'),
        current_setting('synchronous_standby_names'),
        current_setting('fsync'), current_setting('full_page_writes')";

#[cfg(test)]
mod tests {
    /// What `make bench` has the database's own load tool send.
    #[test]
    fn single_sql() {
        insta::assert_snapshot!(super::DEDUCT_IF_AVAILABLE);
    }
}
