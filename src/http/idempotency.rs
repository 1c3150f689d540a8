//! The headers `Idempotency-Key` and `Idempotent-Replayed`.

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use super::error::ApiError;
use stocklock_core::stock::{Caller, Idempotency, IdempotencyKey, RequestHash};

/// The caller's name for a request, which makes the request safe to retry.
pub(super) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// The request's key, if there is one, with the hash of the request.
pub(super) fn idempotency(
    headers: &HeaderMap,
    hash: RequestHash,
) -> Result<Option<Idempotency>, ApiError> {
    let mut keys = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(key) = keys.next() else {
        return Ok(None);
    };
    if keys.next().is_some() {
        return Err(bad_key("Idempotency-Key must be sent once"));
    }
    let key = key
        .to_str()
        .map_err(|_| bad_key("Idempotency-Key must be visible ASCII"))?;
    let key = IdempotencyKey::parse(key).map_err(bad_key)?;
    Ok(Some(Idempotency {
        caller: Caller::anonymous(),
        key,
        hash,
    }))
}

fn bad_key(detail: &str) -> ApiError {
    ApiError::new(
        StatusCode::UNPROCESSABLE_ENTITY,
        "invalid-idempotency-key",
        detail,
    )
}

/// `answer`, marked if it repeats the answer to an earlier request.
pub(super) fn with_replayed(answer: impl IntoResponse, replayed: bool) -> Response {
    let mut response = answer.into_response();
    if replayed {
        let value = HeaderValue::from_static("true");
        response.headers_mut().insert(IDEMPOTENT_REPLAYED, value);
    }
    response
}
