//! `GET /export`: all levels, one line of JSON for each.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::{TryStreamExt as _, stream};
use serde::Deserialize;
use utoipa::IntoParams;

use super::events::events_are_starting;
use super::keys::check_again;
use super::levels::LevelBody;
use super::paging::{PageSize, bad_cursor};
use super::{Api, ApiError, NDJSON, StrictQuery, openapi};
use stocklock_core::access::Scope;
use stocklock_core::stock::{LevelCursor, StockError};

/// The cursor of `GET /events` that continues the export.
const X_EVENTS_CURSOR: HeaderName = HeaderName::from_static("x-events-cursor");

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ExportQuery {
    /// Only levels after this one: `sku/warehouse` of the last line that was received.
    after: Option<String>,
}

/// Export all levels
///
/// One line of JSON for each level, in (sku, warehouse) order. Each page is read when it is sent. If the
/// database fails while the answer is sent, the key is revoked or the replica stops, the connection is closed
/// before the end of the answer: continue with `after`. With `EVENTS=on`, the header `X-Events-Cursor` of an export
/// without `after` has a cursor of `GET /events`: the events after it have every change made since the export
/// began. Keep it when you continue. Some changes may be in the lines already: skip an event whose version
/// is not above that of its level.
#[utoipa::path(
    get, path = "/export", tag = "bulk", params(ExportQuery),
    responses(
        (status = 200, description = "A line for each level", body = LevelBody,
            content_type = "application/x-ndjson"),
        openapi::ReadErrors,
    )
)]
pub(super) async fn export(
    State(api): State<Arc<Api>>,
    headers: HeaderMap,
    StrictQuery(query): StrictQuery<ExportQuery>,
) -> Result<Response, ApiError> {
    let after = query.after.as_deref();
    let after = after.map(|text| LevelCursor::parse(text).ok_or_else(bad_cursor));
    let slot = api.begin_bulk()?;
    // Before the levels: their changes since then are events after the cursor.
    let mut cursor = None;
    // Not if it continues another export: that one has the cursor from before its levels.
    if api.config.events.are_on() && after.is_none() {
        let after = api.store.last_published().await?;
        let after = after.ok_or_else(events_are_starting)?;
        cursor = Some([(X_EVENTS_CURSOR, after.to_string())]);
    }
    // The first page decides between 200 and an error.
    let first = page(&api, &headers, after.transpose()?).await?;
    let begin = (api, headers, slot, first);
    let pages = stream::try_unfold(begin, |(api, headers, slot, page)| async move {
        let (text, Some(last)) = page else {
            return Ok(None);
        };
        let next = self::page(&api, &headers, Some(last)).await?;
        Ok::<_, ApiError>(Some((text, (api, headers, slot, next))))
    });
    let pages = Body::from_stream(pages.map_err(ApiError::into_cause));
    Ok((cursor, [(header::CONTENT_TYPE, NDJSON)], pages).into_response())
}

/// The lines of the next levels, and the last of these. `None` after the last level.
async fn page(
    api: &Api,
    headers: &HeaderMap,
    after: Option<LevelCursor>,
) -> Result<(String, Option<LevelCursor>), ApiError> {
    if api.shutdown.is_cancelled() {
        let what = "this replica shuts down: continue the export with `after`";
        return Err(StockError::Overloaded { what }.into());
    }
    check_again(api, headers, Scope::Read)?;
    let after = LevelCursor::names(after.as_ref());
    let levels = api.store.levels(after, PageSize::MAX).await?;
    let last = levels.last().map(LevelCursor::from);
    let levels = levels.into_iter();
    let own = levels.filter(|level| api.shard().has(&level.sku));
    let lines = own.map(|level| {
        let line = serde_json::to_string(&LevelBody::from(level));
        line.expect("texts and numbers make JSON") + "\n"
    });
    Ok((lines.collect(), last))
}
