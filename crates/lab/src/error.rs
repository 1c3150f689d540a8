//! Why the laboratory refuses a request. The service writes the body of the answer.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use uuid::Uuid;

/// A refused request. As a response, it is an extension, from which the service makes its own error.
#[derive(Debug, Clone)]
pub struct LabError {
    /// The status of the response.
    pub status: StatusCode,
    /// The stable name that callers can match on.
    pub code: &'static str,
    /// What happened, and what to do.
    pub detail: String,
    /// The race that it is about.
    pub race: Option<Uuid>,
}

impl LabError {
    fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self {
            status,
            code,
            detail: detail.into(),
            race: None,
        }
    }

    /// A field is invalid.
    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid-request", detail)
    }

    /// There is nothing under this name.
    pub(crate) fn unknown(code: &'static str, detail: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, code, detail)
    }

    /// This process runs no races.
    #[must_use]
    pub fn no_races() -> Self {
        let detail = "this replica starts no races: use the address of `stocklock lab`";
        Self::unknown("unknown-race", detail)
    }

    /// A race with valid fields that this lab cannot run.
    pub(crate) fn refused(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "race-refused", detail)
    }

    /// This race runs.
    pub(crate) fn running(race: Uuid, detail: &str) -> Self {
        Self {
            race: Some(race),
            ..Self::new(StatusCode::CONFLICT, "race-running", detail)
        }
    }

    /// A strategy cannot run here.
    pub(crate) fn unavailable(detail: String) -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "strategy-unavailable",
            detail,
        )
    }

    /// The lab stops.
    pub(crate) fn shutting_down() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "error",
            "the lab stops: start it again",
        )
    }
}

impl IntoResponse for LabError {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}
