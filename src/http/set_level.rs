//! `PUT /stock/{sku}`: sets a level.

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use serde::Deserialize;
use utoipa::ToSchema;

use super::headers::{IDEMPOTENCY_KEY, Tags, bad_precondition, etag};
use super::keys::Granted;
use super::levels::{LevelBody, new_sku};
use super::{
    Api, ApiError, NoFields, StrictJson, StrictQuery, openapi, present, present_whole, remark,
};
use crate::access::Grant;
use stocklock_core::stock::{
    Change, Line, MAX_UNITS, Operation, OperationId, Precondition, Refusal, Revision, Scope,
    Setting, Sku, StockError, StockLevel, Warehouse,
};
use stocklock_store::Store;

/// Maximum time to read the ETag of the answer.
const READ_LIMIT: Duration = Duration::from_millis(500);

/// The new level.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LevelOrder {
    /// The warehouse; default `main`.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<String>, example = "main")]
    warehouse: Option<Warehouse>,
    /// Units on the shelf. A new level needs it. Default: unchanged. If the level was changed since
    /// its creation, this needs If-Match.
    #[serde(default, deserialize_with = "present_whole")]
    #[schema(example = 5000)]
    on_hand: Option<i64>,
    /// Units that may be sold beyond the stock. Default: unchanged; 0 for a new level.
    #[serde(default, deserialize_with = "present_whole")]
    #[schema(minimum = 0)]
    backorder_limit: Option<i64>,
    /// The reason, for the ledger.
    #[serde(default, deserialize_with = "present")]
    #[schema(example = "stocktaking")]
    reason: Option<String>,
}

impl LevelOrder {
    /// The levels that the precondition and the ETag of the answer are about.
    fn scope(&self) -> Scope {
        self.warehouse.as_ref().map_or(Scope::Sku, |_| Scope::Level)
    }
}

/// Set a level; create it if it does not exist
///
/// Supports `If-Match: "…"` (an ETag of GET or PUT, or `*`) and `If-None-Match: *`. With
/// `warehouse`, these and the ETag of the answer cover that level; without it, all levels of the SKU.
/// An Idempotency-Key is refused, because PUT is idempotent.
#[utoipa::path(
    put, path = "/stock/{sku}", tag = "stock",
    params(openapi::SkuPath, openapi::PreconditionHeaders),
    request_body = LevelOrder,
    responses(
        (status = 200, description = "Set", body = LevelBody, headers(("ETag" = String))),
        (status = 201, description = "Created", body = LevelBody, headers(("ETag" = String))),
        openapi::ReadErrors, openapi::WriteErrors,
        (status = 404, response = openapi::NotFound),
        (status = 409, response = openapi::Conflict),
        (status = 412, response = openapi::PreconditionFailed),
        (status = 428, response = openapi::PreconditionRequired),
    )
)]
pub(super) async fn set_level(
    State(api): State<Arc<Api>>,
    Granted(grant): Granted,
    Path(sku): Path<String>,
    _: StrictQuery<NoFields>,
    headers: HeaderMap,
    body: StrictJson<LevelOrder>,
) -> Result<impl IntoResponse, ApiError> {
    let sku = new_sku(sku)?;
    let order: LevelOrder = body.parse()?;
    let scope = order.scope();
    let change = change(&api, sku, order, (&headers, grant))?;
    let operation = change.id;
    let set = api.levels.change(change).await;
    let set = set.map_err(|error| refusal(operation, error))?;
    let level = set.level.ok_or(StockError::UnknownSku)?;
    let revision = revision_after(&*api.store, &level, scope).await;
    let status = if set.created {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    let etag = revision.as_ref().map(etag);
    Ok((status, etag, Json(LevelBody::from(level))))
}

/// If the outcome is unknown, advises to read the level: a retry could overwrite the changes of
/// other writers, and there is no key to detect it.
fn refusal(operation: OperationId, error: StockError) -> ApiError {
    let mut error = ApiError::of_operation(operation, error);
    if error.status == StatusCode::GATEWAY_TIMEOUT {
        "the outcome is unknown: the level may have been set; read it again"
            .clone_into(&mut error.detail);
    }
    error
}

/// The revision of the level, or of the SKU with `level` in it. `None` if the read fails or takes
/// long, because the level is already set. Also `None` if another writer has changed the level again,
/// because the caller has not seen that change.
async fn revision_after(store: &dyn Store, level: &StockLevel, scope: Scope) -> Option<Revision> {
    if scope == Scope::Level {
        return Some(Revision::of(slice::from_ref(level)));
    }
    let reading = tokio::time::timeout(READ_LIMIT, store.levels_of(&level.sku));
    let levels = reading.await.ok()?.ok()?;
    levels.contains(level).then(|| Revision::of(&levels))
}

fn change(
    api: &Api,
    sku: Sku,
    order: LevelOrder,
    (headers, grant): (&HeaderMap, Grant),
) -> Result<Operation, ApiError> {
    if headers.contains_key(IDEMPOTENCY_KEY) {
        return Err(ApiError::invalid(
            "Idempotency-Key: PUT is idempotent and accepts no key; use If-Match",
        ));
    }
    let is_beyond = |units: i64| units.unsigned_abs() > MAX_UNITS.unsigned_abs();
    if order.on_hand.is_some_and(is_beyond) {
        let detail = format!("on_hand: must be from -{MAX_UNITS} to {MAX_UNITS}");
        return Err(ApiError::invalid(detail));
    }
    let is_limit = |limit: i64| limit >= 0 && !is_beyond(limit);
    if !order.backorder_limit.is_none_or(is_limit) {
        let detail = format!("backorder_limit: must be from 0 to {MAX_UNITS}");
        return Err(ApiError::invalid(detail));
    }
    let scope = order.scope();
    let reason = remark("reason", order.reason)?;
    let setting = Change::Set(Setting {
        on_hand: order.on_hand,
        backorder_limit: order.backorder_limit,
        precondition: precondition(headers)?,
        scope,
    });
    let line = Line::new(sku, order.warehouse.unwrap_or_default(), setting);
    Ok(Operation::of_line(
        grant.caller,
        line,
        reason,
        api.deadline(),
    ))
}

fn precondition(headers: &HeaderMap) -> Result<Option<Precondition>, ApiError> {
    let wanted = Tags::from_headers(headers, header::IF_MATCH)?;
    let unwanted = Tags::from_headers(headers, header::IF_NONE_MATCH)?;
    match (wanted, unwanted) {
        (None, None) => Ok(None),
        (Some(Tags::Any), None) => Ok(Some(Precondition::Exists)),
        (Some(Tags::OneOf(revisions)), None) => Ok(Some(Precondition::OneOf(revisions))),
        (None, Some(Tags::Any)) => Ok(Some(Precondition::Absent)),
        // A level cannot be there and not be there.
        (Some(_), Some(Tags::Any)) => Err(StockError::from(Refusal::PreconditionFailed).into()),
        _ => Err(bad_precondition()),
    }
}
