//! The HTTP API: routes, their documentation, and errors in one format.
//!
//! One file per resource. A handler has typed extractors, makes one call, and answers. Every response
//! passes through `respond.rs`, which adds headers and writes the body of an error.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::http::HeaderValue;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use utoipa::OpenApi as _;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use utoipa_swagger_ui::SwaggerUi;

use crate::config::{Config, Mode};
use crate::crowd::Crowd;
use crate::level_cache::LevelCache;
use crate::locks::LockServers;
use crate::metrics::Metrics;
use stocklock_core::deduct::Deductor;
use stocklock_core::level_service::LevelService;
use stocklock_core::stock::Sku;
use stocklock_core::strategy::Available;
use stocklock_core::whole::whole;
use stocklock_lab::Races;
use stocklock_store::{RedisCounters, Store};

mod adjust;
mod audit;
mod body;
mod browser;
mod deduct;
mod deduct_batch;
mod error;
mod extract;
mod fields;
mod headers;
mod holds;
mod lab;
mod levels;
mod movements;
mod openapi;
mod operations;
mod paging;
mod probes;
mod respond;
mod reverse;
mod set_level;
mod strategies;

pub(crate) use audit::line as audit_line;
pub(crate) use body::BodyBudget;
use error::ApiError;
use extract::{
    BatchJson, NoFields, StrictJson, StrictQuery, objects, present, present_objects, present_whole,
    remark,
};
use openapi::Document;
pub use openapi::document;
pub(crate) use probes::Readiness;
use respond::OutageLog;

/// The state of the handlers.
#[derive(Debug)]
pub(crate) struct Api {
    pub(crate) config: Config,
    /// Only the lab has a start page and lets a request choose its strategy.
    pub(crate) mode: Mode,
    /// This replica's name, for `X-Replica`.
    pub(crate) replica: String,
    pub(crate) deductor: Arc<Deductor>,
    pub(crate) levels: LevelService,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) level_cache: Arc<LevelCache>,
    /// The counters of the levels, if there is a Redis.
    pub(crate) redis: Option<Arc<RedisCounters>>,
    pub(crate) locks: LockServers,
    pub(crate) available: Available,
    pub(crate) metrics: Arc<Metrics>,
    /// The races of the lab's page; only `stocklock lab` has them.
    pub(crate) races: Option<Arc<Races>>,
    /// The open connections of clients.
    pub(crate) crowd: Crowd,
    /// The memory for large bodies.
    pub(crate) bodies: BodyBudget,
    /// The question of `/readyz` to the servers.
    pub(crate) readiness: Readiness,
    /// Cancelled at shutdown; the replica is not ready then.
    pub(crate) shutdown: CancellationToken,
}

impl Api {
    /// When a request that starts now is answered at the latest.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.config.limits.request_deadline_ms
    }
}

/// The SKU of a deduction in the lab that names none.
pub(crate) fn lab_sku() -> Sku {
    Sku::parse("1001").expect("a valid SKU")
}

/// The whole HTTP API: [`HttpService::answer`].
#[derive(Debug)]
pub(crate) struct HttpService {
    api: Arc<Api>,
    routes: Router,
    /// For `X-Replica`, unless the name cannot be sent.
    replica: Option<HeaderValue>,
    outages: Mutex<OutageLog>,
}

impl HttpService {
    pub(crate) fn new(api: Arc<Api>) -> Self {
        let (routes, document) = documented(api.mode, api.races.clone()).split_for_parts();
        let document = openapi::finished(document, api.mode, &api.available);
        let routes = routes
            .merge(SwaggerUi::new("/docs").external_url_unchecked("/openapi.json", document))
            .fallback(error::no_such_route)
            .with_state(Arc::clone(&api));
        Self {
            routes,
            replica: HeaderValue::from_str(&api.replica).ok(),
            outages: Mutex::default(),
            api,
        }
    }
}

/// Every route with its documentation. `races` are those of the lab's page.
fn documented(mode: Mode, races: Option<Arc<Races>>) -> OpenApiRouter<Arc<Api>> {
    let routes = OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(deduct::deduct))
        .routes(routes!(deduct_batch::deduct_batch))
        .routes(routes!(levels::list))
        .routes(routes!(levels::of_sku, set_level::set_level))
        .routes(routes!(adjust::adjust))
        .routes(routes!(adjust::adjust_lines))
        .routes(routes!(movements::movements))
        .routes(routes!(audit::audit))
        .routes(routes!(operations::operation))
        .routes(routes!(operations::operations))
        .routes(routes!(reverse::reverse))
        .routes(routes!(holds::list, holds::hold))
        .routes(routes!(holds::confirm))
        .routes(routes!(holds::release))
        .routes(routes!(holds::extend))
        .routes(routes!(audit::audit_all))
        .routes(routes!(strategies::strategies))
        .routes(routes!(probes::healthz))
        .routes(routes!(probes::readyz))
        .routes(routes!(probes::metrics));
    match mode {
        Mode::Lab => routes.merge(lab::routes(races)),
        Mode::Serve => routes,
    }
}
