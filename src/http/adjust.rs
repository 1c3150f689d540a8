//! `POST /stock/{sku}/adjust`: adds to or takes from a level, for a reason.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::HeaderMap;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::error::ApiError;
use super::extract::{self, NoQuery, present};
use super::idempotency::{idempotency, mark_replayed};
use super::levels::new_sku;
use super::{Api, openapi};
use stocklock_core::stock::{
    Adjustment, MAX_UNITS, OperationId, Reason, Reference, RequestHash, Sku, Warehouse,
};

/// Units that came in or went missing.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AdjustBody {
    /// Where; `main` unless named.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<String>, example = "main")]
    warehouse: Option<Warehouse>,
    /// Units to add, or negative to take; not 0.
    #[schema(example = 24)]
    delta: i64,
    /// Why, for the ledger.
    #[schema(example = "delivery")]
    reason: String,
    /// What it belongs to, such as an order number.
    #[serde(default, deserialize_with = "present")]
    #[schema(example = "PO-4711")]
    reference: Option<String>,
}

/// What was adjusted.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct AdjustAnswer {
    /// The operation; the ledger has it under this id.
    id: String,
    /// What.
    sku: String,
    /// Where.
    warehouse: String,
    /// Units added.
    delta: i64,
    /// Units available right after it.
    remaining: i64,
}

/// Add to or take from a level
///
/// With an Idempotency-Key, a repeat of the request answers what the first one did.
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
    _: NoQuery,
    request: Request,
) -> Result<Response, ApiError> {
    let (Parts { headers, .. }, body) = request.into_parts();
    let body = extract::body(body, api.body).await?;
    let adjustment = adjustment(new_sku(sku)?, extract::json(&headers, &body)?, &headers)?;
    let (sku, warehouse) = (adjustment.sku.to_string(), adjustment.warehouse.to_string());
    let adjusted = api.changes.adjust(adjustment).await?;
    let id = adjusted.operation.to_string();
    let (delta, remaining) = (adjusted.delta, adjusted.remaining);
    let answer = AdjustAnswer {
        id,
        sku,
        warehouse,
        delta,
        remaining,
    };
    let mut response = Json(answer).into_response();
    mark_replayed(&mut response, adjusted.replayed);
    Ok(response)
}

fn adjustment(sku: Sku, body: AdjustBody, headers: &HeaderMap) -> Result<Adjustment, ApiError> {
    let delta = body.delta;
    if delta == 0 || delta.unsigned_abs() > MAX_UNITS.unsigned_abs() {
        return Err(ApiError::invalid(format!(
            "delta: must be 1 to {MAX_UNITS}, either way"
        )));
    }
    let warehouse = body.warehouse.unwrap_or_default();
    let reason = Reason::parse(body.reason).map_err(ApiError::invalid)?;
    let reference = body
        .reference
        .map(Reference::parse)
        .transpose()
        .map_err(ApiError::invalid)?;
    let hash = RequestHash::of_adjustment(
        &sku,
        &warehouse,
        delta,
        reason.as_str(),
        reference.as_ref().map(Reference::as_str),
    );
    let idempotency = idempotency(headers, hash)?;
    let operation = OperationId::mint();
    Ok(Adjustment {
        operation,
        sku,
        warehouse,
        delta,
        reason,
        reference,
        idempotency,
    })
}
