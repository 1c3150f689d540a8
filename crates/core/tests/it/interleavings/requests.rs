//! The requests of the buyers, and a delivery.

use stocklock_core::stock::{
    Caller, Change, Idempotency, IdempotencyKey, Line, Operation, OperationId, Quantity, Remark,
    Remarks, RequestHash, Sku, Warehouse,
};
use stocklock_core::strategy::Strategy;
use tokio::time::Instant;

use super::scenario::WAIT_LIMIT;

/// The SKU of the buyers, unless a test names others.
pub(super) const SKU: &str = "1001";

pub(super) fn sku(name: &str) -> Sku {
    Sku::parse(name).expect("a valid SKU")
}

/// A deduction of one unit.
pub(super) fn deduction(sku: &Sku, key: Option<&str>, strategy: Strategy) -> Operation {
    let level = (sku.clone(), Warehouse::default());
    deduction_of(level, Quantity::ONE, key, strategy)
}

/// A deduction from any level.
pub(super) fn deduction_of(
    (sku, warehouse): (Sku, Warehouse),
    quantity: Quantity,
    key: Option<&str>,
    strategy: Strategy,
) -> Operation {
    let idempotency = key.map(|key| Idempotency {
        caller: Caller::anonymous(),
        key: IdempotencyKey::parse(key).expect("a valid key"),
        hash: RequestHash::of_deduction(&sku, &warehouse, quantity, None),
    });
    Operation {
        id: OperationId::mint(),
        caller: Caller::anonymous(),
        lines: vec![Line::new(sku, warehouse, Change::Deduct(quantity))],
        idempotency,
        remarks: Remarks::default(),
        strategy: Some(strategy.name()),
        is_row: false,
        deadline: Instant::now() + WAIT_LIMIT,
    }
}

/// Adds `delta` units of [`SKU`].
pub(super) fn adjustment(delta: i64) -> Operation {
    let line = Line::new(sku(SKU), Warehouse::default(), Change::Adjust(delta));
    let reason = Remark::parse("reason", "count").ok();
    Operation::of_line(
        Caller::anonymous(),
        line,
        reason,
        Instant::now() + WAIT_LIMIT,
    )
}
