//! `POST /stock/{sku}/adjust`: adds units to a level or takes them from it, with a reason.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::error::ApiError;
use super::extract::{NoFields, StrictJson, StrictQuery, present, remark};
use super::idempotency::{idempotency, with_replayed};
use super::levels::new_sku;
use super::{Api, openapi};
use stocklock_core::stock::{
    Adjustment, MAX_UNITS, OperationId, Remark, RequestHash, Sku, Warehouse,
};

/// Units that arrived or went missing.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AdjustBody {
    /// The warehouse; default `main`.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<String>, example = "main")]
    warehouse: Option<Warehouse>,
    /// Units to add; negative to take units. Not 0.
    #[schema(example = 24)]
    delta: i64,
    /// The reason, for the ledger.
    #[schema(example = "delivery")]
    reason: String,
    /// An external reference, such as an order number.
    #[serde(default, deserialize_with = "present")]
    #[schema(example = "PO-4711")]
    reference: Option<String>,
}

/// An adjustment that was made.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct AdjustAnswer {
    /// The id of the operation in the ledger.
    id: String,
    /// The SKU.
    sku: String,
    /// The warehouse.
    warehouse: String,
    /// Units added.
    delta: i64,
    /// Units available after the adjustment.
    remaining: i64,
}

/// Add units to a level, or take units from it
///
/// A retry with the same Idempotency-Key gets the answer to the first request.
#[utoipa::path(
    post, path = "/stock/{sku}/adjust", tag = "stock",
    params(openapi::SkuPath, openapi::IdempotencyKeyHeader),
    request_body = AdjustBody,
    responses(
        (status = 200, description = "Adjusted", body = AdjustAnswer),
        openapi::ReadErrors, openapi::WriteErrors,
        (status = 404, response = openapi::NotFound),
        (status = 409, response = openapi::Conflict),
    )
)]
pub(super) async fn adjust(
    State(api): State<Arc<Api>>,
    Path(sku): Path<String>,
    _: StrictQuery<NoFields>,
    headers: HeaderMap,
    body: StrictJson<AdjustBody>,
) -> Result<Response, ApiError> {
    let adjustment = adjustment(new_sku(sku)?, body.parse()?, &headers)?;
    let (sku, warehouse) = (adjustment.sku.to_string(), adjustment.warehouse.to_string());
    let adjusted = api.levels.adjust(adjustment).await?;
    let answer = AdjustAnswer {
        id: adjusted.operation.to_string(),
        sku,
        warehouse,
        delta: adjusted.delta,
        remaining: adjusted.remaining,
    };
    Ok(with_replayed(Json(answer), adjusted.replayed))
}

fn adjustment(sku: Sku, body: AdjustBody, headers: &HeaderMap) -> Result<Adjustment, ApiError> {
    let delta = body.delta;
    if delta == 0 || delta.unsigned_abs() > MAX_UNITS.unsigned_abs() {
        return Err(ApiError::invalid(format!(
            "delta: must be from 1 to {MAX_UNITS}, or from -{MAX_UNITS} to -1"
        )));
    }
    let warehouse = body.warehouse.unwrap_or_default();
    let reason = Remark::parse("reason", body.reason).map_err(ApiError::invalid)?;
    let reference = remark("reference", body.reference)?;
    let hash = RequestHash::of_adjustment(
        &sku,
        &warehouse,
        delta,
        reason.as_str(),
        reference.as_ref().map(Remark::as_str),
    );
    Ok(Adjustment {
        idempotency: idempotency(headers, hash)?,
        operation: OperationId::mint(),
        sku,
        warehouse,
        delta,
        reason,
        reference,
    })
}
