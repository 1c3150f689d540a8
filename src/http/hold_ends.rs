//! What becomes of a hold: `POST /operations/{id}/confirm`, `release`, `extend`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::extract::operation_id;
use super::headers::{answer, idempotency};
use super::holds::{Lasts, milliseconds, seconds, time};
use super::keys::Granted;
use super::reverse::distinct_lines;
use super::{
    Api, ApiError, NoFields, StrictJson, StrictQuery, openapi, present, present_objects,
    present_whole, whole,
};
use crate::access::Grant;
use stocklock_core::level_service::{Confirmed, Released};
use stocklock_core::stock::{HoldEnd, Late, Operation, Quantity, Remarks, RequestHash};

/// Units of a hold to sell.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ConfirmBody {
    /// The lines to sell, 1 to 100. Default: all that are open.
    #[serde(default, deserialize_with = "present_objects")]
    lines: Option<Vec<ConfirmLine>>,
    /// Whether units may be sold although the time of the hold is over, if they are available; default `true`.
    #[serde(default, deserialize_with = "present")]
    late: Option<bool>,
}

/// A line of a hold to sell.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ConfirmLine {
    /// The number of the line in the hold. Each is named once.
    #[serde(deserialize_with = "whole")]
    #[schema(value_type = u32)]
    line: i64,
    /// Number of units; default: all that the line holds. The others are given back.
    #[serde(default, deserialize_with = "present_whole")]
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 10_000)]
    quantity: Option<Quantity>,
}

/// Confirm a hold: sell its units
///
/// The body may be absent. The same request again gets the first answer, with the same key, another one or none.
#[utoipa::path(
    post, path = "/operations/{id}/confirm", tag = "holds",
    params(openapi::OperationPath, openapi::IdempotencyKeyHeader),
    request_body(content = ConfirmBody, description = "May be absent"),
    responses(
        (status = 200, description = "Sold, and committed", body = Confirmed, headers(
            ("Idempotent-Replayed" = String, description = "`true` for the answer to a retry"))),
        openapi::ReadErrors, openapi::WriteErrors,
        (status = 404, response = openapi::NotFound),
        (status = 409, response = openapi::HoldConflict),
    )
)]
pub(super) async fn confirm(
    State(api): State<Arc<Api>>,
    Granted(grant): Granted,
    Path(id): Path<String>,
    _: StrictQuery<NoFields>,
    headers: HeaderMap,
    body: StrictJson<ConfirmBody>,
) -> Result<impl IntoResponse, ApiError> {
    let body = optional(body)?;
    let late = match body.late {
        Some(false) => Late::Refused,
        _ => Late::Allowed,
    };
    let lines = body.lines.map(|lines| {
        let lines: Vec<_> = lines.iter().map(|one| (one.line, one.quantity)).collect();
        distinct_lines(lines)
    });
    let lines = lines.transpose()?.unwrap_or_default();
    let end = hold_end(&api, &id, Some(late), lines, (&headers, grant))?;
    let (hold, made) = (end.hold, (end.new.id, api.levels.end_hold(end).await));
    answer(made, move |made| Confirmed::new(made, hold))
}

/// Units of a hold to give back.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReleaseBody {
    /// The lines to give back, 1 to 100. Default: all that are open.
    #[serde(default, deserialize_with = "present_objects")]
    lines: Option<Vec<ReleaseLine>>,
}

/// A line of a hold to give back.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReleaseLine {
    /// The number of the line in the hold. Each is named once.
    #[serde(deserialize_with = "whole")]
    #[schema(value_type = u32)]
    line: i64,
}

/// Release a hold: give its units back
///
/// The body may be absent. A hold whose time is over can be released, too: it cannot be confirmed then. The same
/// request again gets the first answer, with the same key, another one or none.
#[utoipa::path(
    post, path = "/operations/{id}/release", tag = "holds",
    params(openapi::OperationPath, openapi::IdempotencyKeyHeader),
    request_body(content = ReleaseBody, description = "May be absent"),
    responses(
        (status = 200, description = "Given back, and committed", body = Released, headers(
            ("Idempotent-Replayed" = String, description = "`true` for the answer to a retry"))),
        openapi::ReadErrors, openapi::WriteErrors,
        (status = 404, response = openapi::NotFound),
        (status = 409, response = openapi::HoldConflict),
    )
)]
pub(super) async fn release(
    State(api): State<Arc<Api>>,
    Granted(grant): Granted,
    Path(id): Path<String>,
    _: StrictQuery<NoFields>,
    headers: HeaderMap,
    body: StrictJson<ReleaseBody>,
) -> Result<impl IntoResponse, ApiError> {
    let lines = optional(body)?.lines;
    let lines =
        lines.map(|lines| distinct_lines(lines.iter().map(|one| (one.line, None)).collect()));
    let lines = lines.transpose()?.unwrap_or_default();
    let end = hold_end(&api, &id, None, lines, (&headers, grant))?;
    let (hold, made) = (end.hold, (end.new.id, api.levels.end_hold(end).await));
    answer(made, move |made| Released::new(&made, hold))
}

fn optional<T: Default + for<'de> Deserialize<'de>>(body: StrictJson<T>) -> Result<T, ApiError> {
    if body.is_empty() {
        return Ok(T::default());
    }
    body.parse()
}

fn hold_end(
    api: &Api,
    id: &str,
    confirm: Option<Late>,
    lines: Vec<(i64, Option<Quantity>)>,
    (headers, grant): (&HeaderMap, Grant),
) -> Result<HoldEnd, ApiError> {
    let hold = operation_id(id)?;
    grant.charge_lines(lines.len().max(1));
    let hash = RequestHash::of_hold_end(hold, confirm, &lines);
    let idempotency = idempotency(headers, &grant.caller, hash)?;
    let (caller, remarks) = (grant.caller, Remarks::default());
    Ok(HoldEnd {
        new: Operation::of_lines(caller, Vec::new(), idempotency, remarks, api.deadline())?,
        hold,
        confirm,
        lines,
    })
}

/// How much longer units are held.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ExtendBody {
    /// For how many seconds from now, up to 30 days. `null`: until it is confirmed or released.
    #[serde(deserialize_with = "seconds")]
    #[schema(value_type = Option<u32>, example = 600, required)]
    expires_in_s: Option<Lasts>,
}

/// When a hold ends.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ExtendAnswer {
    /// On the database's clock: RFC 3339, UTC. `null`: not before it is confirmed or released.
    expires_at: Option<String>,
}

/// Extend a hold
///
/// Moves the end of all open lines. A hold never becomes shorter, so a late retry does no harm.
#[utoipa::path(
    post, path = "/operations/{id}/extend", tag = "holds",
    params(openapi::OperationPath),
    request_body = ExtendBody,
    responses(
        (status = 200, description = "Extended", body = ExtendAnswer),
        openapi::ReadErrors, openapi::WriteErrors,
        (status = 404, response = openapi::NotFound),
        (status = 409, response = openapi::HoldConflict),
    )
)]
pub(super) async fn extend(
    State(api): State<Arc<Api>>,
    Path(id): Path<String>,
    _: StrictQuery<NoFields>,
    body: StrictJson<ExtendBody>,
) -> Result<Json<ExtendAnswer>, ApiError> {
    let hold = operation_id(&id)?;
    let lasts = milliseconds(body.parse()?.expires_in_s.unwrap_or_default())?;
    let open = api.levels.extend_hold(hold, lasts).await?;
    let ends = open.iter().filter(|one| !one.is_due());
    let end = ends.map(|one| one.expires_at).max();
    Ok(Json(ExtendAnswer {
        expires_at: end.and_then(time),
    }))
}
