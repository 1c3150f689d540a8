//! `POST /operations/{id}/reverse`: takes units of a sale back.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use serde::Deserialize;
use utoipa::ToSchema;

use super::headers::{idempotency, idempotent_replayed};
use super::operations::operation_id;
use super::{Api, ApiError, NoFields, StrictJson, StrictQuery, openapi, present_whole};
use stocklock_core::level_service::Reversed;
use stocklock_core::stock::{OperationId, Quantity, Remark, RequestHash, Reversal};

/// Units of a sale that come back.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReverseBody {
    /// Number of units; default: all that have not come back.
    #[serde(default, deserialize_with = "present_whole")]
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 10_000)]
    quantity: Option<Quantity>,
    /// The reason, for the ledger.
    #[schema(example = "wrong size")]
    reason: String,
    /// Whether the units are on hand again.
    restock: bool,
}

/// Reverse a sale: take units back
///
/// Never more units come back than were sold. A retry with the same Idempotency-Key gets the answer
/// to the first request.
#[utoipa::path(
    post, path = "/operations/{id}/reverse", tag = "operations",
    params(openapi::OperationPath, openapi::IdempotencyKeyHeader),
    request_body = ReverseBody,
    responses(
        (status = 200, description = "Taken back, and committed", body = Reversed, headers(
            ("Idempotent-Replayed" = String, description = "`true` for the answer to a retry"))),
        openapi::ReadErrors, openapi::WriteErrors,
        (status = 404, response = openapi::NotFound),
        (status = 409, response = openapi::Conflict),
    )
)]
pub(super) async fn reverse(
    State(api): State<Arc<Api>>,
    Path(id): Path<String>,
    _: StrictQuery<NoFields>,
    headers: HeaderMap,
    body: StrictJson<ReverseBody>,
) -> Result<impl IntoResponse, ApiError> {
    let reversal = reversal(&api, operation_id(&id)?, body.parse()?, &headers)?;
    let operation = reversal.operation;
    let reversed = api.levels.reverse(reversal).await;
    let reversed = reversed.map_err(|error| ApiError::of_operation(operation, error))?;
    Ok((idempotent_replayed(reversed.replayed), Json(reversed)))
}

fn reversal(
    api: &Api,
    sale: OperationId,
    body: ReverseBody,
    headers: &HeaderMap,
) -> Result<Reversal, ApiError> {
    let ReverseBody {
        quantity, restock, ..
    } = body;
    let reason = Remark::parse("reason", body.reason).map_err(ApiError::invalid)?;
    let hash = RequestHash::of_reversal(sale, quantity, restock, reason.as_str());
    Ok(Reversal {
        operation: OperationId::mint(),
        idempotency: idempotency(headers, hash)?,
        sale,
        quantity,
        restock,
        reason,
        deadline: api.deadline(),
    })
}
