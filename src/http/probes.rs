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
        Ok((_, Err(problem))) => Err(not_ready(problem)),
        Err(_elapsed) => Err(not_ready("a server does not answer within 500 ms")),
    }
}

fn not_ready(detail: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "not-ready", detail)
}

/// Pings the server that the configured strategy needs besides the database.
async fn ping_servers(api: &Api) -> Result<(), String> {
    let refuses = |server: Dependency| format!("{} refuses", server.title());
    let strategy = api.config.service.strategy;
    if let Some(lock) = api.locks.locks.get(strategy) {
        return lock.ping().await.map_err(|_| refuses(lock.dependency()));
    }
    match &api.redis {
        Some(redis) if strategy.card().needs.contains(&Dependency::Redis) => {
            let ping = Box::pin(redis.ping());
            ping.await.map_err(|_| refuses(Dependency::Redis))
        }
        _ => Ok(()),
    }
}

/// Get all metrics in the `OpenMetrics` text format
#[utoipa::path(get, path = "/metrics", tag = "operation",
    responses((status = 200, description = "All metrics", content_type = "application/openmetrics-text", body = String)))]
pub(super) async fn metrics(State(api): State<Arc<Api>>) -> impl IntoResponse {
    const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], api.metrics.render())
}
