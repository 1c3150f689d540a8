//! `/holds`: units that are set aside for a while. `hold_ends.rs` has what becomes of them.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::extract::operation_id;
use super::fields::MAX_HOLD_SECONDS;
use super::headers::{idempotency, idempotent_replayed};
use super::keys::Granted;
use super::order_lines::{OrderLine, check_lines};
use super::paging::{PageSize, bad_cursor};
use super::{
    Api, ApiError, NoFields, StrictJson, StrictQuery, objects, openapi, present, remark, whole,
};
use crate::access::Grant;
use stocklock_core::level_service::OrderedLine;
use stocklock_core::stock::{
    Change, HoldCursor, HoldFilter, Holding, Movement, MovementKind, NEVER, OpenHold, Operation,
    OperationId, Remarks, RequestHash, Sku, StockError, Warehouse, final_end, state,
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
    /// The id of a hold that ends with this one: what is left of it is given back, and is there for the lines.
    #[serde(default, deserialize_with = "present")]
    replaces: Option<String>,
}

/// A number of seconds; `None`: for ever.
pub(super) type Lasts = Option<i64>;

pub(super) fn seconds<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Lasts>, D::Error> {
    #[derive(Deserialize)]
    struct Seconds(#[serde(deserialize_with = "whole")] i64);

    let seconds = Option::<Seconds>::deserialize(deserializer)?;
    Ok(Some(seconds.map(|Seconds(seconds)| seconds)))
}

/// Milliseconds of the field `expires_in_s`; `None`: for ever.
pub(super) fn milliseconds(seconds: Lasts) -> Result<Option<i64>, ApiError> {
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
/// A hold that replaces another one ends it, also if its time is over; or, if units are missing, leaves it as it was.
#[utoipa::path(
    post, path = "/holds", tag = "holds",
    params(openapi::RequiredKeyHeader),
    request_body = HoldBody,
    responses(
        (status = 201, description = "Held, and committed", body = HoldAnswer, headers(
            ("Location" = String, description = "The path of the operation"),
            ("Idempotent-Replayed" = String, description = "`true` for the answer to a retry"))),
        openapi::ReadErrors, openapi::WriteErrors,
        (status = 404, response = openapi::NotFound),
        (status = 409, response = openapi::HoldConflict),
    )
)]
pub(super) async fn hold(
    State(api): State<Arc<Api>>,
    Granted(grant): Granted,
    _: StrictQuery<NoFields>,
    headers: HeaderMap,
    body: StrictJson<HoldBody>,
) -> Result<impl IntoResponse, ApiError> {
    let body = body.parse()?;
    let replaces = body.replaces.as_deref().map(replaced).transpose()?;
    let (hold, lasts) = new_hold(&api, body, replaces, (&headers, grant))?;
    let operation = hold.id;
    let made = api.levels.hold(hold, replaces).await;
    let made = made.map_err(|error| ApiError::of_operation(operation, error))?;
    let recorded_at = made.recorded_at.as_deref();
    let answer = HoldAnswer {
        id: made.operation.to_string(),
        state: "held",
        expires_at: match (recorded_at, made.expires_at) {
            (Some(recorded_at), _) => end_after(recorded_at, lasts),
            (None, end) => end.and_then(time),
        },
        lines: made.lines,
    };
    let location = [(header::LOCATION, format!("/operations/{}", answer.id))];
    let replayed = idempotent_replayed(made.replayed);
    Ok((StatusCode::CREATED, location, replayed, Json(answer)))
}

fn replaced(id: &str) -> Result<OperationId, ApiError> {
    let problem = "replaces: send the id of a hold, a UUID with hyphens";
    operation_id(id).map_err(|_| ApiError::invalid(problem))
}

fn new_hold(
    api: &Api,
    body: HoldBody,
    replaces: Option<OperationId>,
    (headers, grant): (&HeaderMap, Grant),
) -> Result<(Operation, Option<i64>), ApiError> {
    check_lines(&body.lines)?;
    grant.charge_lines(body.lines.len());
    let lasts = milliseconds(body.expires_in_s.unwrap_or(Some(DEFAULT_SECONDS)))?;
    let change = |quantity| Change::Hold(Holding { quantity, lasts });
    let lines = body.lines.into_iter().map(|line| line.line(change));
    let lines: Vec<_> = lines.collect();
    let remarks = Remarks {
        reference: remark("reference", body.reference)?,
        ..Remarks::default()
    };
    let hash = RequestHash::of_operation(&lines, &remarks);
    let hash = replaces.map_or(hash, |replaced| hash.replacing(replaced));
    let idempotency = idempotency(headers, &grant.caller, hash)?;
    let idempotency = Some(idempotency.ok_or(StockError::KeyRequired)?);
    let hold = Operation::of_lines(grant.caller, lines, idempotency, remarks, api.deadline())?;
    Ok((hold, lasts))
}

