//! The `Idempotency-Key` header, and the mark of a replayed answer.

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::Response;

use super::error::ApiError;
use stocklock_core::stock::{Caller, Idempotency, IdempotencyKey, RequestHash};

/// What a caller names a request by, so that it may be repeated.
pub(super) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// The request's key, with the hash of what is asked under it.
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

/// Marks an answer that was given before.
pub(super) fn mark_replayed(response: &mut Response, replayed: bool) {
    if replayed {
        response
            .headers_mut()
            .insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
    }
}
