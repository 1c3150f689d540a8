//! Errors: one type, one mapping from the domain, one format (RFC 9457).

use std::any::Any;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::error::Error;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use stocklock_core::ports::StoreError;
use stocklock_core::stock::{OperationId, Refusal, RefusedLine, StockError};

/// An error response. `respond.rs` writes its body, because it knows the id of the request.
#[derive(Debug, Clone)]
pub(super) struct ApiError {
    pub(super) status: StatusCode,
    /// The stable name that callers can match on.
    pub(super) code: &'static str,
    /// What happened, and what to do.
    pub(super) detail: String,
    /// Additional fields of the body.
    fields: Vec<(&'static str, Field<'static>)>,
    /// Whether a retry makes sense, after so many seconds.
    pub(super) retry_after: Option<u32>,
    /// The internal cause, for the log only.
    pub(super) cause: Option<String>,
}

/// The fields of a body, in the order of their names.
pub(super) type Fields<'a> = BTreeMap<&'static str, Field<'a>>;

/// The value of a field.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub(super) enum Field<'a> {
    Text(Cow<'a, str>),
    Number(i64),
    Lines(Vec<Fields<'static>>),
}

impl<'a, T: Into<Cow<'a, str>>> From<T> for Field<'a> {
    fn from(text: T) -> Self {
        Self::Text(text.into())
    }
}

impl ApiError {
    pub(super) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self {
            status,
            code,
            detail,
            fields: Vec::new(),
            retry_after: None,
            cause: None,
        }
    }

    /// A request that can be parsed, but is refused.
    pub(super) fn unprocessable(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, code, detail)
    }

    /// A field is invalid.
    pub(super) fn invalid(detail: impl Into<String>) -> Self {
        Self::unprocessable("invalid-request", detail)
    }

    /// The error of an operation. If its outcome is unknown, it has the id, to look it up.
    pub(super) fn of_operation(operation: OperationId, error: StockError) -> Self {
        let is_unknown = matches!(error, StockError::OutcomeUnknown { .. });
        let error = Self::from(error);
        if is_unknown {
            return error.with_id(operation.0);
        }
        error
    }

    /// The error with the id of what it is about.
    pub(super) fn with_id(self, id: uuid::Uuid) -> Self {
        self.with_field("id", id.to_string())
    }

    /// The error with this field in its body, instead of other ones that it had.
    pub(super) fn with_field(
        mut self,
        name: &'static str,
        value: impl Into<Field<'static>>,
    ) -> Self {
        self.fields = vec![(name, value.into())];
        self
    }

    /// The error with the advice to retry after so many seconds.
    pub(super) fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// Whether the same request may be carried out later, or was already.
    pub(super) fn is_temporary(&self) -> bool {
        self.retry_after.is_some() || self.status == StatusCode::GATEWAY_TIMEOUT
    }

    /// The cause, for an answer that ends after its head was sent.
    pub(super) fn into_cause(self) -> String {
        self.cause.unwrap_or(self.detail)
    }

    /// The body of the response.
    pub(super) fn problem(&self, request_id: &str) -> String {
        let urn = format!("urn:stocklock:problem:{}", self.code);
        let mut body = self.line();
        body.insert("type", urn.into());
        let title = self.status.canonical_reason().unwrap_or_default();
        body.insert("title", title.into());
        body.insert("request_id", request_id.into());
        serde_json::to_string(&body).expect("texts and numbers are JSON")
    }

    /// The answer to a line of a batch.
    pub(super) fn line(&self) -> Fields<'_> {
        let mut body: Fields<'_> = self.fields.iter().cloned().collect();
        body.insert("status", Field::Number(self.status.as_u16().into()));
        body.insert("detail", self.detail.as_str().into());
        body.insert("code", self.code.into());
        body
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let challenge = HeaderValue::from_static("Bearer realm=\"stocklock\"");
            headers.insert(header::WWW_AUTHENTICATE, challenge);
        }
        response.extensions_mut().insert(self);
        response
    }
}

impl From<StockError> for ApiError {
    fn from(error: StockError) -> Self {
        Self::from(&error)
    }
}

