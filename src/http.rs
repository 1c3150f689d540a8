//! The HTTP API: routes, their documentation, and errors in one format.
//!
//! One file per resource. A handler has typed extractors, makes one call, and answers. Every response
//! passes the middleware in `respond.rs`, which adds headers and writes the body of an error.

use std::sync::Arc;

use axum::Router;
use axum::middleware;
use tokio_util::sync::CancellationToken;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use utoipa_swagger_ui::SwaggerUi;

use crate::config::Limits;
use crate::locks::LockServers;
use crate::metrics::Metrics;
use stocklock_core::deduct::Deductor;
use stocklock_core::level_service::LevelService;
use stocklock_core::strategy::{Available, Strategy};
use stocklock_store::StockStore;

mod adjust;
mod audit;
mod deduct;
mod error;
mod etag;
mod extract;
mod idempotency;
mod levels;
mod movements;
mod openapi;
mod outage_log;
mod paging;
mod probes;
mod respond;
mod set_level;
mod start_page;
mod strategies;

pub use openapi::document;

/// The state of the handlers.
#[derive(Debug)]
pub struct Api {
    /// This replica's name, for `X-Replica`.
    pub replica: String,
    /// Deducts stock.
    pub deductor: Arc<Deductor>,
    /// Sets and adjusts levels.
    pub levels: LevelService,
    /// Reads levels and the ledger.
    pub store: Arc<dyn StockStore>,
    /// The distributed locks, for readiness.
    pub locks: LockServers,
    /// The strategies that can be used.
    pub available: Available,
    /// The configured strategy.
    pub strategy: Strategy,
    /// What the lab adds; `None` in production.
    pub lab: Option<Lab>,
    /// The bounds, for the size and the time of a request's body.
    pub limits: Limits,
    /// The metrics of this replica.
    pub metrics: Arc<Metrics>,
    /// Cancelled at shutdown; the replica is not ready then.
    pub shutdown: CancellationToken,
}

/// What the lab adds to the service.
#[derive(Debug, Clone)]
pub struct Lab {
    /// The SKU of a deduction that names none.
    pub default_sku: stocklock_core::stock::Sku,
    /// The same for strategies that work on Redis only.
    pub default_redis_sku: stocklock_core::stock::Sku,
}

/// The whole HTTP API.
pub fn router(api: Arc<Api>) -> Router {
    let (routes, document) = documented(api.lab.is_some()).split_for_parts();
    routes
        .merge(SwaggerUi::new("/docs").url("/openapi.json", document))
        .fallback(error::no_such_route)
        .layer(CatchPanicLayer::custom(error::panicked))
        .layer(middleware::from_fn_with_state(
            Arc::new(respond::Respond::new(Arc::clone(&api))),
            respond::respond,
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
