//! `GET /stock` and `GET /stock/{sku}`: the levels. `POST /levels/query`: those that the request names.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::fields::MAX_BATCH_LINES;
use super::headers::{Tags, etag};
use super::keys::Granted;
use super::paging::{PageSize, bad_cursor};
use super::{Api, ApiError, BatchJson, NoFields, StrictQuery, objects, openapi};
use crate::access::Grant;
use stocklock_core::stock::{
    LevelCursor, MAX_NAME_CHARS, Revision, Shard, Sku, StockError, StockLevel, Warehouse,
    is_name_char,
};

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
    /// Only levels in this warehouse.
    #[param(value_type = Option<String>)]
    warehouse: Option<Warehouse>,
    /// Only SKUs whose names start so.
    #[param(value_type = Option<String>)]
    prefix: Option<Prefix>,
    /// Only levels with at most so many available units.
    available_max: Option<i64>,
}

/// How the names of SKUs start: 1 to 64 characters of names.
#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
struct Prefix(String);

impl TryFrom<String> for Prefix {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let is_short = (1..=MAX_NAME_CHARS).contains(&text.chars().count());
        let is_valid = is_short && text.chars().all(is_name_char);
        let problem = || format!("must have 1 to {MAX_NAME_CHARS} characters of names");
        is_valid.then_some(Self(text)).ok_or_else(problem)
    }
}

/// How many levels are read for a page of those that match.
const MAX_READ: usize = 10_000;

impl PageQuery {
    fn matches(&self, shard: Shard, level: &StockLevel) -> bool {
        let of_warehouse = self.warehouse.as_ref();
        shard.has(&level.sku)
            && of_warehouse.is_none_or(|warehouse| level.warehouse == *warehouse)
            && (self.available_max).is_none_or(|most| level.available() <= most)
    }

    /// The next levels that match, and the last one that was read if there are more behind it.
    async fn search(
        &self,
        api: &Api,
        mut after: Option<LevelCursor>,
    ) -> Result<(Vec<StockLevel>, Option<LevelCursor>), ApiError> {
        let size = self.limit.unwrap_or_default();
        let prefix = self.prefix.as_ref().map_or("", |prefix| &prefix.0);
        let (shard, is_filtered) = (
            api.shard(),
            self.warehouse.is_some() || self.available_max.is_some(),
        );
        // A copied database may have levels of other shards.
        let takes_all = !is_filtered && !shard.is_part();
        let rows = if takes_all {
            size.rows_to_read()
        } else {
            PageSize::MAX
        };
        let (mut found, mut read) = (Vec::new(), 0);
        while read < MAX_READ {
            let start = LevelCursor::names(after.as_ref()).max((prefix, ""));
            let levels = api.store.levels(start, rows).await?;
            let is_end = levels.len() < rows as usize;
            read += levels.len();
            for level in levels {
                if !level.sku.as_str().starts_with(prefix) {
                    return Ok((found, None));
                }
                if found.len() == size.rows() as usize {
                    return Ok((found, after));
                }
                after = Some((&level).into());
                if self.matches(shard, &level) {
                    found.push(level);
                }
            }
            if is_end {
                return Ok((found, None));
            }
        }
        Ok((found, after))
    }
}

/// List all levels, or those that run low, in pages
///
/// With `warehouse`, `prefix` or `available_max`, a page has the levels that match among the next 10,000. So it
/// may have few levels, or none, although there is a next page.
#[utoipa::path(
    get, path = "/stock", tag = "stock", params(PageQuery),
    responses((status = 200, description = "A page", body = LevelPage), openapi::ReadErrors)
)]
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    StrictQuery(query): StrictQuery<PageQuery>,
) -> Result<Json<LevelPage>, ApiError> {
    let parse = |text: String| LevelCursor::parse(&text).ok_or_else(bad_cursor);
    let after = query.cursor.clone().map(parse).transpose()?;
    let (levels, last) = query.search(&api, after).await?;
    Ok(Json(LevelPage {
        levels: levels.into_iter().map(LevelBody::from).collect(),
        next_cursor: last.map(|last| last.to_string()),
    }))
}

