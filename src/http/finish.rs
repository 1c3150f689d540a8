//! The last touch of every answer: who answered, which request, and an error's body.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::Response;
use tokio::time::Instant;
use uuid::Uuid;

use super::Api;
use super::error::{ApiError, of_status};
use super::outage_log::OutageLog;

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const X_REPLICA: HeaderName = HeaderName::from_static("x-replica");

/// What it needs to know.
#[derive(Debug)]
pub(super) struct Finisher {
    api: Arc<Api>,
    outages: OutageLog,
}

impl Finisher {
    /// For the answers of `api`.
    pub(super) fn new(api: Arc<Api>) -> Self {
        let outages = OutageLog::default();
        Self { api, outages }
    }
}

/// Names the replica and the request, counts the answer, and turns errors into problems. A failure
/// of the service is logged here, and nowhere else.
pub(super) async fn finish(
    State(finisher): State<Arc<Finisher>>,
    request: Request,
    next: Next,
) -> Response {
    let Finisher { api, outages } = &*finisher;
    let id = request_id(&request);
    let route = (request.method().clone(), request.uri().clone());
    let mut response = next.run(request).await;
    let status = response.status();
    if let Some(error) = error_of(&mut response) {
        log(&error, &id, &route, outages);
        write_problem(&mut response, &error, &id);
    }
    api.metrics.response(status.as_u16());
    for (name, value) in [(X_REQUEST_ID, &id), (X_REPLICA, &api.replica)] {
        if let Ok(value) = HeaderValue::from_str(value) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

/// The id that a proxy or the caller gave, where it is harmless, or a new one.
fn request_id(request: &Request) -> String {
    let given = request
        .headers()
        .get(X_REQUEST_ID)
        .and_then(|id| id.to_str().ok());
    match given {
        Some(id) if (1..=128).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic()) => {
            id.to_owned()
        }
        _ => Uuid::now_v7().to_string(),
    }
}

/// The error that the answer stands for; a refusal of the framework's own counts as one.
fn error_of(response: &mut Response) -> Option<ApiError> {
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        return Some(error);
    }
    let status = response.status();
    (status.is_client_error() || status.is_server_error()).then(|| of_status(status))
}

fn write_problem(response: &mut Response, error: &ApiError, id: &str) {
    let body = error.problem(id).to_string();
    let headers = response.headers_mut();
    headers.remove(header::CONTENT_LENGTH);
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/problem+json"),
    );
    *response.body_mut() = Body::from(body);
}

/// Contention and overload are the callers' doing and stand in the metrics; logging each would
/// make them worse. An outage is logged once a second, with how many it has failed since.
fn log(error: &ApiError, request_id: &str, route: &(Method, Uri), outages: &OutageLog) {
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
            if let Some(left_out) = outages.admit(Instant::now()) {
                tracing::warn!(request_id, %method, path, code, cause, left_out, "request failed");
            }
        }
        _ => tracing::debug!(request_id, %method, path, code, cause, "request refused"),
    }
}
