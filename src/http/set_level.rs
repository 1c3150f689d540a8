//! `PUT /stock/{sku}`: sets a level.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use utoipa::ToSchema;

use super::error::ApiError;
use super::extract::{self, NoQuery, present};
use super::levels::{LevelBody, new_sku};
use super::{Api, openapi};
use crate::stock::{
    Home, LevelChange, OperationId, Precondition, Reason, Revision, Sku, Warehouse,
};

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
/// `If-Match: "…"` (an ETag of GET, or `*`) and `If-None-Match: *` are honoured.
#[utoipa::path(
    put, path = "/stock/{sku}", tag = "stock",
    params(openapi::SkuPath, openapi::PreconditionHeaders),
    request_body = LevelOrder,
    responses(
        (status = 200, description = "Set", body = LevelBody),
        (status = 201, description = "Created", body = LevelBody),
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
    let headers = request.headers().clone();
    let body = extract::body(request, api.body).await?;
    let change = change(new_sku(sku)?, extract::json(&headers, &body)?, &headers)?;
    let set = api.changes.set_level(change).await?;
    let status = if set.created {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    Ok((status, Json(LevelBody::from(set.level))).into_response())
}

fn change(sku: Sku, order: LevelOrder, headers: &HeaderMap) -> Result<LevelChange, ApiError> {
    if order.home == Some(Home::Redis) {
        return Err(ApiError::invalid(
            "home: stock cannot live in Redis in this version; use sql",
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
    let if_match = headers.get(header::IF_MATCH);
    let if_none_match = headers.get(header::IF_NONE_MATCH);
    match (if_match, if_none_match) {
        (None, None) => Ok(None),
        (Some(tags), None) => {
            let tags = tags.to_str().map_err(|_| bad_precondition())?;
            if tags.trim() == "*" {
                return Ok(Some(Precondition::Exists));
            }
            let revisions = tags.split(',').map(|tag| {
                let tag = tag.trim().strip_prefix('"')?.strip_suffix('"')?;
                Some(Revision::from_text(tag))
            });
            let revisions = revisions
                .collect::<Option<_>>()
                .ok_or_else(bad_precondition)?;
            Ok(Some(Precondition::OneOf(revisions)))
        }
        (None, Some(tag)) if tag.as_bytes() == b"*" => Ok(Some(Precondition::Absent)),
        _ => Err(bad_precondition()),
    }
}

fn bad_precondition() -> ApiError {
    ApiError::invalid("send either If-Match with ETags in quotes or *, or If-None-Match: *")
}
