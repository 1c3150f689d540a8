//! `GET /stock` and `GET /stock/{sku}`: what there is.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::error::ApiError;
use super::etag::{Tags, tagged};
use super::extract::{self, NoQuery, present};
use super::{Api, openapi};
use stocklock_core::stock::{LevelCursor, Revision, Sku, StockError, StockLevel};

/// The most rows on one page, and how many there are unless somebody asks for another number.
const MAX_LIMIT: u32 = 1000;
const DEFAULT_LIMIT: u32 = 100;

/// What a warehouse has of a SKU.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct LevelBody {
    /// What.
    sku: String,
    /// Where.
    warehouse: String,
    /// Units on the shelf.
    on_hand: i64,
    /// Units promised, not yet taken.
    held: i64,
    /// Units that may be deducted: `on_hand - held + backorder_limit`.
    available: i64,
    /// Units that may be sold beyond what is there.
    backorder_limit: i64,
    /// Grows with every change.
    version: i64,
    /// Where the counter lives: `sql` or `redis`.
    home: String,
}

impl From<StockLevel> for LevelBody {
    fn from(level: StockLevel) -> Self {
        Self {
            available: level.available(),
            sku: level.sku.into(),
            warehouse: level.warehouse.into(),
            on_hand: level.on_hand,
            held: level.held,
            backorder_limit: level.backorder_limit,
            version: level.version,
            home: level.home.as_str().to_owned(),
        }
    }
}

/// A page of levels.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct LevelPage {
    /// In (sku, warehouse) order.
    levels: Vec<LevelBody>,
    /// `?cursor=` of the next page; `null` on the last.
    next_cursor: Option<String>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PageQuery {
    /// Most levels on the page, 1 to 1000; 100 unless named.
    #[serde(default, deserialize_with = "present")]
    limit: Option<u32>,
    /// The previous page's `next_cursor`.
    #[serde(default, deserialize_with = "present")]
    cursor: Option<String>,
}

/// All levels, page by page
#[utoipa::path(
    get, path = "/stock", tag = "stock", params(PageQuery),
    responses((status = 200, description = "A page", body = LevelPage), openapi::ReadErrors)
)]
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    RawQuery(query): RawQuery,
) -> Result<Json<LevelPage>, ApiError> {
    let query: PageQuery = extract::query(query.as_deref())?;
    let limit = page_limit(query.limit)?;
    let after = match query.cursor {
        Some(text) => Some(LevelCursor::parse(&text).ok_or_else(bad_cursor)?),
        None => None,
    };
    let mut levels = api.store.levels(after.as_ref(), limit + 1).await?;
    let next_cursor = cut_page(&mut levels, limit, |level| {
        let cursor = LevelCursor {
            sku: level.sku.clone(),
            warehouse: level.warehouse.clone(),
        };
        cursor.to_string()
    });
    Ok(Json(LevelPage {
        levels: levels.into_iter().map(LevelBody::from).collect(),
        next_cursor,
    }))
}

/// The page's size, within its bounds.
pub(super) fn page_limit(asked: Option<u32>) -> Result<u32, ApiError> {
    match asked.unwrap_or(DEFAULT_LIMIT) {
        limit if (1..=MAX_LIMIT).contains(&limit) => Ok(limit),
        _ => Err(ApiError::invalid(format!(
            "limit: must be from 1 to {MAX_LIMIT}"
        ))),
    }
}

pub(super) fn bad_cursor() -> ApiError {
    ApiError::invalid("cursor: is none that this service gave out")
}

/// Cuts the one row too many that was read to see whether there is another page, and names the
/// last row that stays.
pub(super) fn cut_page<T>(
    rows: &mut Vec<T>,
    limit: u32,
    cursor: impl FnOnce(&T) -> String,
) -> Option<String> {
    let limit = limit as usize;
    if rows.len() <= limit {
        return None;
    }
    rows.truncate(limit);
    rows.last().map(cursor)
}

/// A SKU's levels.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SkuLevels {
    /// What.
    sku: String,
    /// In warehouse order.
    warehouses: Vec<LevelBody>,
}

/// A SKU's levels in all warehouses
///
/// The ETag covers all of them; send it back as If-Match with a PUT.
#[utoipa::path(
    get, path = "/stock/{sku}", tag = "stock", params(openapi::SkuPath),
    responses(
        (status = 200, description = "Its levels", body = SkuLevels, headers(("ETag" = String))),
        (status = 304, description = "Not modified (If-None-Match)"),
        openapi::ReadErrors, (status = 404, response = openapi::NotFound),
    )
)]
pub(super) async fn of_sku(
    State(api): State<Arc<Api>>,
    Path(sku): Path<String>,
    _: NoQuery,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let sku = known_sku(sku)?;
    let levels = api.store.levels_of(&sku).await?;
    if levels.is_empty() {
        return Err(StockError::UnknownSku.into());
    }
    let revision = Revision::of(&levels);
    if is_seen(&headers, &revision) {
        return Ok(tagged(StatusCode::NOT_MODIFIED, &revision));
    }
    let warehouses = levels.into_iter().map(LevelBody::from).collect();
    let sku = sku.into();
    Ok(tagged(Json(SkuLevels { sku, warehouses }), &revision))
}

/// The SKU of a path that reads; one that cannot exist is as unknown as one that does not.
pub(super) fn known_sku(sku: String) -> Result<Sku, ApiError> {
    Sku::parse(sku).map_err(|_| StockError::UnknownSku.into())
}

/// The SKU of a path that writes.
pub(super) fn new_sku(sku: String) -> Result<Sku, ApiError> {
    Sku::parse(sku).map_err(|error| ApiError::invalid(error.to_string()))
}

/// Whether the caller has this state already. An `If-None-Match` that cannot be read costs nothing
/// but an answer in full.
fn is_seen(headers: &HeaderMap, revision: &Revision) -> bool {
    let seen = Tags::of(headers, header::IF_NONE_MATCH);
    matches!(seen, Ok(Some(tags)) if tags.include(revision))
}