impl From<&StockError> for ApiError {
    fn from(error: &StockError) -> Self {
        let status = match error {
            StockError::UnknownSku
            | StockError::UnknownOperation
            | StockError::UnknownLine { .. } => StatusCode::NOT_FOUND,
            StockError::KeyRequired => StatusCode::BAD_REQUEST,
            StockError::WrongShard(_) => StatusCode::MISDIRECTED_REQUEST,
            StockError::Lines(lines) => match lines.first() {
                Some(first) => Self::from(&first.error).status,
                None => return Self::internal(with_sources(error)),
            },
            StockError::Insufficient { .. }
            | StockError::NotASale
            | StockError::NotAHold
            | StockError::ExceedsHold { .. }
            | StockError::RequestInFlight => StatusCode::CONFLICT,
            StockError::Refused(refusal) => match refusal {
                Refusal::PreconditionFailed | Refusal::Differs { .. } => {
                    StatusCode::PRECONDITION_FAILED
                }
                Refusal::PreconditionRequired => StatusCode::PRECONDITION_REQUIRED,
                _ => StatusCode::CONFLICT,
            },
            StockError::IdempotencyKeyReused
            | StockError::LinesRequired
            | StockError::TooManyLevels { .. } => StatusCode::UNPROCESSABLE_ENTITY,
            StockError::Contended { .. }
            | StockError::Overloaded { .. }
            | StockError::StrategyUnavailable { .. }
            | StockError::Unavailable { .. }
            | StockError::TooSlow { .. } => StatusCode::SERVICE_UNAVAILABLE,
            StockError::OutcomeUnknown { .. } => StatusCode::GATEWAY_TIMEOUT,
            StockError::Internal { .. } => return Self::internal(with_sources(error)),
        };
        let mut answer = Self::new(status, error.code(), error.to_string());
        answer.fields = match error {
            StockError::Insufficient {
                requested,
                available,
            }
            | StockError::Refused(Refusal::HoldExpired {
                requested,
                available,
            }) => vec![
                ("requested", Field::Number(*requested)),
                ("available", Field::Number(*available)),
            ],
            StockError::ExceedsHold { requested, held } => vec![
                ("requested", Field::Number(*requested)),
                ("held", Field::Number(*held)),
            ],
            StockError::Refused(Refusal::Differs { on_hand }) => {
                vec![("on_hand", Field::Number(*on_hand))]
            }
            StockError::Refused(Refusal::HoldEnded { line, state, by }) => {
                let mut fields = vec![("line", Field::Number(*line)), ("state", (*state).into())];
                fields.extend(by.map(|by| ("by", by.to_string().into())));
                fields
            }
            StockError::Refused(Refusal::ExceedsSale { requested, left }) => vec![
                ("requested", Field::Number(*requested)),
                ("left", Field::Number(*left)),
            ],
            StockError::Lines(lines) => {
                vec![(
                    "lines",
                    Field::Lines(lines.iter().map(line_fields).collect()),
                )]
            }
            StockError::Contended { attempts } => {
                vec![("attempts", Field::Number((*attempts).into()))]
            }
            StockError::StrategyUnavailable { strategy, .. } => {
                vec![("strategy", (*strategy).into())]
            }
            _ => Vec::new(),
        };
        match error {
            StockError::RequestInFlight
            | StockError::Contended { .. }
            | StockError::Overloaded { .. } => answer.retry_after = Some(1),
            // Without a source, the strategy's server is not configured: a retry cannot succeed.
            StockError::StrategyUnavailable {
                source: Some(_), ..
            }
            | StockError::Unavailable { .. }
            | StockError::TooSlow { .. } => {
                answer.retry_after = Some(1);
                answer.cause = Some(with_sources(error));
            }
            StockError::OutcomeUnknown { .. } => answer.cause = Some(with_sources(error)),
            _ => {}
        }
        answer
    }
}

/// A line that refuses its operation, as a problem shows it.
fn line_fields(refused: &RefusedLine) -> Fields<'static> {
    let mut fields: Fields<'static> = ApiError::from(&refused.error).fields.into_iter().collect();
    fields.insert("line", Field::Number(refused.line));
    fields.insert("sku", refused.sku.as_str().to_owned().into());
    fields.insert("warehouse", refused.warehouse.as_str().to_owned().into());
    fields
}

/// The messages of `error` and of all its sources.
fn with_sources(error: &dyn Error) -> String {
    let messages = std::iter::successors(Some(error), |error| (*error).source());
    let messages: Vec<_> = messages.map(ToString::to_string).collect();
    messages.join(": ")
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

    /// The error for a defect; `cause` is for the log only.
    pub(super) fn internal(cause: String) -> Self {
        let mut error = Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "a defect of this service; search its log for this request_id",
        );
        error.cause = Some(cause);
        error
    }

    /// The error if a handler panicked.
    pub(super) fn panicked(panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Self::internal(format!("panic: {}", text.unwrap_or("no message")))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the log says why a handler panicked, and the answer does not.
    #[test]
    fn panic_is_an_internal_error_with_its_text_as_the_cause() {
        let panics: [(Box<dyn Any + Send>, &str); 3] = [
            (Box::new("a text"), "panic: a text"),
            (Box::new("a number".to_owned()), "panic: a number"),
            (Box::new(7), "panic: no message"),
        ];
        for (panic, cause) in panics {
            let error = ApiError::panicked(&*panic);
            assert_eq!(error.status, StatusCode::INTERNAL_SERVER_ERROR);
            assert_eq!(error.cause.as_deref(), Some(cause));
            assert!(!error.problem("id").contains(cause));
        }
    }
}
