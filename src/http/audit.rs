//! `GET /stock/{sku}/audit`: the counter held against the ledger.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use serde::Serialize;
use utoipa::ToSchema;

use super::error::ApiError;
use super::extract::NoQuery;
use super::levels::known_sku;
use super::{Api, openapi};
use stocklock_core::stock::{Audit, StockError};

/// One warehouse's counter and ledger.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct WarehouseAudit {
    /// Where.
    warehouse: String,
    /// Units that came in.
    received: i64,
    /// Units sold.
    sold: i64,
    /// What the counter says.
    on_hand: i64,
    /// Units promised, not yet taken.
    held: i64,
    /// Units sold that the counter did not notice.
    drift: i64,
    /// Units sold that never existed.
    oversold: i64,
    /// Movements journaled, not yet in SQL.
    pending: i64,
    /// Whether all agree.
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

/// A SKU's audit.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SkuAudit {
    /// What.
    sku: String,
    /// In warehouse order.
    warehouses: Vec<WarehouseAudit>,
}

/// Does the counter agree with the ledger?
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
    _: NoQuery,
) -> Result<Json<SkuAudit>, ApiError> {
    let sku = known_sku(sku)?;
    let audits = api.store.audit(&sku).await?;
    if audits.is_empty() {
        return Err(StockError::UnknownSku.into());
    }
    let warehouses = audits.into_iter().map(WarehouseAudit::from).collect();
    Ok(Json(SkuAudit {
        sku: sku.into(),
        warehouses,
    }))
}
