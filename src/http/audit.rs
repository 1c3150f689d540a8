//! `GET /stock/{sku}/audit`: compares the level with the ledger.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use serde::Serialize;
use utoipa::ToSchema;

use super::levels::known_sku;
use super::{Api, ApiError, NoFields, StrictQuery, openapi};
use stocklock_core::stock::{Audit, StockError};

/// The level and the ledger of one warehouse.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct WarehouseAudit {
    /// The warehouse.
    warehouse: String,
    /// Units received, according to the ledger. Returned units count if they are on hand again.
    received: i64,
    /// Units sold, according to the ledger, with those that came back later.
    sold: i64,
    /// Units on hand, according to the level.
    on_hand: i64,
    /// Units reserved, not yet taken.
    held: i64,
    /// `on_hand` minus the sum of all movements; not 0 if the level missed a sale.
    drift: i64,
    /// Units sold that did not exist.
    oversold: i64,
    /// Movements in the journal, not yet in SQL.
    pending: i64,
    /// Whether level and ledger agree.
    consistent: bool,
}

impl From<Audit> for WarehouseAudit {
    fn from(audit: Audit) -> Self {
        Self {
            drift: audit.drift(),
            oversold: audit.oversold(),
            consistent: audit.consistent(),
            received: audit.received,
            sold: audit.sold,
            on_hand: audit.on_hand,
            held: audit.held,
            pending: audit.pending,
            warehouse: audit.warehouse.into(),
        }
    }
}

/// The audit of a SKU.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SkuAudit {
    /// The SKU.
    sku: String,
    /// In warehouse order.
    warehouses: Vec<WarehouseAudit>,
}

/// Compare the level with the ledger
#[utoipa::path(
    get, path = "/stock/{sku}/audit", tag = "stock", params(openapi::SkuPath),
    responses(
        (status = 200, description = "The audit", body = SkuAudit),
        openapi::ReadErrors, (status = 404, response = openapi::NotFound),
    )
)]
pub(super) async fn audit(
    State(api): State<Arc<Api>>,
    Path(sku): Path<String>,
    _: StrictQuery<NoFields>,
) -> Result<Json<SkuAudit>, ApiError> {
    let sku = known_sku(sku)?;
    let audits = api.store.audit(&sku).await?;
    if audits.is_empty() {
        return Err(StockError::UnknownSku.into());
    }
    let warehouses = audits.into_iter().map(WarehouseAudit::from).collect();
    let sku = sku.into();
    Ok(Json(SkuAudit { sku, warehouses }))
}
