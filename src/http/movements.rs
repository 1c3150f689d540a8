//! `GET /stock/{sku}/movements`: the ledger.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, RawQuery, State};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::error::ApiError;
use super::extract::{self, present};
use super::levels::{bad_cursor, cut_page, known_sku, page_limit};
use super::{Api, openapi};
use stocklock_core::stock::{
    Movement, MovementFilter, MovementKind, OperationId, Reference, Sku, StockError, Warehouse,
};

/// One row of the ledger.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct MovementBody {
    /// The operation that it belongs to.
    id: String,
    /// Where.
    warehouse: String,
    /// `received`, `deducted` or `adjusted`.
    kind: String,
    /// Units added; negative for a sale.
    delta: i64,
    /// Units available right after it.
    available_after: i64,
    /// The version that a read-check-write had read; two movements with the same one are a lost
    /// update.
    read_version: Option<i64>,
    /// What protected a deduction.
    strategy: Option<String>,
    /// How durable it was when it was acknowledged.
    durability: String,
    /// Why.
    reason: Option<String>,
    /// What it belongs to.
    reference: Option<String>,
    /// When it was recorded: RFC 3339, UTC.
    created_at: String,
}

impl From<Movement> for MovementBody {
    fn from(movement: Movement) -> Self {
        Self {
            id: movement.operation.to_string(),
            warehouse: movement.warehouse.into(),
            kind: movement.kind.as_str().to_owned(),
            delta: movement.delta,
            available_after: movement.available_after,
            read_version: movement.read_version,
            strategy: movement.strategy,
            durability: movement.durability.as_str().to_owned(),
            reason: movement.reason,
            reference: movement.reference,
            created_at: movement.created_at,
        }
    }
}

/// A page of the ledger.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct MovementPage {
    /// Newest operation first.
    movements: Vec<MovementBody>,
    /// `?cursor=` of the next page; `null` on the last.
    next_cursor: Option<String>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct MovementQuery {
    /// Of this warehouse only.
    #[serde(default, deserialize_with = "present")]
    #[param(value_type = Option<String>)]
    warehouse: Option<Warehouse>,
    /// Of this kind only: `received`, `deducted` or `adjusted`.
    #[serde(default, deserialize_with = "present")]
    #[param(value_type = Option<String>)]
    kind: Option<MovementKind>,
    /// With this reference only.
    #[serde(default, deserialize_with = "present")]
    reference: Option<String>,
    /// Most movements on the page, 1 to 1000; 100 unless named.
    #[serde(default, deserialize_with = "present")]
    limit: Option<u32>,
    /// The previous page's `next_cursor`.
    #[serde(default, deserialize_with = "present")]
    cursor: Option<String>,
}

impl MovementQuery {
    fn filter(self, sku: Sku, limit: u32) -> Result<MovementFilter, ApiError> {
        let cursor = self.cursor.as_deref().map(Uuid::parse_str).transpose();
        let before = cursor.map_err(|_| bad_cursor())?.map(OperationId);
        let reference = self.reference.map(Reference::parse).transpose();
        let reference = reference.map_err(ApiError::invalid)?;
        let Self {
            warehouse, kind, ..
        } = self;
        Ok(MovementFilter {
            sku,
            warehouse,
            kind,
            reference: reference.map(|reference| reference.as_str().to_owned()),
            before,
            limit,
        })
    }
}

/// A SKU's ledger, newest first
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
    RawQuery(query): RawQuery,
) -> Result<Json<MovementPage>, ApiError> {
    let query: MovementQuery = extract::query(query.as_deref())?;
    let limit = page_limit(query.limit)?;
    let filter = query.filter(known_sku(sku)?, limit + 1)?;
    let mut movements = api.store.movements(&filter).await?;
    if movements.is_empty() && api.store.levels_of(&filter.sku).await?.is_empty() {
        return Err(StockError::UnknownSku.into());
    }
    let next_cursor = cut_page(&mut movements, limit, |movement| {
        movement.operation.to_string()
    });
    let movements = movements.into_iter().map(MovementBody::from).collect();
    Ok(Json(MovementPage {
        movements,
        next_cursor,
    }))
}
