//! `/holds`: units that are set aside for a while; and what becomes of them: `POST
//! /operations/{id}/confirm`, `release`, `extend`.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::deduct::{OrderLine, has_lines};
use super::extract::operation_id;
use super::fields::MAX_HOLD_SECONDS;
use super::headers::{idempotency, idempotent_replayed};
use super::keys::Granted;
use super::paging::{PageSize, bad_cursor};
use super::reverse::distinct_lines;
use super::{
    Api, ApiError, NoFields, StrictJson, StrictQuery, objects, openapi, present, present_objects,
    present_whole, remark, whole,
};
use crate::access::Grant;
use stocklock_core::level_service::{Confirmed, OrderedLine, Released};
use stocklock_core::stock::{
    Change, HoldCursor, HoldEnd, HoldFilter, Holding, Late, Line, NEVER, OpenHold, Operation,
    OperationId, Quantity, Remarks, RequestHash, Sku, StockError, Warehouse,
};

/// The time of a hold in seconds, if none was sent.
const DEFAULT_SECONDS: i64 = 600;

/// Units to set aside.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct HoldBody {
    /// What is held, 1 to 100 lines. All of them, or nothing.
    #[serde(deserialize_with = "objects")]
    lines: Vec<OrderLine>,
    /// For how many seconds, up to 30 days; default 600. `null`: until it is confirmed or released.
    #[serde(default, deserialize_with = "seconds")]
    #[schema(value_type = Option<u32>, example = 600)]
    expires_in_s: Option<Lasts>,
    /// An external reference, such as the id of a cart.
    #[serde(default, deserialize_with = "present")]
    #[schema(example = "cart-9")]
    reference: Option<String>,
}

/// A number of seconds; `None`: for ever.
type Lasts = Option<i64>;

fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Lasts>, D::Error> {
    #[derive(Deserialize)]
    struct Seconds(#[serde(deserialize_with = "whole")] i64);

    let seconds = Option::<Seconds>::deserialize(deserializer)?;
    Ok(Some(seconds.map(|Seconds(seconds)| seconds)))
}

/// Milliseconds of the field `expires_in_s`; `None`: for ever.
fn milliseconds(seconds: Lasts) -> Result<Option<i64>, ApiError> {
    let milliseconds = |seconds: i64| {
        if !(1..=MAX_HOLD_SECONDS).contains(&seconds) {
            return Err(ApiError::invalid(format!(
                "expires_in_s: must be from 1 to {MAX_HOLD_SECONDS}, or null"
            )));
        }
        Ok(seconds * 1_000)
    };
    seconds.map(milliseconds).transpose()
}

/// Units that are set aside.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct HoldAnswer {
    /// The id of the hold.
    id: String,
    /// `held`.
    state: &'static str,
    /// When it ends, on the database's clock: RFC 3339, UTC. `null`: not before it is confirmed or released.
    /// In the answer to a retry, some milliseconds later.
    expires_at: Option<String>,
    /// What is held, in the order of the lines.
    lines: Vec<OrderedLine>,
}

/// Set units aside for a while
///
/// All lines are held, or nothing is. Held units cannot be sold to anybody else until the hold is confirmed,
/// released, or its time is over. A retry with the same Idempotency-Key gets the answer to the first request.
#[utoipa::path(
    post, path = "/holds", tag = "holds",
    params(openapi::IdempotencyKeyHeader),
    request_body = HoldBody,
    responses(
        (status = 201, description = "Held, and committed", body = HoldAnswer, headers(
            ("Location" = String, description = "The path of the operation"),
            ("Idempotent-Replayed" = String, description = "`true` for the answer to a retry"))),
        openapi::ReadErrors, openapi::WriteErrors,
        (status = 404, response = openapi::NotFound),
        (status = 409, response = openapi::Conflict),
    )
)]
pub(super) async fn hold(
    State(api): State<Arc<Api>>,
    Granted(grant): Granted,
    _: StrictQuery<NoFields>,
    headers: HeaderMap,
    body: StrictJson<HoldBody>,
) -> Result<impl IntoResponse, ApiError> {
    let (hold, lasts) = new_hold(&api, body.parse()?, (&headers, grant))?;
    let operation = hold.id;
    let held = api.levels.hold(hold).await;
    let held = held.map_err(|error| ApiError::of_operation(operation, error))?;
    let recorded_at = held.recorded_at.as_deref();
    let answer = HoldAnswer {
        id: held.operation.to_string(),
        state: "held",
        expires_at: match (recorded_at, held.expires_at) {
            (Some(recorded_at), _) => end_after(recorded_at, lasts),
            (None, end) => end.and_then(time),
        },
        lines: held.lines,
    };
    let location = [(header::LOCATION, format!("/operations/{}", answer.id))];
    let replayed = idempotent_replayed(held.replayed);
    Ok((StatusCode::CREATED, location, replayed, Json(answer)))
}

