//! `GET /stock/{sku}/movements`: the ledger.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::levels::known_sku;
use super::paging::{PageSize, bad_cursor};
use super::{Api, ApiError, StrictQuery, openapi};
use stocklock_core::stock::{
    Movement, MovementFilter, MovementKind, OperationId, Reference, Sku, StockError, Warehouse,
};

/// A page of the ledger.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct MovementPage {
    /// Newest operation first.
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
    /// Only movements of this kind: `received`, `deducted` or `adjusted`.
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
    fn filter(self, sku: Sku, limit: u32) -> Result<MovementFilter, ApiError> {
        let cursor = self.cursor.as_deref().map(Uuid::parse_str).transpose();
        let before = cursor.map_err(|_| bad_cursor())?.map(OperationId);
        let reference = self.reference.map(Reference::parse).transpose();
        let reference = reference.map_err(ApiError::invalid)?;
        Ok(MovementFilter {
            sku,
            warehouse: self.warehouse,
            kind: self.kind,
            reference: reference.map(|reference| reference.as_str().to_owned()),
            before,
            limit,
        })
    }
}

/// List the movements of a SKU, newest first
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
    let size = query.limit.unwrap_or_default();
    let filter = query.filter(known_sku(sku)?, size.rows_to_read())?;
    let mut movements = api.store.movements(&filter).await?;
    if movements.is_empty() && api.store.levels_of(&filter.sku).await?.is_empty() {
        return Err(StockError::UnknownSku.into());
    }
    let next_cursor = size.cut(&mut movements, |last| last.operation.to_string());
    Ok(Json(MovementPage {
        movements,
        next_cursor,
    }))
}
