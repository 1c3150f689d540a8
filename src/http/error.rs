//! Errors: one type, one mapping from the domain, one form (RFC 9457).

use std::any::Any;
use std::error::Error;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use stocklock_core::ports::StoreError;
use stocklock_core::stock::StockError;

/// An error on its way out. The body is written by `finish`, which knows the request's id.
#[derive(Debug, Clone)]
pub(super) struct ApiError {
    pub(super) status: StatusCode,
    /// The stable name that callers may branch on.
    pub(super) code: &'static str,
    /// What to do about it, for people.
    pub(super) detail: String,
    /// What else the caller needs to act.
    pub(super) more: Map<String, Value>,
    /// Whether trying again soon makes sense.
    pub(super) retry_after: bool,
    /// What happened inside, for the log only.
    pub(super) cause: Option<String>,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self {
            status,
            code,
            detail,
            more: Map::new(),
            retry_after: false,
            cause: None,
        }
    }

    /// Parseable, but wrong.
    pub(super) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid-request", detail)
    }

    fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.more.insert(name.to_owned(), value.into());
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

    /// The body of the answer.
    pub(super) fn problem(&self, request_id: &str) -> Value {
        let mut body = json!({
            "type": format!("urn:stocklock:problem:{}", self.code),
            "title": self.status.canonical_reason().unwrap_or_default(),
            "status": self.status.as_u16(),
            "detail": self.detail,
            "code": self.code,
            "request_id": request_id,
        });
        for (name, value) in &self.more {
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
                "the stock is not what the precondition says; read it again",
            ),
            StockError::BelowLimit => new(StatusCode::CONFLICT, &error.to_string()),
            StockError::TooLarge => new(StatusCode::UNPROCESSABLE_ENTITY, &error.to_string()),
            StockError::Contended { attempts, .. } => new(
                StatusCode::SERVICE_UNAVAILABLE,
                "others were faster for as long as the wait limit allows; nothing was changed",
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
                    // What is not configured will not be there a moment later.
                    None => refused,
                }
            }
            // It will not be there a moment later either.
            StockError::HomeUnavailable => new(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()),
            StockError::Unavailable { what, .. } => new(
                StatusCode::SERVICE_UNAVAILABLE,
                &format!("{what} cannot serve this now; nothing was changed"),
            )
            .retry_soon()
            .caused_by(&error),
            StockError::OutcomeUnknown { .. } => new(
                StatusCode::GATEWAY_TIMEOUT,
                "it is not known whether it happened; repeat the request with the same \
                 Idempotency-Key to find out (without a key, read the movements first)",
            )
            .caused_by(&error),
            StockError::Internal { .. } => Self::internal().caused_by(&error),
        }
    }
}

impl ApiError {
    fn internal() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "a defect of this service; its log has the cause under this request_id",
        )
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        StockError::from(error).into()
    }
}

/// Where no route matches.
pub(super) async fn no_such_route() -> ApiError {
    ApiError::new(
        StatusCode::NOT_FOUND,
        "no-such-route",
        "no such route; see /docs",
    )
}

/// Where a handler panicked.
#[expect(clippy::needless_pass_by_value, reason = "the layer's signature")]
pub(super) fn panicked(panic: Box<dyn Any + Send + 'static>) -> Response {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied());
    let mut error = ApiError::internal();
    error.cause = Some(format!("panic: {}", text.unwrap_or("without a text")));
    error.into_response()
}

/// The framework's own refusals, which come without a body of ours.
pub(super) fn of_status(status: StatusCode) -> ApiError {
    let (code, detail) = match status {
        StatusCode::METHOD_NOT_ALLOWED => (
            "method-not-allowed",
            "this route has other methods; see the Allow header",
        ),
        StatusCode::NOT_FOUND => ("not-found", "no such resource"),
        StatusCode::BAD_REQUEST => ("bad-request", "the request cannot be understood"),
        _ => ("error", "the request was refused"),
    };
    ApiError::new(status, code, detail)
}
