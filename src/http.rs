//! The HTTP edge: routes, their documentation, and errors in one form.
//!
//! Handlers extract, make one call, and answer; one file per noun. Every answer, those of the
//! framework included, passes `finish.rs`, which names the replica and the request and gives errors
//! their body.

use std::sync::Arc;

use axum::Router;
use axum::middleware;
use tokio_util::sync::CancellationToken;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use utoipa_swagger_ui::SwaggerUi;

use crate::locks::LockServers;
use crate::metrics::Metrics;
use stocklock_core::deduct::Deductor;
use stocklock_core::level_service::LevelService;
use stocklock_core::strategy::{Available, Strategy};
use stocklock_store::StoreRouter;

mod adjust;
mod audit;
mod deduct;
mod error;
mod etag;
mod extract;
mod finish;
mod idempotency;
mod levels;
mod movements;
mod openapi;
mod outage_log;
mod probes;
mod set_level;
mod start_page;
mod strategies;

pub use extract::BodyLimits;
pub use openapi::document;

/// What the handlers work with.
#[derive(Debug)]
pub struct Api {
    /// This replica's name, for `X-Replica`.
    pub replica: String,
    /// Takes stock.
    pub deductor: Arc<Deductor>,
    /// Sets and adjusts levels.
    pub changes: LevelService,
    /// Reads levels and the ledger.
    pub store: Arc<StoreRouter>,
    /// The distributed locks, for readiness.
    pub locks: LockServers,
    /// Which strategies can be used.
    pub available: Available,
    /// The strategy that is used where none is asked for.
    pub strategy: Strategy,
    /// What the lab adds; `None` in production.
    pub lab: Option<Lab>,
    /// Bounds of a request's body.
    pub body: BodyLimits,
    /// This replica's counters.
    pub metrics: Arc<Metrics>,
    /// Cancelled once the replica is to stop: it is no longer ready then.
    pub shutdown: CancellationToken,
}

/// What the lab adds to the service.
#[derive(Debug, Clone)]
pub struct Lab {
    /// The SKU that is deducted where none is named.
    pub default_sku: stocklock_core::stock::Sku,
    /// The same where the strategy works on Redis only.
    pub default_redis_sku: stocklock_core::stock::Sku,
}

/// The whole service, without the connections that it is reached by.
pub fn router(api: Arc<Api>) -> Router {
    let (routes, document) = documented(api.lab.is_some()).split_for_parts();
    routes
        .merge(SwaggerUi::new("/docs").url("/openapi.json", document))
        .fallback(error::no_such_route)
        .layer(CatchPanicLayer::custom(error::panicked))
        .layer(middleware::from_fn_with_state(
            Arc::new(finish::Finisher::new(Arc::clone(&api))),
            finish::finish,
        ))
        .with_state(api)
}

/// Every route with its documentation.
fn documented(lab: bool) -> OpenApiRouter<Arc<Api>> {
    let mut routes = OpenApiRouter::with_openapi(openapi::head())
        .routes(routes!(deduct::deduct))
        .routes(routes!(levels::list))
        .routes(routes!(levels::of_sku, set_level::set_level))
        .routes(routes!(adjust::adjust))
        .routes(routes!(movements::movements))
        .routes(routes!(audit::audit))
        .routes(routes!(strategies::strategies))
        .routes(routes!(probes::healthz))
        .routes(routes!(probes::readyz))
        .routes(routes!(probes::metrics));
    if lab {
        routes.routes(routes!(start_page::start_page))
    } else {
        openapi::without_lab(routes.get_openapi_mut());
        routes
    }
}
