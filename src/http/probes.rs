//! `/healthz`, `/readyz` and `/metrics`, for load balancers and monitoring.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use serde::Serialize;
use utoipa::ToSchema;

use super::{Api, ApiError, openapi};
use stocklock_core::strategy::Dependency;

/// Maximum time for the readiness check.
const READY_LIMIT: Duration = Duration::from_millis(500);

/// The answer of a probe.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ProbeBody {
    /// `ok` or `ready`.
    status: &'static str,
}

/// Check that the process is alive; contacts no other server
#[utoipa::path(get, path = "/healthz", tag = "operation",
    responses((status = 200, description = "Alive", body = ProbeBody)))]
pub(super) async fn healthz() -> Json<ProbeBody> {
    Json(ProbeBody { status: "ok" })
}

/// Check that the replica accepts writes; asks its servers, for at most 500 ms
#[utoipa::path(get, path = "/readyz", tag = "operation",
    responses(
        (status = 200, description = "Ready", body = ProbeBody),
        (status = 503, response = openapi::Unavailable),
    ))]
pub(super) async fn readyz(State(api): State<Arc<Api>>) -> Result<Json<ProbeBody>, ApiError> {
    if api.shutdown.is_cancelled() {
        return Err(not_ready("this replica is shutting down"));
    }
    let checks = async { tokio::join!(api.store.check_writable(), ping_servers(&api)) };
    match tokio::time::timeout(READY_LIMIT, checks).await {
        Ok((Ok(()), Ok(()))) => Ok(Json(ProbeBody { status: "ready" })),
        Ok((Err(_), _)) => Err(not_ready("the database does not accept writes")),
        Ok((_, Err(server))) => Err(not_ready(format!("{} refuses", server.title()))),
        Err(_elapsed) => Err(not_ready("a server does not answer within 500 ms")),
    }
}

fn not_ready(detail: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "not-ready", detail)
}

/// Pings the servers of the configured strategies besides the database. The default for stock in
/// Redis does not count: such stock may not exist.
async fn ping_servers(api: &Api) -> Result<(), Dependency> {
    let service = &api.config.service;
    for strategy in std::iter::once(service.strategy).chain(service.strategy_redis) {
        if let Some(lock) = api.locks.locks.get(strategy) {
            lock.ping().await.map_err(|_| lock.dependency())?;
        }
    }
    if service.strategy_redis.is_some() {
        let ping = api.store.ping_redis().await;
        ping.map_err(|_| Dependency::Redis)?;
    }
    Ok(())
}

/// Get all metrics in the `OpenMetrics` text format
#[utoipa::path(get, path = "/metrics", tag = "operation",
    responses((status = 200, description = "All metrics", content_type = "application/openmetrics-text", body = String)))]
pub(super) async fn metrics(State(api): State<Arc<Api>>) -> impl IntoResponse {
    const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], api.metrics.render())
}
