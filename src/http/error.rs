//! Errors: one type, one mapping from the domain, one format (RFC 9457).

use std::any::Any;
use std::error::Error;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use stocklock_core::ports::StoreError;
use stocklock_core::stock::StockError;

/// An error response. The middleware in `respond.rs` writes its body, because it knows the id of the
/// request.
#[derive(Debug, Clone)]
pub(super) struct ApiError {
    pub(super) status: StatusCode,
    /// The stable name that callers can match on.
    pub(super) code: &'static str,
    /// What happened, and what to do.
    pub(super) detail: String,
    /// Additional fields of the body.
    pub(super) fields: Map<String, Value>,
    /// Whether a retry soon makes sense.
    pub(super) retry_after: bool,
    /// The internal cause, for the log only.
    pub(super) cause: Option<String>,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self {
            status,
            code,
            detail,
            fields: Map::new(),
            retry_after: false,
            cause: None,
        }
    }

    /// A request that can be parsed, but is invalid.
    pub(super) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid-request", detail)
    }

    fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.fields.insert(name.to_owned(), value.into());
        self
    }

    fn retry_soon(mut self) -> Self {
        self.retry_after = true;
        self
    }

    fn caused_by(mut self, cause: &dyn Error) -> Self {
        let mut text = cause.to_string();
        let mut next = cause.source();
        while let Some(inner) = next {
            text = format!("{text}: {inner}");
            next = inner.source();
        }
        self.cause = Some(text);
        self
    }

    /// The body of the response.
    pub(super) fn problem(&self, request_id: &str) -> Value {
        let mut body = json!({
            "type": format!("urn:stocklock:problem:{}", self.code),
            "title": self.status.canonical_reason().unwrap_or_default(),
            "status": self.status.as_u16(),
            "detail": self.detail,
            "code": self.code,
            "request_id": request_id,
        });
        for (name, value) in &self.fields {
            body[name] = value.clone();
        }
        body
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        if self.retry_after {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response.extensions_mut().insert(self);
        response
    }
}

impl From<StockError> for ApiError {
    fn from(error: StockError) -> Self {
        let new = |status, detail: &str| Self::new(status, error.code(), detail);
        match &error {
            StockError::UnknownSku => new(
                StatusCode::NOT_FOUND,
                "there is no such SKU in that warehouse; PUT /stock/{sku} creates it",
            ),
            StockError::Insufficient {
                requested,
                available,
            } => new(StatusCode::CONFLICT, &format!("{error}; nothing was taken"))
                .with("requested", *requested)
                .with("available", *available),
            StockError::IdempotencyKeyReused => new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "this Idempotency-Key was used for another request; use a new one",
            ),
            StockError::RequestInFlight => new(
                StatusCode::CONFLICT,
                "the first request with this Idempotency-Key is still running; try again",
            )
            .retry_soon(),
            StockError::WrongHome { home } => {
                new(StatusCode::CONFLICT, &error.to_string()).with("home", home.as_str())
            }
            StockError::PreconditionFailed => new(
                StatusCode::PRECONDITION_FAILED,
                "the stock does not match the precondition; read it again",
            ),
            StockError::BelowLimit => new(StatusCode::CONFLICT, &error.to_string()),
            StockError::TooLarge => new(StatusCode::UNPROCESSABLE_ENTITY, &error.to_string()),
            StockError::Contended { attempts, .. } => new(
                StatusCode::SERVICE_UNAVAILABLE,
                "other writers won until the wait limit passed; nothing was changed",
            )
            .with("attempts", *attempts)
            .retry_soon(),
            StockError::Overloaded { what } => new(
                StatusCode::SERVICE_UNAVAILABLE,
                &format!("{what}; nothing was changed"),
            )
            .retry_soon(),
            StockError::StrategyUnavailable {
                strategy, source, ..
            } => {
                let refused = new(StatusCode::SERVICE_UNAVAILABLE, &error.to_string())
                    .with("strategy", *strategy);
                match source {
                    Some(_) => refused.retry_soon().caused_by(&error),
                    // Not configured: a retry cannot succeed.
                    None => refused,
                }
            }
            // Not configured: a retry cannot succeed.
            StockError::HomeUnavailable => new(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()),
            StockError::Unavailable { what, .. } => new(
                StatusCode::SERVICE_UNAVAILABLE,
                &format!("{what} is unavailable; nothing was changed"),
            )
            .retry_soon()
            .caused_by(&error),
            StockError::OutcomeUnknown { .. } => new(
                StatusCode::GATEWAY_TIMEOUT,
                "the outcome is unknown; retry with the same Idempotency-Key to get it (without a \
                 key, read the movements before you retry)",
            )
            .caused_by(&error),
            StockError::Internal { .. } => Self::internal().caused_by(&error),
        }
    }
}

impl ApiError {
    /// The error for a refusal of the framework, which has only a status.
    pub(super) fn from_status(status: StatusCode) -> Self {
        let (code, detail) = match status {
            StatusCode::METHOD_NOT_ALLOWED => (
                "method-not-allowed",
                "this route does not support the method; see the Allow header",
            ),
            StatusCode::NOT_FOUND => ("not-found", "no such resource"),
            StatusCode::BAD_REQUEST => ("bad-request", "the request is malformed"),
            _ => ("error", "the request was refused"),
        };
        Self::new(status, code, detail)
    }

    fn internal() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "a defect of this service; search its log for this request_id",
        )
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        StockError::from(error).into()
    }
}

/// The answer if no route matches.
pub(super) async fn no_such_route() -> ApiError {
    ApiError::new(
        StatusCode::NOT_FOUND,
        "no-such-route",
        "no such route; see /docs",
    )
}

/// The answer if a handler panicked.
#[expect(clippy::needless_pass_by_value, reason = "the layer's signature")]
pub(super) fn panicked(panic: Box<dyn Any + Send + 'static>) -> Response {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied());
    let mut error = ApiError::internal();
    error.cause = Some(format!("panic: {}", text.unwrap_or("no message")));
    error.into_response()
}
