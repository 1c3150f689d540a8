//! The return of a sale's units, from the first attempt to the answer.

use serde::Serialize;

use crate::deduct::Outcome;
use crate::ports::{LevelStore, ReversalOutcome, StoreError};
use crate::stock::{Movement, OperationId, Quantity, Reversal, Sku, StockError, Warehouse};

/// Units of a sale that came back.
// A retry gets the first answer. The comments are in the API's document.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = ReverseAnswer))]
pub struct Reversed {
    /// The id of the return in the ledger.
    #[serde(rename = "id")]
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub operation: OperationId,
    /// The id of the sale.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub reverses: OperationId,
    /// The SKU.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub sku: Sku,
    /// The warehouse.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub warehouse: Warehouse,
    /// Units that came back.
    pub quantity: i64,
    /// Whether they are on hand again.
    pub restock: bool,
    /// Units available after the return.
    pub remaining: i64,
    /// Whether this answers a retry of an earlier request.
    #[serde(skip)]
    pub replayed: bool,
}

/// One attempt. `unknown`: whether the outcome of an earlier one is unknown.
pub(super) async fn reverse_once(
    store: &dyn LevelStore,
    reversal: &Reversal,
    sale: &Movement,
    unknown: bool,
) -> Result<Outcome<Reversed>, StoreError> {
    let outcome = store.reverse(reversal, sale).await?;
    if let ReversalOutcome::Done(planned) = outcome {
        return Ok(Outcome::Done(Ok(Reversed {
            operation: reversal.operation,
            reverses: reversal.sale,
            quantity: planned.quantity,
            restock: reversal.restock,
            remaining: planned.level.available(),
            sku: sale.sku.clone(),
            warehouse: sale.warehouse.clone(),
            replayed: false,
        })));
    }
    // The retry of a request that brought the last units back finds none left.
    let key = reversal.idempotency.as_ref();
    let recorded = if unknown || key.is_some() || outcome == ReversalOutcome::Duplicate {
        store.recorded(&sale.sku, reversal.operation, key).await?
    } else {
        None
    };
    Ok(match recorded {
        Some(movement) => Outcome::Done(replay(reversal, movement)),
        None => refusal(reversal, &outcome),
    })
}

fn replay(reversal: &Reversal, movement: Movement) -> Result<Reversed, StockError> {
    let key = reversal.idempotency.as_ref();
    if movement.request_hash != key.map(|key| key.hash) {
        return Err(StockError::IdempotencyKeyReused);
    }
    Ok(Reversed {
        operation: movement.operation,
        reverses: reversal.sale,
        sku: movement.sku,
        warehouse: movement.warehouse,
        quantity: movement.returned.unwrap_or_default(),
        restock: reversal.restock,
        remaining: movement.available_after,
        replayed: movement.operation != reversal.operation,
    })
}

fn refusal<T>(reversal: &Reversal, outcome: &ReversalOutcome) -> Outcome<T> {
    Outcome::Done(Err(match *outcome {
        ReversalOutcome::Done(_) | ReversalOutcome::Duplicate => return Outcome::Retry,
        ReversalOutcome::UnknownSku => StockError::UnknownSku,
        ReversalOutcome::ExceedsSale { left } => StockError::ExceedsSale {
            requested: reversal.quantity.map_or(1, Quantity::units),
            left,
        },
        ReversalOutcome::TooLarge => StockError::TooLarge,
    }))
}
