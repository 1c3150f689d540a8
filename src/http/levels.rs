//! `GET /stock` and `GET /stock/{sku}`: the levels.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::headers::{Tags, etag};
use super::paging::{PageSize, bad_cursor};
use super::{Api, ApiError, StrictQuery, openapi};
use stocklock_core::stock::{LevelCursor, Revision, Sku, StockError, StockLevel, Warehouse};

/// The level of a SKU in a warehouse.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct LevelBody {
    /// The SKU.
    sku: String,
    /// The warehouse.
    warehouse: String,
    /// Units on the shelf.
    on_hand: i64,
    /// Units reserved, not yet taken.
    held: i64,
    /// Units that can be deducted: `on_hand - held + backorder_limit`.
    available: i64,
    /// Units that may be sold beyond the stock.
    backorder_limit: i64,
    /// Increases with every change.
    version: i64,
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
        }
    }
}

/// A page of levels.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct LevelPage {
    /// In (sku, warehouse) order.
    levels: Vec<LevelBody>,
    /// The `cursor` parameter for the next page; `null` on the last page.
    next_cursor: Option<String>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SkuQuery {
    /// Only the level in this warehouse.
    #[param(value_type = Option<String>)]
    warehouse: Option<Warehouse>,
    /// Accept levels from a cache, up to `CACHED_LEVEL_MAX_AGE_MS` old (1 s by default). Many such
    /// requests cost one read of the database. Default: `false`.
    #[serde(default)]
    #[param(required = false)]
    cached: bool,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PageQuery {
    /// Maximum number of levels on the page, 1 to 1000; default 100.
    #[param(value_type = Option<u32>)]
    limit: Option<PageSize>,
    /// The `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// List all levels, in pages
#[utoipa::path(
    get, path = "/stock", tag = "stock", params(PageQuery),
    responses((status = 200, description = "A page", body = LevelPage), openapi::ReadErrors)
)]
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    StrictQuery(query): StrictQuery<PageQuery>,
) -> Result<Json<LevelPage>, ApiError> {
    let parse = |text: String| LevelCursor::parse(&text).ok_or_else(bad_cursor);
    let after = query.cursor.map(parse).transpose()?;
    let size = query.limit.unwrap_or_default();
    let rows = size.rows_to_read();
    let mut levels = api.store.levels(after.as_ref(), rows).await?;
    let next_cursor = size.cut(&mut levels, |last| {
        let (sku, warehouse) = (last.sku.clone(), last.warehouse.clone());
        LevelCursor { sku, warehouse }.to_string()
    });
    let levels = levels.into_iter().map(LevelBody::from).collect();
    Ok(Json(LevelPage {
        levels,
        next_cursor,
    }))
}

/// The levels of a SKU.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SkuLevels {
    /// The SKU.
    sku: String,
    /// In warehouse order.
    warehouses: Vec<LevelBody>,
}

/// Get the levels of a SKU in all warehouses, or in one
///
/// The ETag covers the levels in the answer; send it back as If-Match with a PUT. If a cached level is
/// outdated, that PUT is answered 412.
#[utoipa::path(
    get, path = "/stock/{sku}", tag = "stock", params(openapi::SkuPath, SkuQuery, openapi::IfNoneMatchHeader),
    responses(
        (status = 200, description = "Its levels", body = SkuLevels, headers(("ETag" = String))),
        (status = 304, description = "Not modified (If-None-Match)"),
        openapi::ReadErrors, (status = 404, response = openapi::NotFound),
    )
)]
pub(super) async fn of_sku(
    State(api): State<Arc<Api>>,
    Path(sku): Path<String>,
    StrictQuery(query): StrictQuery<SkuQuery>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let sku = known_sku(sku)?;
    let mut levels = read(&api, &sku, query.cached).await?;
    if let Some(warehouse) = query.warehouse {
        levels.retain(|level| level.warehouse == warehouse);
    }
    if levels.is_empty() {
        return Err(StockError::UnknownSku.into());
    }
    let revision = Revision::of(&levels);
    if is_not_modified(&headers, &revision) {
        return Ok((StatusCode::NOT_MODIFIED, etag(&revision)).into_response());
    }
    let warehouses = levels.into_iter().map(LevelBody::from).collect();
    let sku = sku.into();
    Ok((etag(&revision), Json(SkuLevels { sku, warehouses })).into_response())
}

async fn read(api: &Api, sku: &Sku, cached: bool) -> Result<Vec<StockLevel>, ApiError> {
    if !cached {
        return Ok(api.store.levels_of(sku).await?);
    }
    match api.level_cache.levels_of(sku).await {
        Ok(levels) => Ok(levels.to_vec()),
        Err(error) => Err(ApiError::from(&*error)),
    }
}

/// The SKU in the path of a read. An invalid SKU answers 404, like a missing one.
pub(super) fn known_sku(sku: String) -> Result<Sku, ApiError> {
    Sku::parse(sku).map_err(|_| StockError::UnknownSku.into())
}

/// The SKU in the path of a write. An invalid SKU answers 422.
pub(super) fn new_sku(sku: String) -> Result<Sku, ApiError> {
    Sku::parse(sku).map_err(|error| ApiError::invalid(error.to_string()))
}

/// Whether the caller has this revision already. A malformed `If-None-Match` is ignored.
fn is_not_modified(headers: &HeaderMap, revision: &Revision) -> bool {
    let seen = Tags::from_headers(headers, header::IF_NONE_MATCH);
    matches!(seen, Ok(Some(tags)) if tags.include(revision))
}
