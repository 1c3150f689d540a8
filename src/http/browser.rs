//! The browser as a caller: a page of another site must not use the service through its visitor's browser.
//!
//! A browser sends some writes of any page without asking this service first, for example a POST without
//! a body. It says where they come from in headers that no page can set: `Sec-Fetch-Site`, and `Origin` in
//! older browsers and without TLS. Other clients send neither. The rules for writes are those of
//! `CrossOriginProtection` in Go's `net/http`. Reads change nothing, and no other page can see their answers.
//!
//! A name that another site has given this machine's address looks like a name of this service. The lab
//! knows its names, so it refuses others on every route.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;

use super::ApiError;
use crate::config::Mode;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Refuses a request of another site's page.
pub(super) fn check(mode: Mode, request: &Request) -> Result<(), ApiError> {
    let headers = request.headers();
    let host = headers.get(header::HOST);
    let host = host.map(|host| host.to_str().unwrap_or_default());
    if let Some(host) = host.filter(|host| mode == Mode::Lab && !is_this_machine(host)) {
        let detail =
            format!("open the laboratory by an IP address or as localhost, not as `{host}`");
        return Err(ApiError::new(StatusCode::FORBIDDEN, "foreign-host", detail));
    }
    if request.method().is_safe() {
        return Ok(());
    }
    let is_own = match (headers.get(SEC_FETCH_SITE), headers.get(header::ORIGIN)) {
        (Some(site), _) => site == "same-origin" || site == "none",
        (None, Some(origin)) => is_origin_of(origin, host),
        (None, None) => true,
    };
    if is_own {
        return Ok(());
    }
    let detail = "a page of another site must not change anything; a proxy must pass on Host";
    Err(ApiError::new(
        StatusCode::FORBIDDEN,
        "foreign-origin",
        detail,
    ))
}

/// Whether `host` is the authority of `origin`, for example `localhost:8080` of `http://localhost:8080`.
fn is_origin_of(origin: &HeaderValue, host: Option<&str>) -> bool {
    let origin = origin.to_str().ok();
    let authority = origin.and_then(|origin| origin.split_once("://"));
    let same = |((_, authority), host): ((&str, &str), &str)| authority.eq_ignore_ascii_case(host);
    authority.zip(host).is_some_and(same)
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

/// The policy of a page: other pages must not show it in a frame, because their visitor's clicks would come
/// from this service's own page.
pub(super) fn no_frames(response: &Response) -> Option<HeaderValue> {
    let content_type = response.headers().get(header::CONTENT_TYPE)?;
    let is_page = content_type.as_bytes().starts_with(b"text/html");
    is_page.then_some(HeaderValue::from_static("frame-ancestors 'none'"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    /// The code of the refusal, or nothing.
    fn refusal(mode: Mode, method: &str, headers: &[(&str, &str)]) -> &'static str {
        let mut request = axum::http::Request::builder().method(method);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::empty()).unwrap();
        check(mode, &request).map_or_else(|error| error.code, |()| "")
    }

    #[test]
    fn lab_has_only_names_that_no_other_site_can_have() {
        for host in [
            "127.0.0.1:8080",
            "localhost",
            "LocalHost:1",
            "[::1]:8080",
            "10.0.0.7",
        ] {
            let code = refusal(Mode::Lab, "GET", &[("host", host)]);
            assert_eq!(code, "", "{host}");
        }
        for host in [
            "evil.example:8080",
            "localhost.evil.example",
            "",
            "127.0.0.1.evil.example",
            "\u{e9}",
        ] {
            let headers = [("host", host)];
            assert_eq!(
                refusal(Mode::Lab, "GET", &headers),
                "foreign-host",
                "{host}"
            );
            assert_eq!(refusal(Mode::Serve, "GET", &headers), "", "{host}");
        }
    }

    #[test]
    fn write_of_another_sites_page_is_refused() {
        let (host, site, origin) = ("host", "sec-fetch-site", "origin");
        let own: [&[(&str, &str)]; 8] = [
            &[],
            &[(host, "localhost")],
            &[(host, "localhost"), (origin, "http://localhost")],
            &[(host, "LocalHost:81"), (origin, "https://localhost:81")],
            &[(host, "localhost"), (site, "none")],
            &[(host, "localhost"), (site, "same-origin")],
            // A proxy with TLS has replaced Host.
            &[
                (host, "localhost"),
                (site, "same-origin"),
                (origin, "https://shop.example"),
            ],
            &[(host, "[::1]:81"), (origin, "http://[::1]:81")],
        ];
        let foreign: [&[(&str, &str)]; 9] = [
            &[(host, "localhost"), (site, "cross-site")],
            &[(host, "localhost"), (site, "same-site")],
            &[(host, "localhost"), (site, "")],
            &[
                (host, "localhost"),
                (site, "same-site"),
                (origin, "http://localhost"),
            ],
            &[(host, "localhost"), (origin, "http://localhost:81")],
            &[(host, "localhost"), (origin, "https://evil.example")],
            &[(host, "localhost"), (origin, "null")],
            &[(host, "localhost"), (origin, "localhost")],
            &[(origin, "http://localhost")],
        ];
        for mode in [Mode::Serve, Mode::Lab] {
            for method in ["POST", "PUT", "DELETE", "PATCH"] {
                for headers in own {
                    assert_eq!(refusal(mode, method, headers), "", "{method} {headers:?}");
                }
                for headers in foreign {
                    let code = refusal(mode, method, headers);
                    assert_eq!(code, "foreign-origin", "{method} {headers:?}");
                }
            }
            for headers in own.into_iter().chain(foreign) {
                assert_eq!(refusal(mode, "GET", headers), "", "{headers:?}");
            }
        }
    }
}
