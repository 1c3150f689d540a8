//! The last touch of every answer: who answered, which request, and an error's body.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use uuid::Uuid;

use super::Api;
use super::error::{ApiError, of_status};

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const X_REPLICA: HeaderName = HeaderName::from_static("x-replica");

/// Names the replica and the request, counts the answer, and turns errors into problems. A failure
/// of the service is logged here, and nowhere else.
pub(super) async fn finish(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let id = request_id(&request);
    let route = (request.method().clone(), request.uri().path().to_owned());
    let mut response = next.run(request).await;
    let status = response.status();
    if let Some(error) = error_of(&mut response) {
        log(&error, &id, &route.0, &route.1);
        write_problem(&mut response, &error, &id);
    }
    api.metrics.response(status.as_u16());
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&id) {
        headers.insert(X_REQUEST_ID, id);
    }
    if let Ok(replica) = HeaderValue::from_str(&api.replica) {
        headers.insert(X_REPLICA, replica);
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
/// make them worse.
fn log(error: &ApiError, request_id: &str, method: &axum::http::Method, path: &str) {
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
            tracing::warn!(request_id, %method, path, code, cause, "request failed");
        }
        _ => tracing::debug!(request_id, %method, path, code, cause, "request refused"),
    }
}
