//! Answers every request: adds the headers, writes the body of an error, and counts.

use std::panic::AssertUnwindSafe;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, Uri, Version, header};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use tokio::time::Instant;
use tower::ServiceExt;
use uuid::Uuid;

use super::{ApiError, HttpService, browser};

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const X_REPLICA: HeaderName = HeaderName::from_static("x-replica");

impl HttpService {
    /// Answers a request, unless a page of another site sent it. Adds `X-Request-Id` and `X-Replica`, counts
    /// the response, and writes errors as problems. This is the only place that logs failed requests.
    ///
    /// Not a layer of the router, because each layer boxes the future of the request.
    pub(crate) async fn answer(&self, request: Request) -> Response {
        let id = request_id(&request);
        let route = (request.method().clone(), request.uri().clone());
        let handled = AssertUnwindSafe(self.handle(request)).catch_unwind();
        let mut response = match handled.await {
            Ok(response) => response,
            Err(panic) => ApiError::panicked(&*panic).into_response(),
        };
        browser::forbid_frames(&mut response);
        let of_lines = response.extensions_mut().remove::<LineErrors>();
        for error in of_lines.into_iter().flat_map(|LineErrors(errors)| errors) {
            log(&error, &id, &route, &self.outages);
        }
        if let Some(error) = take_error(&mut response) {
            log(&error, &id, &route, &self.outages);
            write_problem(&mut response, &error, &id);
        }
        self.api.metrics.response(response.status().as_u16());
        let id = HeaderValue::try_from(id).ok();
        for (name, value) in [(X_REQUEST_ID, id), (X_REPLICA, self.replica.clone())] {
            if let Some(value) = value {
                response.headers_mut().insert(name, value);
            }
        }
        response
    }

    async fn handle(&self, request: Request) -> Response {
        if !names_one_host(&request) {
            let detail = "send one Host header";
            let refused = ApiError::new(StatusCode::BAD_REQUEST, "bad-request", detail);
            return refused.into_response();
        }
        if let Err(foreign) = browser::check(self.api.mode, &request) {
            return foreign.into_response();
        }
        let Ok(response) = self.routes.clone().oneshot(request).await;
        response
    }
}

/// Whether the request has exactly one `Host`, as HTTP/1.1 demands (RFC 9112, 3.2).
fn names_one_host(request: &Request) -> bool {
    let hosts = request.headers().get_all(header::HOST).iter().count();
    request.version() < Version::HTTP_11 || hosts == 1
}

/// The errors to log of a successful answer to a batch.
#[derive(Debug, Clone)]
pub(super) struct LineErrors(pub(super) Vec<ApiError>);

/// The id that the proxy or the caller sent, if it is safe to log, or a new one.
fn request_id(request: &Request) -> String {
    let sent = request.headers().get(X_REQUEST_ID);
    let is_safe =
        |id: &&str| (1..=128).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic());
    let sent = sent.and_then(|id| id.to_str().ok()).filter(is_safe);
    sent.map_or_else(|| Uuid::now_v7().to_string(), str::to_owned)
}

/// The error of the response: of a handler, or made from the status of the framework's refusal.
fn take_error(response: &mut Response) -> Option<ApiError> {
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        return Some(error);
    }
    let status = response.status();
    (status.as_u16() >= 400).then(|| ApiError::from_status(status))
}

fn write_problem(response: &mut Response, error: &ApiError, id: &str) {
    let body = error.problem(id);
    let headers = response.headers_mut();
    headers.remove(header::CONTENT_LENGTH);
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/problem+json"),
    );
    *response.body_mut() = Body::from(body);
}

/// Logs an error. Refusals, contention and overload are debug lines: the callers cause them, the
/// metrics count them, and more lines would add load. An outage logs one line per second.
fn log(error: &ApiError, request_id: &str, route: &(Method, Uri), outages: &Mutex<OutageLog>) {
    let (method, path) = (&route.0, route.1.path());
    let cause = error.cause.as_deref().unwrap_or(&error.detail);
    let code = error.code;
    match error.status {
        StatusCode::INTERNAL_SERVER_ERROR => {
            tracing::error!(request_id, %method, path, code, cause, "request failed");
        }
        StatusCode::GATEWAY_TIMEOUT => {
            tracing::warn!(request_id, %method, path, code, cause, "request failed");
        }
        StatusCode::SERVICE_UNAVAILABLE if error.cause.is_some() => {
            let mut outages = outages.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(left_out) = outages.admit(Instant::now()) {
                tracing::warn!(request_id, %method, path, code, cause, left_out, "request failed");
            }
        }
        _ => tracing::debug!(request_id, %method, path, code, cause, "request refused"),
    }
}

/// Limits the log lines of an outage: every request that it fails would log the same.
#[derive(Debug, Default)]
pub(super) struct OutageLog {
    last: Option<Instant>,
    suppressed: u64,
}

impl OutageLog {
    /// The minimum time between two lines.
    const PAUSE: Duration = Duration::from_secs(1);

    /// If a line may be logged at `now`, the number of lines suppressed since the last one.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        let is_recent = |last| now.saturating_duration_since(last) < Self::PAUSE;
        if self.last.is_some_and(is_recent) {
            self.suppressed += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_with_number_of_suppressed_lines() {
        let (mut log, start) = (OutageLog::default(), Instant::now());
        let mut at = |ms| log.admit(start + Duration::from_millis(ms));
        assert_eq!((at(0), at(1), at(999)), (Some(0), None, None));
        assert_eq!((at(1_000), at(1_500)), (Some(2), None));
        assert_eq!((at(9_000), at(10_000)), (Some(1), Some(0)));
    }
}
