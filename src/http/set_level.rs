//! `PUT /stock/{sku}`: sets a level.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use utoipa::ToSchema;

use super::error::ApiError;
use super::etag::{Malformed, Tags, tagged};
use super::extract::{self, NoQuery, present};
use super::idempotency::IDEMPOTENCY_KEY;
use super::levels::{LevelBody, new_sku};
use super::{Api, openapi};
use stocklock_core::level_service::LevelSet;
use stocklock_core::stock::{
    Home, LevelChange, OperationId, Precondition, Reason, Revision, Sku, StockError, StockLevel,
    Warehouse,
};
use stocklock_store::StoreRouter;

/// The longest that the answer waits for its ETag.
const READ_LIMIT: Duration = Duration::from_millis(500);

/// The level that shall be.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LevelOrder {
    /// Where; `main` unless named.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<String>, example = "main")]
    warehouse: Option<Warehouse>,
    /// Units on the shelf.
    #[schema(example = 5000)]
    on_hand: i64,
    /// Units that may be sold beyond what is there; kept unless named, 0 at creation.
    #[serde(default, deserialize_with = "present")]
    #[schema(minimum = 0)]
    backorder_limit: Option<i64>,
    /// Where the counter shall live; at creation only.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<String>, example = "sql")]
    home: Option<Home>,
    /// Why, for the ledger.
    #[serde(default, deserialize_with = "present")]
    #[schema(example = "stocktaking")]
    reason: Option<String>,
}

/// Set a level, creating it where there is none
///
/// `If-Match: "…"` (an ETag of GET or PUT, or `*`) and `If-None-Match: *` are honoured.
/// An Idempotency-Key is refused: repeated, the request sets the same level again.
#[utoipa::path(
    put, path = "/stock/{sku}", tag = "stock",
    params(openapi::SkuPath, openapi::PreconditionHeaders),
    request_body = LevelOrder,
    responses(
        (status = 200, description = "Set", body = LevelBody, headers(("ETag" = String))),
        (status = 201, description = "Created", body = LevelBody, headers(("ETag" = String))),
        openapi::ReadErrors, openapi::WriteErrors,
        (status = 409, response = openapi::Conflict),
        (status = 412, response = openapi::PreconditionFailed),
    )
)]
pub(super) async fn set_level(
    State(api): State<Arc<Api>>,
    Path(sku): Path<String>,
    _: NoQuery,
    request: Request,
) -> Result<Response, ApiError> {
    let (Parts { headers, .. }, body) = request.into_parts();
    let body = extract::body(body, api.body).await?;
    let change = change(new_sku(sku)?, extract::json(&headers, &body)?, &headers)?;
    let set = api.changes.set_level(change).await.map_err(refusal);
    let LevelSet { level, created } = set?;
    let status = if created {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    let revision = revision_after(&*api.store, &level).await;
    let answer = (status, Json(LevelBody::from(level)));
    Ok(match revision {
        Some(revision) => tagged(answer, &revision),
        None => answer.into_response(),
    })
}

/// There is no key to repeat it with, and a repeat would overwrite what others did meanwhile.
fn refusal(error: StockError) -> ApiError {
    let is_unknown = matches!(error, StockError::OutcomeUnknown { .. });
    let mut error = ApiError::from(error);
    if is_unknown {
        "it is not known whether the level was set; read it again to find out"
            .clone_into(&mut error.detail);
    }
    error
}

/// The SKU's revision with `level` in it, if it can be had soon: the change is made, and its answer
/// must not fail or wait for want of a header. Where somebody has changed the level again since,
/// there is none, for the caller has not seen what it would stand for.
async fn revision_after(store: &StoreRouter, level: &StockLevel) -> Option<Revision> {
    let reading = tokio::time::timeout(READ_LIMIT, store.levels_of(&level.sku));
    let levels = reading.await.ok()?.ok()?;
    levels.contains(level).then(|| Revision::of(&levels))
}

fn change(sku: Sku, order: LevelOrder, headers: &HeaderMap) -> Result<LevelChange, ApiError> {
    if headers.contains_key(IDEMPOTENCY_KEY) {
        return Err(ApiError::invalid(
            "Idempotency-Key: PUT is idempotent by itself and takes none; use If-Match",
        ));
    }
    if order.backorder_limit.is_some_and(|limit| limit < 0) {
        return Err(ApiError::invalid("backorder_limit: must not be negative"));
    }
    let reason = order
        .reason
        .map(Reason::parse)
        .transpose()
        .map_err(ApiError::invalid)?;
    Ok(LevelChange {
        operation: OperationId::mint(),
        sku,
        warehouse: order.warehouse.unwrap_or_default(),
        on_hand: order.on_hand,
        backorder_limit: order.backorder_limit,
        home: order.home,
        reason,
        precondition: precondition(headers)?,
    })
}

fn precondition(headers: &HeaderMap) -> Result<Option<Precondition>, ApiError> {
    let tags = |name| Tags::of(headers, name).map_err(|Malformed| bad_precondition());
    match (tags(header::IF_MATCH)?, tags(header::IF_NONE_MATCH)?) {
        (None, None) => Ok(None),
        (Some(Tags::Any), None) => Ok(Some(Precondition::Exists)),
        (Some(Tags::OneOf(revisions)), None) => Ok(Some(Precondition::OneOf(revisions))),
        (None, Some(Tags::Any)) => Ok(Some(Precondition::Absent)),
        _ => Err(bad_precondition()),
    }
}

fn bad_precondition() -> ApiError {
    ApiError::invalid("send either If-Match with ETags in quotes or *, or If-None-Match: *")
}
