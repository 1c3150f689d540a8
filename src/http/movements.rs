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

/// One row of the ledger.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct MovementBody {
    /// The id of the operation.
    id: String,
    /// Its line in the operation, from 0. A return has the line of its sale, the end of a hold that of the hold.
    line: i64,
    /// The SKU.
    sku: String,
    /// The warehouse.
    warehouse: String,
    /// `received`, `deducted`, `adjusted`, `returned`, `held`, `released` or `expired`. A later release may have recorded other kinds.
    kind: String,
    /// Units added; negative for a sale.
    delta: i64,
    /// Units set aside; negative if they are no longer.
    held_delta: i64,
    /// Units available after the movement.
    available_after: i64,
    /// The version of the level after the movement: its place in the order of the level's commits, without
    /// gaps.
    level_version: i64,
    /// The version that a read-check-write strategy or a PUT had read. Two movements with the same
    /// version are a lost update.
    read_version: Option<i64>,
    /// The strategy of a deduction.
    strategy: Option<String>,
    /// Who sent the request.
    caller: String,
    /// The Idempotency-Key of the request. Only the first line of an operation has it.
    idempotency_key: Option<String>,
    /// The reason of a change that is not a deduction.
    reason: Option<String>,
    /// The external reference.
    reference: Option<String>,
    /// The id of the sale, if units of it came back; of the hold, if it ended.
    reverses: Option<String>,
    /// How many units came back. They are in `delta` only if they are on hand again.
    returned: Option<i64>,
    /// When it was recorded: RFC 3339, UTC.
    created_at: String,
}

impl From<Movement> for MovementBody {
    fn from(movement: Movement) -> Self {
        Self {
            id: movement.operation.to_string(),
            line: movement.line,
            sku: movement.sku.into(),
            warehouse: movement.warehouse.into(),
            kind: movement.kind.as_str().to_owned(),
            delta: movement.delta,
            held_delta: movement.held_delta,
            available_after: movement.available_after,
            level_version: movement.level_version,
            read_version: movement.read_version,
            strategy: movement.strategy,
            caller: movement.caller,
            idempotency_key: movement.idempotency_key,
            reason: movement.remarks.reason.map(Remark::into),
            reference: movement.remarks.reference.map(Remark::into),
            reverses: movement.reverses.map(|sale| sale.to_string()),
            returned: movement.returned,
            created_at: movement.created_at,
        }
    }
}

/// A page of the ledger.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct MovementPage {
    /// Newest first. Those of one warehouse are in the order of their commits.
    movements: Vec<MovementBody>,
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
        movements: page.movements.into_iter().map(MovementBody::from).collect(),
        next_cursor: page.next.map(|cursor| cursor.to_string()),
    }))
}
