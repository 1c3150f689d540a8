//! Answers every request: the stack of `tower-http` around the routes, the body of an error, its log line.
//!
//! The stack surrounds the whole router. So the future of a request is boxed once, by the router, and not
//! by each layer as with `Router::layer`; only reads pass such a layer, for compression. `tower-http` has
//! request ids, headers and compression.
//! Written by hand is what it does not have:
//! - A problem for each error, with a stable code and the request's id ([`Answering`]). The answers of
//!   `tower-http` to a panic or to a body that is too large do not know the id, and its layer for panics
//!   boxes each body.
//! - The limit of a body (`body.rs`). It differs by route, and the same loop counts the memory of all bodies.
//! - Timeouts (`server/timed_io.rs`, `body.rs`, the deadline). There is one for each phase of a request.
//!   `TimeoutLayer` has one for all, and would drop a handler whose write is in progress.
//! - The log, and traces. `TraceLayer` makes a span for each request also if nothing collects it; this service
//!   logs requests that fail, and makes spans for a collector only.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, Uri, Version, header};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt as _;
use parking_lot::Mutex;
use tokio::time::Instant;
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
use tower_http::CompressionLevel;
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::{NotForContentType, Predicate, SizeAbove};
use tower_http::request_id::{
    MakeRequestId, PropagateRequestIdLayer, RequestId, SetRequestIdLayer,
};
use tower_http::sensitive_headers::SetSensitiveRequestHeadersLayer;
use tower_http::set_header::SetResponseHeaderLayer;
use tracing::{Instrument as _, Level, Span, field};
use uuid::Uuid;

use super::headers::IDEMPOTENCY_KEY;
use super::{Api, ApiError, browser, shards};
use stocklock_core::trace::TARGET;

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const X_REPLICA: HeaderName = HeaderName::from_static("x-replica");

/// Shorter answers fit in one packet.
const COMPRESSED_ABOVE: u16 = 1024;

/// The whole HTTP API, with what every answer has: `X-Request-Id`, `X-Replica`, and compression.
pub(crate) fn service(
    api: Arc<Api>,
    routes: Router,
) -> impl Service<Request, Response = Response, Error = Infallible, Future: Send>
+ Clone
+ Send
+ Sync
+ 'static {
    let replica = HeaderValue::from_str(&api.replica).ok();
    let is_compressed = SizeAbove::new(COMPRESSED_ABOVE).and(NotForContentType::SSE);
    let compression = CompressionLayer::new().quality(CompressionLevel::Fastest);
    let compressed = ServiceBuilder::new()
        .map_response(with_weak_etag)
        .layer(compression.compress_when(is_compressed));
    let answering = Arc::new(Answering {
        reads: routes.clone().layer(compressed),
        routes,
        outages: Mutex::default(),
        api,
    });
    let answer = service_fn(move |request| {
        let answering = Arc::clone(&answering);
        async move { Ok(answering.answer(request).await) }
    });
    ServiceBuilder::new()
        .map_request(without_unsafe_id)
        .layer(SetRequestIdLayer::new(X_REQUEST_ID, NewId))
        .layer(PropagateRequestIdLayer::new(X_REQUEST_ID))
        .layer(SetSensitiveRequestHeadersLayer::new([
            header::AUTHORIZATION,
            IDEMPOTENCY_KEY,
        ]))
        .layer(SetResponseHeaderLayer::overriding(X_REPLICA, replica))
        .layer(SetResponseHeaderLayer::if_not_present(
            header::CONTENT_SECURITY_POLICY,
            browser::no_frames,
        ))
        .service(answer)
}

/// The routes, and what makes their refusals into problems.
struct Answering {
    routes: Router,
    /// The same, with compression. Other answers are short, and a deduction waits for nothing.
    reads: Router,
    outages: Mutex<OutageLog>,
    api: Arc<Api>,
}

