//! `POST /stock/{sku}/adjust`: adds units to a level or takes them from it, with a reason.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use serde::Deserialize;
use utoipa::ToSchema;

use super::headers::{idempotency, idempotent_replayed};
use super::levels::new_sku;
use super::{Api, ApiError, NoFields, StrictJson, StrictQuery, openapi, present, remark, whole};
use stocklock_core::level_service::Adjusted;
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
    #[serde(deserialize_with = "whole")]
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

/// Add units to a level, or take units from it
///
/// A retry with the same Idempotency-Key gets the answer to the first request.
#[utoipa::path(
    post, path = "/stock/{sku}/adjust", tag = "stock",
    params(openapi::SkuPath, openapi::IdempotencyKeyHeader),
    request_body = AdjustBody,
    responses(
        (status = 200, description = "Adjusted", body = Adjusted),
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
) -> Result<impl IntoResponse, ApiError> {
    let sku = new_sku(sku)?;
    let adjustment = adjustment(&api, sku, body.parse()?, &headers)?;
    let operation = adjustment.operation;
    let adjusted = api.levels.adjust(adjustment).await;
    let adjusted = adjusted.map_err(|error| ApiError::of_operation(operation, error))?;
    Ok((idempotent_replayed(adjusted.replayed), Json(adjusted)))
}

fn adjustment(
    api: &Api,
    sku: Sku,
    body: AdjustBody,
    headers: &HeaderMap,
) -> Result<Adjustment, ApiError> {
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
        deadline: api.deadline(),
    })
}