/// The levels to read.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LevelsBody {
    /// Their names, 1 to 1,000.
    #[serde(deserialize_with = "objects")]
    levels: Vec<LevelName>,
}

/// The name of a level.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LevelName {
    /// The SKU.
    #[schema(value_type = String, example = "1001")]
    sku: Sku,
    /// The warehouse; default `main`.
    #[serde(default)]
    #[schema(value_type = String, example = "main")]
    warehouse: Warehouse,
}

/// The levels that were asked for.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LevelsAnswer)]
pub(super) struct Levels {
    /// Those that exist, in the order of the request.
    levels: Vec<LevelBody>,
    /// The names of the others.
    #[schema(value_type = Vec<UnknownLevel>)]
    unknown: Vec<LevelName>,
}

/// The name of a level that does not exist.
#[derive(ToSchema)]
#[expect(dead_code, reason = "only describes")]
struct UnknownLevel {
    /// The SKU.
    sku: String,
    /// The warehouse.
    warehouse: String,
}

/// Read up to 1,000 levels
///
/// All levels are of one moment.
#[utoipa::path(
    post, path = "/levels/query", tag = "stock",
    request_body = LevelsBody,
    responses(
        (status = 200, description = "The levels", body = Levels),
        openapi::ReadErrors, openapi::WriteErrors,
    )
)]
pub(super) async fn query(
    State(api): State<Arc<Api>>,
    Granted(grant): Granted,
    _: StrictQuery<NoFields>,
    BatchJson(body): BatchJson<LevelsBody>,
) -> Result<Json<Levels>, ApiError> {
    let names = names(body.parse()?, &grant)?;
    api.check_shard(names.iter().map(|(sku, _)| sku))?;
    let found = api.store.levels_among(&names).await?.into_iter();
    let found = found.map(|level| ((level.sku.clone(), level.warehouse.clone()), level));
    let found: HashMap<_, _> = found.collect();
    let (mut levels, mut unknown) = (Vec::new(), Vec::new());
    for name in names {
        match found.get(&name) {
            Some(level) => levels.push(level.clone().into()),
            None => unknown.push(LevelName::from(name)),
        }
    }
    Ok(Json(Levels { levels, unknown }))
}

fn names(body: LevelsBody, grant: &Grant) -> Result<Vec<(Sku, Warehouse)>, ApiError> {
    if !(1..=MAX_BATCH_LINES).contains(&body.levels.len()) {
        return Err(ApiError::invalid("levels: must have 1 to 1,000 elements"));
    }
    grant.charge_lines(body.levels.len());
    let names = body.levels.into_iter();
    Ok(names.map(|name| (name.sku, name.warehouse)).collect())
}

impl From<(Sku, Warehouse)> for LevelName {
    fn from((sku, warehouse): (Sku, Warehouse)) -> Self {
        Self { sku, warehouse }
    }
}

/// The levels of a SKU.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SkuLevels {
    /// The SKU.
    sku: String,
    /// Units that can be deducted in all of these warehouses together.
    available: i64,
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
    let sku = known_sku(&api, sku)?;
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
    let answer = SkuLevels {
        sku: sku.into(),
        available: levels.iter().map(StockLevel::available).sum(),
        warehouses: levels.into_iter().map(LevelBody::from).collect(),
    };
    Ok((etag(&revision), Json(answer)).into_response())
}

async fn read(api: &Api, sku: &Sku, cached: bool) -> Result<Vec<StockLevel>, ApiError> {
    if !cached {
        return Ok(api.store.levels_of(sku).await?);
    }
    Ok(api.level_cache.levels_of(sku).await?.to_vec())
}

/// The SKU in the path of a read. An invalid SKU answers 404, like a missing one.
pub(super) fn known_sku(api: &Api, sku: String) -> Result<Sku, ApiError> {
    let sku = Sku::parse(sku).map_err(|_| StockError::UnknownSku)?;
    api.check_shard([&sku])?;
    Ok(sku)
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
