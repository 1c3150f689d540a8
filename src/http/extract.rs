//! Strict reading of requests: a field that is unknown, doubled, `null`, of another type or out of
//! range is refused, and said which.

use std::time::Duration;

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::{Deserialize, DeserializeOwned, Deserializer, IgnoredAny};

use super::error::ApiError;

/// The bounds of a request's body.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimits {
    /// Most bytes.
    pub bytes: usize,
    /// Longest time for them to arrive.
    pub time: Duration,
}

/// Reads the whole body, within the limits.
pub(super) async fn body(body: Body, limits: BodyLimits) -> Result<Bytes, ApiError> {
    let collecting = Limited::new(body, limits.bytes).collect();
    match tokio::time::timeout(limits.time, collecting).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "body-too-large",
            format!("the body must have at most {} bytes", limits.bytes),
        )),
        Ok(Err(_)) => Err(ApiError::new(
            StatusCode::BAD_REQUEST,
            "body-incomplete",
            "the body ended early or was not well framed",
        )),
        Err(_elapsed) => Err(ApiError::new(
            StatusCode::REQUEST_TIMEOUT,
            "request-timeout",
            "the body did not arrive in time",
        )),
    }
}

/// Reads a JSON body.
pub(super) fn json<T: DeserializeOwned>(headers: &HeaderMap, body: &[u8]) -> Result<T, ApiError> {
    if !is_json(headers) {
        return Err(ApiError::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported-media-type",
            "send the body as Content-Type: application/json",
        ));
    }
    // serde would take an array for the fields in their order.
    if first_char(body) != Some(b'{') {
        return Err(match serde_json::from_slice::<IgnoredAny>(body) {
            Ok(_) => ApiError::invalid("the body must be a JSON object"),
            Err(error) => not_json(&error),
        });
    }
    let mut reader = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner();
        if inner.is_data() {
            invalid_field(&path, &inner)
        } else {
            not_json(&inner)
        }
    })?;
    reader.end().map_err(|error| not_json(&error))?;
    Ok(value)
}

fn first_char(body: &[u8]) -> Option<u8> {
    body.iter()
        .copied()
        .find(|byte| !byte.is_ascii_whitespace())
}

fn is_json(headers: &HeaderMap) -> bool {
    let content_type = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let essence = content_type
        .and_then(|value| value.split(';').next())
        .unwrap_or_default()
        .trim();
    essence.eq_ignore_ascii_case("application/json")
}

fn not_json(error: &serde_json::Error) -> ApiError {
    ApiError::new(
        StatusCode::BAD_REQUEST,
        "not-json",
        format!("the body is no JSON: {error}"),
    )
}

/// Reads a query string.
pub(super) fn query<T: DeserializeOwned>(query: Option<&str>) -> Result<T, ApiError> {
    let query = query.unwrap_or_default();
    let pairs = || serde_urlencoded::Deserializer::new(form_urlencoded::parse(query.as_bytes()));
    T::deserialize(pairs()).or_else(|_| {
        // Once more, now with an eye on which field it is.
        serde_path_to_error::deserialize(pairs())
            .map_err(|error| invalid_field(&error.path().to_string(), error.inner()))
    })
}

/// Proof that the query is empty, for routes that take none: a caller whose filter or condition
/// went unnoticed would take the answer for more than it is.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NoQuery {}

impl<S: Sync> FromRequestParts<S> for NoQuery {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        query(parts.uri.query())
    }
}

fn invalid_field(path: &str, error: &impl ToString) -> ApiError {
    let text = error.to_string();
    ApiError::invalid(if path == "." {
        text
    } else {
        format!("{path}: {text}")
    })
}

/// For an optional field: it may be absent, but not `null`.
pub(super) fn present<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    T::deserialize(deserializer).map(Some)
}