impl Answering {
    /// Answers a request, unless a page of another site sent it. Counts the response, and writes errors as
    /// problems. This is the only place that logs failed requests.
    async fn answer(&self, request: Request) -> Response {
        let id = request.extensions().get::<RequestId>().cloned();
        let id = id.as_ref().and_then(|id| id.header_value().to_str().ok());
        let id = id.unwrap_or_default();
        let route = (request.method().clone(), request.uri().clone());
        let span = span(&request, id);
        let mut response = self.handle(request).instrument(span.clone()).await;
        let of_lines = response.extensions_mut().remove::<LineErrors>();
        for error in of_lines.into_iter().flat_map(|LineErrors(errors)| errors) {
            log(&error, id, &route, &self.outages);
        }
        if let Some(error) = take_error(&mut response) {
            log(&error, id, &route, &self.outages);
            write_problem(&mut response, &error, id);
        }
        let status = response.status().as_u16();
        span.record("http.response.status_code", status);
        self.api.metrics.response(status);
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
        if let Err(wrong) = shards::check(self.api.shard(), &request) {
            return wrong.into_response();
        }
        let is_read = request.method().is_safe();
        let routes = if is_read { &self.reads } else { &self.routes };
        let answered = AssertUnwindSafe(routes.clone().oneshot(request)).catch_unwind();
        match answered.await {
            Ok(Ok(response)) => response,
            Err(panic) => ApiError::panicked(&*panic).into_response(),
        }
    }
}

/// The span of a request: in the trace of the caller, if it sent a `traceparent`. None if the caller does not
/// want its trace, or nothing collects it.
fn span(request: &Request, id: &str) -> Span {
    if !tracing::enabled!(target: TARGET, Level::TRACE) {
        return Span::none();
    }
    let traceparent = request.headers().get("traceparent");
    let traceparent = traceparent.and_then(|value| value.to_str().ok());
    // `00-<trace>-<span>-<flags>` (W3C Trace Context).
    let flags = traceparent.and_then(|text| u8::from_str_radix(text.get(53..55)?, 16).ok());
    if flags.is_some_and(|flags| flags & 1 == 0) {
        return Span::none();
    }
    tracing::trace_span!(
        target: TARGET,
        "HTTP",
        traceparent,
        "http.request.method" = request.method().as_str(),
        "url.path" = request.uri().path(),
        "http.response.status_code" = field::Empty,
        request_id = id,
    )
}

/// A strong tag stands for bytes, and compressed bytes are others (RFC 9110, 8.8.1). A client that has such
/// an answer can use its tag as before, because [`super::headers::Tags`] takes weak ones.
fn with_weak_etag<B>(mut response: Response<B>) -> Response<B> {
    let headers = response.headers_mut();
    if headers.contains_key(header::CONTENT_ENCODING)
        && let Some(etag) = headers.get_mut(header::ETAG)
        && let Ok(weak) = HeaderValue::try_from([b"W/", etag.as_bytes()].concat())
    {
        *etag = weak;
    }
    response
}

/// Whether the request has exactly one `Host`, as HTTP/1.1 demands (RFC 9112, 3.2).
fn names_one_host(request: &Request) -> bool {
    let hosts = request.headers().get_all(header::HOST).iter().count();
    request.version() < Version::HTTP_11 || hosts == 1
}

/// The errors to log of a successful answer to a batch.
#[derive(Debug, Clone)]
pub(super) struct LineErrors(pub(super) Vec<ApiError>);

/// The id that the proxy or the caller sent stays only if it is safe to log.
fn without_unsafe_id(mut request: Request) -> Request {
    let is_safe = |id: &HeaderValue| {
        (1..=128).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    let sent = request.headers().get(X_REQUEST_ID);
    if sent.is_some_and(|id| !is_safe(id)) {
        request.headers_mut().remove(X_REQUEST_ID);
    }
    request
}

/// Makes the id of a request that has none.
#[derive(Debug, Clone, Copy)]
struct NewId;

impl MakeRequestId for NewId {
    fn make_request_id<B>(&mut self, _: &axum::http::Request<B>) -> Option<RequestId> {
        let id = HeaderValue::try_from(Uuid::now_v7().to_string()).ok();
        id.map(RequestId::new)
    }
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
            let mut outages = outages.lock();
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