/// A time in milliseconds since 1970 as RFC 3339. `None`: never.
pub(super) fn time(milliseconds: i64) -> Option<String> {
    (0..NEVER)
        .contains(&milliseconds)
        .then(|| super::time(milliseconds))
}

/// So many milliseconds after a time of the ledger.
fn end_after(recorded_at: &str, lasts: Option<i64>) -> Option<String> {
    let recorded_at: SystemTime = humantime::parse_rfc3339(recorded_at).ok()?;
    let end = recorded_at + Duration::from_millis(u64::try_from(lasts?).ok()?);
    Some(humantime::format_rfc3339_millis(end).to_string())
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
        let state = if open.is_due() { "expired" } else { "held" };
        Self {
            id: open.hold.to_string(),
            line: open.line,
            sku: open.sku.into(),
            warehouse: open.warehouse.into(),
            quantity: open.units,
            expires_at: time(open.expires_at),
            state,
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
    get, path = "/holds", tag = "holds", operation_id = "holds", params(HoldQuery),
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
    api.check_shard(level.iter().map(|(sku, _)| sku))?;
    let after = query
        .cursor
        .map(|text| cursor(&text).ok_or_else(bad_cursor));
    let size = query.limit.unwrap_or_default();
    let filter = HoldFilter {
        level,
        after: after.transpose()?,
        only_due: false,
        limit: size.rows_to_read(),
    };
    let mut open = api.levels.open_holds(&filter).await?;
    let next_cursor = size.cut(&mut open, |last| {
        let end = match last.expires_at {
            NEVER => "never".to_owned(),
            end => end.to_string(),
        };
        format!("v1;{end};{};{}", last.hold, last.line)
    });
    open.retain(|one| api.shard().has(&one.sku));
    Ok(Json(HoldPage {
        holds: open.into_iter().map(OpenHoldBody::from).collect(),
        next_cursor,
    }))
}

fn cursor(text: &str) -> Option<HoldCursor> {
    let mut parts = text.strip_prefix("v1;")?.split(';');
    let cursor = HoldCursor {
        expires_at: match parts.next()? {
            "never" => NEVER,
            end => end.parse().ok()?,
        },
        hold: OperationId(Uuid::parse_str(parts.next()?).ok()?),
        line: parts.next()?.parse().ok()?,
    };
    parts.next().is_none().then_some(cursor)
}

/// A hold, as an operation shows it. It does not depend on whether a line that is due has been ended yet.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct HoldState {
    /// `held`: a line is held. `expired`: none is held, and one has expired, so it can still be confirmed if
    /// there are units. `ended`: all lines were confirmed or released.
    state: &'static str,
    /// When the last line that is held ends: RFC 3339, UTC. `null`: never, or there is none.
    expires_at: Option<String>,
    /// All lines.
    lines: Vec<HoldLine>,
}

/// A line of a hold.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct HoldLine {
    /// Its number.
    line: i64,
    /// `held`, `expired`, `confirmed` or `released`.
    state: &'static str,
    /// Units that are held.
    open: i64,
}

impl HoldState {
    /// What has become of the hold that made these movements.
    pub(super) async fn of(
        api: &Api,
        hold: OperationId,
        movements: &[Movement],
    ) -> Result<Self, ApiError> {
        let mut open = api.levels.open_lines(hold).await?;
        open.retain(|one| !one.is_due());
        let ends = api.store.children(hold).await?;
        let made = movements
            .iter()
            .filter(|one| one.kind == MovementKind::Held);
        let line = |held: &Movement| {
            let open = open.iter().find(|one| one.line == held.line);
            let end = final_end(&ends, held.line);
            HoldLine {
                line: held.line,
                state: match (open, end) {
                    (Some(_), _) => "held",
                    (None, Some(end)) => state(&end.kind),
                    (None, None) => "expired",
                },
                open: open.map_or(0, |one| one.units),
            }
        };
        let lines: Vec<_> = made.map(line).collect();
        let has = |state| lines.iter().any(|one| one.state == state);
        Ok(Self {
            state: if has("held") {
                "held"
            } else if has("expired") {
                "expired"
            } else {
                "ended"
            },
            expires_at: open.iter().map(|one| one.expires_at).max().and_then(time),
            lines,
        })
    }
}
