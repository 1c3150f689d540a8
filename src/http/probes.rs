//! `/healthz`, `/readyz`, `/metrics`: for whoever runs the service.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use serde::Serialize;
use utoipa::ToSchema;

use super::error::ApiError;
use super::{Api, openapi};
use stocklock_core::strategy::{Dependency, Homes};

/// The longest that readiness may take to find out.
const READY_LIMIT: Duration = Duration::from_millis(500);

/// A probe's answer.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ProbeBody {
    /// `ok` or `ready`.
    status: &'static str,
}

/// Is the process alive? Touches nothing
#[utoipa::path(get, path = "/healthz", tag = "operation",
    responses((status = 200, description = "It is", body = ProbeBody)))]
pub(super) async fn healthz() -> Json<ProbeBody> {
    Json(ProbeBody { status: "ok" })
}

/// Can it take requests? Asks what it depends on, for at most 500 ms
#[utoipa::path(get, path = "/readyz", tag = "operation",
    responses(
        (status = 200, description = "It can", body = ProbeBody),
        (status = 503, response = openapi::Unavailable),
    ))]
pub(super) async fn readyz(State(api): State<Arc<Api>>) -> Result<Json<ProbeBody>, ApiError> {
    let not_ready =
        |detail: &str| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "not-ready", detail);
    if api.shutdown.is_cancelled() {
        return Err(not_ready("this replica is about to stop"));
    }
    let services = async {
        lock_answers(&api).await?;
        stock_answers(&api).await
    };
    let dependencies = async { tokio::join!(api.store.ping(), services) };
    match tokio::time::timeout(READY_LIMIT, dependencies).await {
        Ok((Ok(()), Ok(()))) => Ok(Json(ProbeBody { status: "ready" })),
        Ok((Err(_), _)) => Err(not_ready("the database refuses")),
        Ok((_, Err(service))) => Err(not_ready(&format!("{} refuses", service.title()))),
        Err(_elapsed) => Err(not_ready("a dependency does not answer within 500 ms")),
    }
}

/// Asks the service whose lock the configured strategy needs, if it needs one; the lab's others may
/// be away.
async fn lock_answers(api: &Api) -> Result<(), Dependency> {
    match api.locks.locks().get(api.strategy) {
        Some(lock) => lock.ping().await.map_err(|_| lock.dependency()),
        None => Ok(()),
    }
}

/// Asks the Redis that the stock of the configured strategy lives in, if it lives there.
async fn stock_answers(api: &Api) -> Result<(), Dependency> {
    if api.strategy.card().homes != Homes::Redis {
        return Ok(());
    }
    api.store.ping_redis().await.map_err(|_| Dependency::Redis)
}

/// Counters and histograms in the `OpenMetrics` text format
#[utoipa::path(get, path = "/metrics", tag = "operation",
    responses((status = 200, description = "All of them", content_type = "application/openmetrics-text", body = String)))]
pub(super) async fn metrics(State(api): State<Arc<Api>>) -> impl IntoResponse {
    const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], api.metrics.render())
}
