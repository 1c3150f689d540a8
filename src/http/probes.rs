//! `/healthz`, `/readyz` and `/metrics`, for load balancers and monitoring.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use parking_lot::Mutex;
use serde::Serialize;
use utoipa::ToSchema;

use super::{Api, ApiError, openapi};
use stocklock_core::strategy::Dependency;

/// Maximum time for the readiness check.
const READY_LIMIT: Duration = Duration::from_millis(500);

/// Whether the servers are ready, or why not.
type Answer = Result<(), String>;

/// A question to the servers.
type Question = BoxFuture<'static, Answer>;

/// The question in progress. Probes that arrive meanwhile wait for its answer, so a flood of them is one
/// question at a time and does not delay the probe of the load balancer.
#[derive(Debug, Default)]
pub(crate) struct Readiness(Mutex<Option<WeakShared<Question>>>);

impl Readiness {
    /// Joins the question in progress, or asks one.
    ///
    /// # Cancel safety
    /// The future may be dropped. The question ends with the last probe that waits for it.
    fn join_or_ask(&self, ask: impl FnOnce() -> Question) -> Shared<Question> {
        let mut asked = self.0.lock();
        let joined = asked.as_ref().and_then(WeakShared::upgrade);
        if let Some(question) = joined.filter(|question| question.peek().is_none()) {
            return question;
        }
        let question = ask().shared();
        *asked = question.downgrade();
        question
    }
}

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
    if let Some(problem) = api.access.problem() {
        return Err(not_ready(problem));
    }
    let ask = || ask_servers(Arc::clone(&api)).boxed();
    match api.readiness.join_or_ask(ask).await {
        Ok(()) => Ok(Json(ProbeBody { status: "ready" })),
        Err(problem) => Err(not_ready(problem)),
    }
}

async fn ask_servers(api: Arc<Api>) -> Answer {
    let checks = async { tokio::join!(api.store.check_writable(), ping_servers(&api)) };
    match tokio::time::timeout(READY_LIMIT, checks).await {
        Ok((Ok(()), pinged)) => pinged,
        Ok((Err(_), _)) => Err("the database does not accept writes".to_owned()),
        Err(_elapsed) => Err("a server does not answer within 500 ms".to_owned()),
    }
}

fn not_ready(detail: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "not-ready", detail)
}

/// Pings the server that the configured strategy needs besides the database.
async fn ping_servers(api: &Api) -> Answer {
    let refuses = |server: Dependency| format!("{} refuses or does not answer", server.title());
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures_util::future::join_all;
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn concurrent_probes_share_one_question() {
        let (readiness, asked) = (Readiness::default(), AtomicU32::new(0));
        let probe = || {
            readiness.join_or_ask(|| {
                let number = asked.fetch_add(1, Ordering::SeqCst);
                let answer = async move {
                    sleep(READY_LIMIT).await;
                    Err(number.to_string())
                };
                answer.boxed()
            })
        };
        for question in ["0", "1"] {
            let given_up = tokio::time::timeout(READY_LIMIT / 2, probe());
            let probes = join_all((0..100).map(|_| probe()));
            let (given_up, answers) = tokio::join!(given_up, probes);
            assert!(given_up.is_err());
            assert!(
                answers
                    .iter()
                    .all(|answer| *answer == Err(question.to_owned()))
            );
        }
    }
}
