//! The laboratory: its page, and the races that the page starts.
//!
//! These routes start processes, so `browser.rs` refuses the pages of other sites.

use std::sync::Arc;

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse};

use super::{Api, ApiError, openapi};
use crate::races::Races;
use stocklock_lab::page;

pub(super) mod events;
pub(super) mod failures;
pub(super) mod locks;
pub(super) mod races;

/// Nothing from elsewhere is loaded, and no other page may show this one in a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The races of this process.
#[derive(Debug)]
pub(super) struct LabRaces(pub(super) Arc<Races>);

impl FromRequestParts<Arc<Api>> for LabRaces {
    type Rejection = ApiError;

    async fn from_request_parts(_: &mut Parts, api: &Arc<Api>) -> Result<Self, ApiError> {
        let races = api.races.as_ref().ok_or_else(|| {
            let detail = "this replica starts no races: use the address of `stocklock lab`";
            ApiError::new(StatusCode::NOT_FOUND, "unknown-race", detail)
        })?;
        Ok(Self(Arc::clone(races)))
    }
}

/// Get the page of the laboratory
#[utoipa::path(get, path = "/", tag = "lab",
    responses((status = 200, description = "A page of HTML", content_type = "text/html", body = String)))]
pub(super) async fn start_page() -> impl IntoResponse {
    (
        [(header::CONTENT_SECURITY_POLICY, POLICY)],
        Html(page::INDEX),
    )
}

/// Get a style sheet or a script of the page
#[utoipa::path(get, path = "/lab/page/{file}", tag = "lab",
    params(("file" = String, Path, description = "Its name")),
    responses(
        (status = 200, description = "The file", content_type = "text/javascript", body = String),
        (status = 404, response = openapi::NotInLab),
    ))]
pub(super) async fn file(Path(name): Path<String>) -> Result<impl IntoResponse, ApiError> {
    let (content_type, text) = page::file(&name).ok_or_else(|| {
        let detail = "the page has no such file";
        ApiError::new(StatusCode::NOT_FOUND, "unknown-file", detail)
    })?;
    // Another build has other files under the same names.
    let headers = [
        (header::CONTENT_TYPE, content_type),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    Ok((headers, text))
}