fn new_hold(
    api: &Api,
    body: HoldBody,
    (headers, grant): (&HeaderMap, Grant),
) -> Result<(Operation, Option<i64>), ApiError> {
    has_lines(body.lines.len())?;
    grant.charge_lines(body.lines.len());
    let lasts = milliseconds(body.expires_in_s.unwrap_or(Some(DEFAULT_SECONDS)))?;
    let line = |line: OrderLine| Line {
        sku: line.sku,
        warehouse: line.warehouse.unwrap_or_default(),
        change: Change::Hold(Holding {
            quantity: line.quantity.unwrap_or(Quantity::ONE),
            lasts,
        }),
    };
    let lines: Vec<_> = body.lines.into_iter().map(line).collect();
    let remarks = Remarks {
        reference: remark("reference", body.reference)?,
        ..Remarks::default()
    };
    let hash = RequestHash::of_operation(&lines, &remarks);
    let idempotency = idempotency(headers, &grant.caller, hash)?;
    let idempotency = Some(idempotency.ok_or(StockError::KeyRequired)?);
    let hold = Operation::of_lines(grant.caller, lines, idempotency, remarks, api.deadline())?;
    Ok((hold, lasts))
}

/// A time in milliseconds since 1970 as RFC 3339. `None`: never.
fn time(milliseconds: i64) -> Option<String> {
    let milliseconds = u64::try_from(milliseconds).ok();
    let milliseconds = milliseconds.filter(|_| milliseconds != u64::try_from(NEVER).ok())?;
    let time = UNIX_EPOCH + Duration::from_millis(milliseconds);
    Some(humantime::format_rfc3339_millis(time).to_string())
}

/// So many milliseconds after a time of the ledger.
fn end_after(recorded_at: &str, lasts: Option<i64>) -> Option<String> {
    let recorded_at: SystemTime = humantime::parse_rfc3339(recorded_at).ok()?;
    let end = recorded_at + Duration::from_millis(u64::try_from(lasts?).ok()?);
    Some(humantime::format_rfc3339_millis(end).to_string())
}

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
    request_body = Option<ConfirmBody>,
    responses(
        (status = 200, description = "Sold, and committed", body = Confirmed, headers(
            ("Idempotent-Replayed" = String, description = "`true` for the answer to a retry"))),
        openapi::ReadErrors, openapi::WriteErrors,
        (status = 404, response = openapi::NotFound),
        (status = 409, response = openapi::Conflict),
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
    let operation = end.operation;
    let confirmed = api.levels.confirm(end).await;
    let confirmed = confirmed.map_err(|error| ApiError::of_operation(operation, error))?;
    Ok((idempotent_replayed(confirmed.replayed), Json(confirmed)))
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
    request_body = Option<ReleaseBody>,
    responses(
        (status = 200, description = "Given back, and committed", body = Released, headers(
            ("Idempotent-Replayed" = String, description = "`true` for the answer to a retry"))),
        openapi::ReadErrors, openapi::WriteErrors,
        (status = 404, response = openapi::NotFound),
        (status = 409, response = openapi::Conflict),
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
    let operation = end.operation;
    let released = api.levels.release(end).await;
    let released = released.map_err(|error| ApiError::of_operation(operation, error))?;
    Ok((idempotent_replayed(released.replayed), Json(released)))
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
    Ok(HoldEnd {
        operation: OperationId::mint(),
        hold,
        confirm,
        lines,
        idempotency: idempotency(headers, &grant.caller, hash)?,
        caller: grant.caller,
        deadline: api.deadline(),
    })
}

/// How much longer units are held.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ExtendBody {
    /// For how many seconds from now, up to 30 days. `null`: until it is confirmed or released.
    #[serde(deserialize_with = "seconds")]
    #[schema(value_type = Option<u32>, example = 600)]
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
        (status = 409, response = openapi::Conflict),
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
    let ends = open.iter().filter(|one| !one.is_due);
    let end = ends.map(|one| one.expires_at).max();
    Ok(Json(ExtendAnswer {
        expires_at: end.and_then(time),
    }))
}

