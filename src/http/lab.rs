//! The laboratory: its page, and the races that the page starts.
//!
//! These routes start processes, so only this machine's own pages may use them: see [`LabRaces`].

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
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

/// The races of this process, for a request that does not come from another site's page.
#[derive(Debug)]
pub(super) struct LabRaces(pub(super) Arc<Races>);

impl FromRequestParts<Arc<Api>> for LabRaces {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, ApiError> {
        let races = api.races.as_ref().ok_or_else(|| {
            let detail = "this replica starts no races: use the address of `stocklock lab`";
            ApiError::new(StatusCode::NOT_FOUND, "unknown-race", detail)
        })?;
        check_origin(&parts.headers)?;
        Ok(Self(Arc::clone(races)))
    }
}

/// A request that does not come from another site's page.
#[derive(Debug)]
pub(super) struct SamePage;

impl<S: Sync> FromRequestParts<S> for SamePage {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        check_origin(&parts.headers).map(|()| Self)
    }
}

/// Refuses a request of another site's page. A browser names that page's site in `Origin`. If the site
/// has given its own name this machine's address, the name is in `Host`.
fn check_origin(headers: &HeaderMap) -> Result<(), ApiError> {
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let host = host.unwrap_or_default();
    if !is_this_machine(host) {
        let detail = format!("open the page by an IP address or as localhost, not as `{host}`");
        return Err(ApiError::new(StatusCode::FORBIDDEN, "foreign-host", detail));
    }
    let own = format!("http://{host}");
    if headers
        .get(header::ORIGIN)
        .is_some_and(|origin| origin != own.as_str())
    {
        let detail = "another site's page must not use the laboratory";
        return Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "foreign-origin",
            detail,
        ));
    }
    Ok(())
}

/// Whether the name in `Host` is an address or `localhost`: no other site can have it.
fn is_this_machine(host: &str) -> bool {
    let without_port = host
        .rsplit_once(':')
        .filter(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()));
    let name = without_port.map_or(host, |(name, _)| name);
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(host: &'static str, origin: Option<&'static str>) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, origin.parse().unwrap());
        }
        check_origin(&headers).is_ok()
    }

    #[test]
    fn only_pages_of_this_machine_are_allowed() {
        for host in [
            "127.0.0.1:8080",
            "localhost",
            "LocalHost:1",
            "[::1]:8080",
            "10.0.0.7",
        ] {
            assert!(allowed(host, None), "{host}");
        }
        for host in [
            "evil.example:8080",
            "localhost.evil.example",
            "",
            "127.0.0.1.evil.example",
        ] {
            assert!(!allowed(host, None), "{host}");
        }
        assert!(allowed("localhost:8080", Some("http://localhost:8080")));
        for origin in ["http://localhost:81", "https://evil.example", "null"] {
            assert!(!allowed("localhost:8080", Some(origin)), "{origin}");
        }
    }
}
