//! `POST /operations/{id}/reverse`: takes units of a sale back.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use serde::Deserialize;
use utoipa::ToSchema;

use super::extract::operation_id;
use super::headers::{answer, idempotency};
use super::keys::Granted;
use super::order_lines::has_lines;
use super::{
    Api, ApiError, NoFields, StrictJson, StrictQuery, openapi, present_objects, present_whole,
    whole,
};
use crate::access::Grant;
use stocklock_core::level_service::Reversed;
use stocklock_core::stock::{
    MAX_LINE_NUMBER, Operation, OperationId, Quantity, Remark, Remarks, RequestHash, Reversal,
};

/// Units of a sale that come back.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReverseBody {
    /// Number of units; default: all that have not come back.
    #[serde(default, deserialize_with = "present_whole")]
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 10_000)]
    quantity: Option<Quantity>,
    /// The lines of the sale of which units come back, 1 to 100, instead of `quantity`. Without both, all
    /// lines of the sale come back.
    #[serde(default, deserialize_with = "present_objects")]
    lines: Option<Vec<ReturnLine>>,
    /// The reason, for the ledger.
    #[schema(example = "wrong size")]
    reason: String,
    /// Whether the units are on hand again.
    restock: bool,
}

/// Units of a line that come back.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReturnLine {
    /// The number of the line in the sale. Each is named once.
    #[serde(deserialize_with = "whole")]
    #[schema(value_type = u32)]
    line: i64,
    /// Number of units; default: all that have not come back.
    #[serde(default, deserialize_with = "present_whole")]
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 10_000)]
    quantity: Option<Quantity>,
}

/// Reverse a sale: take units back
///
/// Never more units of a line come back than it has sold. Several lines need an Idempotency-Key. A retry with
/// the same key gets the answer to the first request.
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
    Granted(grant): Granted,
    Path(id): Path<String>,
    _: StrictQuery<NoFields>,
    headers: HeaderMap,
    body: StrictJson<ReverseBody>,
) -> Result<impl IntoResponse, ApiError> {
    let reversal = reversal(&api, operation_id(&id)?, body.parse()?, (&headers, grant))?;
    let (sale, restock, names_lines) =
        (reversal.sale, reversal.restock, !reversal.lines.is_empty());
    let reversal = api.levels.reversal(reversal).await?;
    let by_line = names_lines || reversal.lines.len() > 1;
    let made = (reversal.id, api.levels.change(reversal).await);
    answer(made, move |made| {
        Reversed::new(made, sale, restock, by_line)
    })
}

fn reversal(
    api: &Api,
    sale: OperationId,
    body: ReverseBody,
    (headers, grant): (&HeaderMap, Grant),
) -> Result<Reversal, ApiError> {
    let ReverseBody {
        quantity, restock, ..
    } = body;
    let reason = Remark::parse("reason", body.reason).map_err(ApiError::invalid)?;
    let lines = body
        .lines
        .map(|lines| return_lines(&lines, quantity))
        .transpose()?;
    grant.charge_lines(lines.as_ref().map_or(1, Vec::len));
    let lines = lines.unwrap_or_default();
    let units = (quantity, &lines[..]);
    let hash = RequestHash::of_reversal(sale, units, restock, reason.as_str());
    let idempotency = idempotency(headers, &grant.caller, hash)?;
    let remarks = Remarks {
        reason: Some(reason),
        ..Remarks::default()
    };
    let deadline = api.deadline();
    Ok(Reversal {
        new: Operation::of_lines(grant.caller, Vec::new(), idempotency, remarks, deadline)?,
        sale,
        quantity,
        lines,
        restock,
    })
}

/// The lines, each named once. `quantity`: what was sent beside them.
fn return_lines(
    lines: &[ReturnLine],
    quantity: Option<Quantity>,
) -> Result<Vec<(i64, Option<Quantity>)>, ApiError> {
    if quantity.is_some() {
        return Err(ApiError::invalid("send either lines or quantity, not both"));
    }
    distinct_lines(lines.iter().map(|one| (one.line, one.quantity)).collect())
}

/// Lines of an operation by their numbers, each named once.
pub(super) fn distinct_lines(
    lines: Vec<(i64, Option<Quantity>)>,
) -> Result<Vec<(i64, Option<Quantity>)>, ApiError> {
    has_lines(lines.len())?;
    for (number, (line, _)) in lines.iter().enumerate() {
        if !(0..=MAX_LINE_NUMBER).contains(line) {
            let detail = format!("lines[{number}].line: must be from 0 to {MAX_LINE_NUMBER}");
            return Err(ApiError::invalid(detail));
        }
        if lines[..number].iter().any(|(other, _)| other == line) {
            let detail = format!("lines[{number}].line: is named twice");
            return Err(ApiError::invalid(detail));
        }
    }
    Ok(lines)
}
