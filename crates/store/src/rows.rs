//! Rows as the SQL back ends read them, and what they mean.
//!
//! Tuples, because sqlx decodes a tuple for every driver alike; each is read by the columns of
//! the constant beside it in a back end's file, in that order.

use std::fmt;

use uuid::Uuid;

use stocklock_core::stock::{
    Audit, Durability, Home, Movement, MovementKind, OperationId, RequestHash, Sku, StockLevel,
    Warehouse,
};

use super::StoreError;
use super::journal::EntryId;
use super::mirror::Mirrored;

/// sku, warehouse, `on_hand`, held, `backorder_limit`, version, home.
pub(super) type LevelRow = (String, String, i64, i64, i64, i64, String);

/// `operation_id`, sku, warehouse, kind, delta, `available_after`, `read_version`, strategy,
/// durability, `request_hash`, reason, reference, `created_at`.
pub(super) type MovementRow = (
    Uuid,
    String,
    String,
    String,
    i64,
    i64,
    Option<i64>,
    Option<String>,
    String,
    Option<Vec<u8>>,
    Option<String>,
    Option<String>,
    String,
);

/// warehouse, received, sold, `on_hand`, held, `backorder_limit`.
pub(super) type AuditRow = (String, i64, i64, i64, i64, i64);

/// sku, warehouse, `on_hand`, held, `backorder_limit`, version, home, `journal_millis`,
/// `journal_number`.
pub(super) type MirrorRow = (String, String, i64, i64, i64, i64, String, i64, i64);

pub(super) fn level(row: LevelRow) -> Result<StockLevel, StoreError> {
    let (sku, warehouse, on_hand, held, backorder_limit, version, home) = row;
    Ok(StockLevel {
        sku: Sku::parse(sku).map_err(corrupt)?,
        warehouse: Warehouse::parse(warehouse).map_err(corrupt)?,
        on_hand,
        held,
        backorder_limit,
        version,
        home: match home.as_str() {
            "sql" => Home::Sql,
            "redis" => Home::Redis,
            other => return Err(corrupt(format!("home `{other}`"))),
        },
    })
}

pub(super) fn levels(rows: Vec<LevelRow>) -> Result<Vec<StockLevel>, StoreError> {
    rows.into_iter().map(level).collect()
}

pub(super) fn movement(row: MovementRow) -> Result<Movement, StoreError> {
    let (
        operation,
        sku,
        warehouse,
        kind,
        delta,
        available_after,
        read_version,
        strategy,
        durability,
        request_hash,
        reason,
        reference,
        created_at,
    ) = row;
    let request_hash = match request_hash {
        Some(bytes) => {
            Some(RequestHash(bytes.try_into().map_err(|_| {
                corrupt("a request_hash that has not 32 bytes")
            })?))
        }
        None => None,
    };
    Ok(Movement {
        operation: OperationId(operation),
        sku: Sku::parse(sku).map_err(corrupt)?,
        warehouse: Warehouse::parse(warehouse).map_err(corrupt)?,
        kind: MovementKind::parse(&kind).ok_or_else(|| corrupt(format!("kind `{kind}`")))?,
        delta,
        available_after,
        read_version,
        strategy,
        durability: match durability.as_str() {
            "committed" => Durability::Committed,
            "redis" => Durability::Redis,
            other => return Err(corrupt(format!("durability `{other}`"))),
        },
        request_hash,
        reason,
        reference,
        created_at,
    })
}

pub(super) fn audit(row: AuditRow) -> Result<Audit, StoreError> {
    let (warehouse, received, sold, on_hand, held, backorder_limit) = row;
    let warehouse = Warehouse::parse(warehouse).map_err(corrupt)?;
    Ok(Audit {
        warehouse,
        received,
        sold,
        on_hand,
        held,
        backorder_limit,
        pending: 0,
    })
}

pub(super) fn mirrored(row: MirrorRow) -> Result<Mirrored, StoreError> {
    let (sku, warehouse, on_hand, held, backorder_limit, version, home, millis, number) = row;
    let row = (
        sku,
        warehouse,
        on_hand,
        held,
        backorder_limit,
        version,
        home,
    );
    Ok(Mirrored {
        level: level(row)?,
        entry: EntryId { millis, number },
    })
}

/// A row that this service cannot have written.
fn corrupt(what: impl fmt::Display) -> StoreError {
    StoreError::Bug(format!("the database holds {what}").into())
}