/// An open line of a hold.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct OpenHoldBody {
    /// The id of the hold.
    id: String,
    /// The number of the line.
    line: i64,
    /// The SKU.
    sku: String,
    /// The warehouse.
    warehouse: String,
    /// Units that are held.
    quantity: i64,
    /// When it ends, on the database's clock: RFC 3339, UTC. `null`: not before it is confirmed or released.
    expires_at: Option<String>,
    /// `held`; or `expired`: its time is over, and its units can be sold.
    state: &'static str,
}

impl From<OpenHold> for OpenHoldBody {
    fn from(open: OpenHold) -> Self {
        Self {
            id: open.hold.to_string(),
            line: open.line,
            sku: open.sku.into(),
            warehouse: open.warehouse.into(),
            quantity: open.units,
            expires_at: time(open.expires_at),
            state: if open.is_due { "expired" } else { "held" },
        }
    }
}

/// A page of open holds.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct HoldPage {
    /// The first to end comes first.
    holds: Vec<OpenHoldBody>,
    /// The `cursor` parameter for the next page; `null` on the last page.
    next_cursor: Option<String>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct HoldQuery {
    /// Only lines of this SKU, in one warehouse.
    #[param(value_type = Option<String>)]
    sku: Option<Sku>,
    /// The warehouse of the SKU; default `main`. Not without a SKU.
    #[param(value_type = Option<String>)]
    warehouse: Option<Warehouse>,
    /// Maximum number of lines on the page, 1 to 1000; default 100.
    #[param(value_type = Option<u32>)]
    limit: Option<PageSize>,
    /// The `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// List open holds, the first to end first
///
/// With a SKU, those of one level; otherwise all.
#[utoipa::path(
    get, path = "/holds", tag = "holds", params(HoldQuery),
    responses(
        (status = 200, description = "A page", body = HoldPage),
        openapi::ReadErrors,
    )
)]
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    StrictQuery(query): StrictQuery<HoldQuery>,
) -> Result<Json<HoldPage>, ApiError> {
    let level = match (query.sku, query.warehouse) {
        (Some(sku), warehouse) => Some((sku, warehouse.unwrap_or_default())),
        (None, Some(_)) => return Err(ApiError::invalid("warehouse: send the sku, too")),
        (None, None) => None,
    };
    let after = query
        .cursor
        .map(|text| cursor(&text).ok_or_else(bad_cursor));
    let size = query.limit.unwrap_or_default();
    let filter = HoldFilter::Page {
        level,
        after: after.transpose()?,
        only_due: false,
        limit: size.rows_to_read(),
    };
    let mut open = api.levels.open_holds(&filter).await?;
    let next_cursor = size.cut(&mut open, |last| {
        format!("v1;{};{};{}", last.expires_at, last.hold, last.line)
    });
    Ok(Json(HoldPage {
        holds: open.into_iter().map(OpenHoldBody::from).collect(),
        next_cursor,
    }))
}

fn cursor(text: &str) -> Option<HoldCursor> {
    let mut parts = text.strip_prefix("v1;")?.split(';');
    let cursor = HoldCursor {
        expires_at: parts.next()?.parse().ok()?,
        hold: OperationId(Uuid::parse_str(parts.next()?).ok()?),
        line: parts.next()?.parse().ok()?,
    };
    parts.next().is_none().then_some(cursor)
}

/// A hold, as an operation shows it.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct HoldState {
    /// `held`: a line is open. `expired`: the time of its open lines is over. `ended`: it has no open line.
    state: &'static str,
    /// When the last open line ends: RFC 3339, UTC. `null`: never, or there is none.
    expires_at: Option<String>,
    /// The lines that are open.
    lines: Vec<OpenLine>,
}

/// An open line of a hold.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct OpenLine {
    /// Its number.
    line: i64,
    /// Units that are held.
    open: i64,
}

impl HoldState {
    /// What has become of a hold.
    pub(super) async fn of(api: &Api, hold: OperationId) -> Result<Self, ApiError> {
        let open = api.levels.open_holds(&HoldFilter::Operation(hold)).await?;
        let is_due = open.iter().all(|one| one.is_due);
        let end = open.iter().map(|one| one.expires_at).max();
        Ok(Self {
            state: match (open.is_empty(), is_due) {
                (true, _) => "ended",
                (false, true) => "expired",
                (false, false) => "held",
            },
            expires_at: end.and_then(time),
            lines: open
                .iter()
                .map(|one| OpenLine {
                    line: one.line,
                    open: one.units,
                })
                .collect(),
        })
    }
}
