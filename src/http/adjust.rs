//! `POST /stock/{sku}/adjust`: adds units to a level or takes them from it, with a reason. `POST /adjustments`
//! does so for several levels at once, for example to transfer units.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use serde::Deserialize;
use utoipa::ToSchema;

use super::headers::{answer, idempotency};
use super::keys::Granted;
use super::levels::new_sku;
use super::order_lines::has_lines;
use super::{
    Api, ApiError, NoFields, StrictJson, StrictQuery, objects, openapi, present, remark, whole,
};
use crate::access::Grant;
use stocklock_core::level_service::{Adjusted, AdjustedLines};
use stocklock_core::stock::{
    Change, Line, MAX_UNITS, Operation, Remarks, RequestHash, Sku, Warehouse,
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

impl AdjustBody {
    fn of_sku(self, sku: Sku) -> AdjustmentsBody {
        let (warehouse, delta) = (self.warehouse, self.delta);
        AdjustmentsBody {
            lines: vec![AdjustmentLine {
                sku,
                warehouse,
                delta,
            }],
            reason: self.reason,
            reference: self.reference,
        }
    }
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
    Granted(grant): Granted,
    Path(sku): Path<String>,
    _: StrictQuery<NoFields>,
    headers: HeaderMap,
    body: StrictJson<AdjustBody>,
) -> Result<impl IntoResponse, ApiError> {
    let sku = new_sku(sku)?;
    let body = body.parse()?;
    check_delta("delta", body.delta)?;
    let adjustment = adjustments(&api, body.of_sku(sku), (&headers, grant))?;
    let made = (adjustment.id, api.levels.change(adjustment).await);
    answer(made, Adjusted::from)
}

/// Adjustments that are made together.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AdjustmentsBody {
    /// The adjustments, 1 to 100. A transfer takes units from one level, and adds them to another.
    #[serde(deserialize_with = "objects")]
    lines: Vec<AdjustmentLine>,
    /// The reason, for the ledger.
    #[schema(example = "transfer")]
    reason: String,
    /// An external reference, such as an order number.
    #[serde(default, deserialize_with = "present")]
    #[schema(example = "TR-4711")]
    reference: Option<String>,
}

/// An adjustment of one level.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AdjustmentLine {
    /// The SKU.
    #[schema(value_type = String, example = "1001")]
    sku: Sku,
    /// The warehouse; default `main`.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<String>, example = "main")]
    warehouse: Option<Warehouse>,
    /// Units to add; negative to take units. Not 0.
    #[serde(deserialize_with = "whole")]
    #[schema(example = -5)]
    delta: i64,
}

/// Adjust several levels at once, or transfer units
///
/// All lines are made, or nothing is. Several lines need an Idempotency-Key; a retry with the same key gets the
/// answer to the first request.
#[utoipa::path(
    post, path = "/adjustments", tag = "stock",
    params(openapi::IdempotencyKeyHeader),
    request_body = AdjustmentsBody,
    responses(
        (status = 200, description = "Adjusted", body = AdjustedLines, headers(
            ("Idempotent-Replayed" = String, description = "`true` for the answer to a retry"))),
        openapi::ReadErrors, openapi::WriteErrors,
        (status = 404, response = openapi::NotFound),
        (status = 409, response = openapi::Conflict),
    )
)]
pub(super) async fn adjust_lines(
    State(api): State<Arc<Api>>,
    Granted(grant): Granted,
    _: StrictQuery<NoFields>,
    headers: HeaderMap,
    body: StrictJson<AdjustmentsBody>,
) -> Result<impl IntoResponse, ApiError> {
    let adjustments = adjustments(&api, body.parse()?, (&headers, grant))?;
    let made = (adjustments.id, api.levels.change(adjustments).await);
    answer(made, AdjustedLines::from)
}

fn adjustments(
    api: &Api,
    body: AdjustmentsBody,
    (headers, grant): (&HeaderMap, Grant),
) -> Result<Operation, ApiError> {
    has_lines(body.lines.len())?;
    grant.charge_lines(body.lines.len());
    let lines = body.lines.into_iter().enumerate();
    let line = |(number, line): (usize, AdjustmentLine)| {
        check_delta(&format!("lines[{number}].delta"), line.delta)?;
        let warehouse = line.warehouse.unwrap_or_default();
        Ok(Line::new(line.sku, warehouse, Change::Adjust(line.delta)))
    };
    let lines = lines.map(line).collect::<Result<Vec<_>, ApiError>>()?;
    let remarks = Remarks {
        reason: remark("reason", Some(body.reason))?,
        reference: remark("reference", body.reference)?,
    };
    let hash = RequestHash::of_operation(&lines, &remarks);
    let idempotency = idempotency(headers, &grant.caller, hash)?;
    Ok(Operation::of_lines(
        grant.caller,
        lines,
        idempotency,
        remarks,
        api.deadline(),
    )?)
}

pub(super) fn check_delta(field: &str, delta: i64) -> Result<(), ApiError> {
    if delta == 0 || delta.unsigned_abs() > MAX_UNITS.unsigned_abs() {
        return Err(ApiError::invalid(format!(
            "{field}: must be from 1 to {MAX_UNITS}, or from -{MAX_UNITS} to -1"
        )));
    }
    Ok(())
}
