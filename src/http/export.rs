//! `GET /export`: all levels, one line of JSON for each.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use serde::Deserialize;
use utoipa::IntoParams;

use super::levels::LevelBody;
use super::paging::{PageSize, bad_cursor};
use super::{Api, ApiError, NDJSON, StrictQuery, openapi};
use stocklock_core::ports::StoreError;
use stocklock_core::stock::LevelCursor;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ExportQuery {
    /// Only levels after this one: `sku/warehouse` of the last line that was received.
    after: Option<String>,
}

/// Export all levels
///
/// One line of JSON for each level, in (sku, warehouse) order. The lines are not of one moment. If a server fails
/// on the way, the connection is closed before the end of the answer; `after` continues it.
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
    StrictQuery(query): StrictQuery<ExportQuery>,
) -> Result<Response, ApiError> {
    let after = query.after.as_deref();
    let after = after.map(|text| LevelCursor::parse(text).ok_or_else(bad_cursor));
    let slot = api.begin_bulk()?;
    // The first page decides between 200 and an error.
    let first = page(&api, after.transpose()?).await?;
    let pages = stream::try_unfold((api, slot, first), |(api, slot, page)| async move {
        let (text, Some(last)) = page else {
            return Ok(None);
        };
        let next = self::page(&api, Some(last)).await?;
        Ok::<_, StoreError>(Some((text, (api, slot, next))))
    });
    Ok(([(header::CONTENT_TYPE, NDJSON)], Body::from_stream(pages)).into_response())
}

/// The lines of the next levels, and the last of these. `None` after the last level.
async fn page(
    api: &Api,
    after: Option<LevelCursor>,
) -> Result<(String, Option<LevelCursor>), StoreError> {
    let after = LevelCursor::names(after.as_ref());
    let levels = api.store.levels(after, PageSize::MAX).await?;
    let last = levels.last().map(LevelCursor::from);
    let lines = levels.into_iter().map(|level| {
        let line = serde_json::to_string(&LevelBody::from(level));
        line.expect("texts and numbers make JSON") + "\n"
    });
    Ok((lines.collect(), last))
}
