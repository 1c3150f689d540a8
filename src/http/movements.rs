//! `GET /stock/{sku}/movements`: the ledger.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::levels::known_sku;
use super::paging::{PageSize, bad_cursor};
use super::{Api, ApiError, StrictQuery, openapi, remark};
use stocklock_core::stock::{
    LedgerCursor, Movement, MovementFilter, MovementKind, Remark, Sku, StockError, Warehouse,
};

/// A page of the ledger.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct MovementPage {
    /// Newest first. Those of one warehouse are in the order of their commits.
    movements: Vec<Movement>,
    /// The `cursor` parameter for the next page; `null` on the last page.
    next_cursor: Option<String>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct MovementQuery {
    /// Only movements of this warehouse.
    #[param(value_type = Option<String>)]
    warehouse: Option<Warehouse>,
    /// Only movements of this kind: `received`, `deducted`, `adjusted`, `returned`, `held`, `released` or
    /// `expired`.
    #[param(value_type = Option<String>)]
    kind: Option<MovementKind>,
    /// Only movements with this reference.
    reference: Option<String>,
    /// Maximum number of movements on the page, 1 to 1000; default 100.
    #[param(value_type = Option<u32>)]
    limit: Option<PageSize>,
    /// The `next_cursor` of the previous page.
    cursor: Option<String>,
}

impl MovementQuery {
    fn filter(self, sku: Sku) -> Result<MovementFilter, ApiError> {
        let parse = |text: String| LedgerCursor::parse(&text).ok_or_else(bad_cursor);
        let from = self.cursor.map(parse).transpose()?;
        let reference = remark("reference", self.reference)?;
        Ok(MovementFilter {
            sku,
            warehouse: self.warehouse,
            kind: self.kind,
            reference: reference.map(Remark::into),
            from,
            limit: self.limit.unwrap_or_default().rows(),
        })
    }
}

/// List the movements of a SKU, newest first
///
/// A page reads a bounded number of movements. So with a filter, or if the SKU is in many warehouses, it
/// may have fewer than `limit`, or none, although there are more: follow `next_cursor` until it is `null`.
#[utoipa::path(
    get, path = "/stock/{sku}/movements", tag = "stock",
    params(openapi::SkuPath, MovementQuery),
    responses(
        (status = 200, description = "A page", body = MovementPage),
        openapi::ReadErrors, (status = 404, response = openapi::NotFound),
    )
)]
pub(super) async fn movements(
    State(api): State<Arc<Api>>,
    Path(sku): Path<String>,
    StrictQuery(query): StrictQuery<MovementQuery>,
) -> Result<Json<MovementPage>, ApiError> {
    let filter = query.filter(known_sku(&api, sku)?)?;
    let page = api.store.movements(&filter).await?;
    let is_complete = page.movements.is_empty() && page.next.is_none();
    if is_complete && api.store.levels_of(&filter.sku).await?.is_empty() {
        return Err(StockError::UnknownSku.into());
    }
    Ok(Json(MovementPage {
        movements: page.movements,
        next_cursor: page.next.map(|cursor| cursor.to_string()),
    }))
}
