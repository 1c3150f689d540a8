//! The HTTP API: routes, their documentation, and errors in one format.
//!
//! One file per call or group of calls, and for the parts that they share. A handler has no rules: it
//! extracts, calls the core or the store, and answers. Every response passes through the stack of
//! `respond.rs`, which adds headers and writes the body of an error.

use std::sync::Arc;

use axum::Router;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use utoipa_swagger_ui::SwaggerUi;

use crate::access::{Access, KeyRing};
use crate::config::{Config, Mode};
use crate::crowd::Crowd;
use crate::events::Followers;
use crate::level_cache::LevelCache;
use crate::locks::LockServers;
use crate::metrics::Metrics;
use crate::webhooks::Client;
use stocklock_core::access::Scope;
use stocklock_core::deduct::Deductor;
use stocklock_core::level_service::LevelService;
use stocklock_core::stock::{Sku, StockError};
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
mod events;
mod export;
mod extract;
mod fields;
mod headers;
mod hold_ends;
mod holds;
mod import;
mod keys;
mod lab;
mod levels;
mod movements;
mod openapi;
mod operations;
mod order_lines;
mod paging;
mod probes;
mod respond;
mod reverse;
mod set_level;
mod shards;
mod strategies;
mod webhooks;

pub(crate) use audit::line as audit_line;
pub(crate) use body::BodyBudget;
use error::ApiError;
use extract::{
    BatchJson, NoFields, StrictJson, StrictQuery, objects, present, present_objects, present_whole,
    remark,
};
use keys::Routes;
pub use openapi::document;
pub(crate) use probes::Readiness;
pub(crate) use respond::service;
pub(crate) use webhooks::time;

/// How many imports and exports a replica runs at a time.
pub(crate) const MAX_BULK: usize = 8;

/// The type of a body of one JSON value a line.
const NDJSON: &str = "application/x-ndjson";

/// The state of the handlers.
#[derive(Debug)]
pub(crate) struct Api {
    /// Who may call.
    pub(crate) access: Arc<Access>,
    pub(crate) config: Config,
    /// Only the lab has a start page and lets a request choose its strategy.
    pub(crate) mode: Mode,
    /// This replica's name, for `X-Replica`.
    pub(crate) replica: String,
    pub(crate) deductor: Arc<Deductor>,
    pub(crate) levels: LevelService,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) level_cache: Arc<LevelCache>,
    /// Those who wait for events, if they are on.
    pub(crate) followers: Option<Followers>,
    /// Sends messages to receivers.
    pub(crate) webhooks: Client,
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
    /// The imports and exports that may still begin.
    pub(crate) bulk: Arc<Semaphore>,
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

    /// The right to begin an import or an export. They take longer than other requests.
    fn begin_bulk(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        let what = "this replica runs as many imports and exports as it may";
        let permit = Arc::clone(&self.bulk).try_acquire_owned();
        permit.map_err(|_| StockError::Overloaded { what }.into())
    }
}

/// The SKU of a deduction in the lab that names none.
pub(crate) fn lab_sku() -> Sku {
    Sku::parse("1001").expect("a valid SKU")
}

/// Every route, and the OpenAPI document. Without those that [`probes()`] serves at another address.
pub(crate) fn routes(api: &Arc<Api>) -> Router {
    let routes = documented(api.mode, &api.access, api.races.clone());
    let (routes, document) = match api.config.service.addresses.admin_listen {
        Some(_) => routes,
        None => routes.merge(probe_routes(&api.access)),
    }
    .split_for_parts();
    let document = openapi::finished(document, api.mode, &api.available);
    routes
        .merge(SwaggerUi::new("/docs").external_url_unchecked("/openapi.json", document))
        .fallback(error::no_such_route)
        .with_state(Arc::clone(api))
}

/// The routes at `ADMIN_LISTEN`. They need no key.
pub(crate) fn probes(api: &Arc<Api>) -> Router {
    let (routes, _) = probe_routes(&Arc::new(Access::Open)).split_for_parts();
    routes
        .fallback(error::no_such_route)
        .with_state(Arc::clone(api))
}

fn probe_routes(access: &Arc<Access>) -> OpenApiRouter<Arc<Api>> {
    Routes::new(Arc::clone(access))
        .open(routes!(probes::healthz))
        .open(routes!(probes::readyz))
        .needs(Scope::Read, routes!(probes::metrics))
        .into_router()
}

/// Every route with its documentation, except those of probes, and with the scope that its callers need. `races` are those of the
/// lab's page.
fn documented(
    mode: Mode,
    access: &Arc<Access>,
    races: Option<Arc<Races>>,
) -> OpenApiRouter<Arc<Api>> {
    let routes = Routes::new(Arc::clone(access))
        .needs(Scope::Sell, routes!(deduct::deduct))
        .needs(Scope::Sell, routes!(deduct_batch::deduct_batch))
        .needs(Scope::Read, routes!(levels::list))
        .needs(Scope::Read, routes!(levels::of_sku))
        .needs(Scope::Read, routes!(levels::query))
        .needs(Scope::Stock, routes!(set_level::set_level))
        .needs(Scope::Stock, routes!(adjust::adjust))
        .needs(Scope::Stock, routes!(adjust::adjust_lines))
        .needs(Scope::Stock, routes!(import::import))
        .needs(Scope::Read, routes!(export::export))
        .needs(Scope::Read, routes!(movements::movements))
        .needs(Scope::Read, routes!(audit::audit))
        .needs(Scope::Read, routes!(operations::operation))
        .needs(Scope::Read, routes!(operations::operations))
        .needs(Scope::Stock, routes!(reverse::reverse))
        .needs(Scope::Read, routes!(holds::list))
        .needs(Scope::Sell, routes!(holds::hold))
        .needs(Scope::Sell, routes!(hold_ends::confirm))
        .needs(Scope::Sell, routes!(hold_ends::release))
        .needs(Scope::Sell, routes!(hold_ends::extend))
        .needs(Scope::Read, routes!(audit::audit_all))
        .needs(Scope::Events, routes!(events::events))
        .needs(Scope::Admin, routes!(webhooks::create))
        .needs(Scope::Admin, routes!(webhooks::list))
        .needs(Scope::Admin, routes!(webhooks::webhook))
        .needs(Scope::Admin, routes!(webhooks::change))
        .needs(Scope::Admin, routes!(webhooks::delete))
        .needs(Scope::Admin, routes!(webhooks::test))
        .needs(Scope::Read, routes!(strategies::strategies));
    let routes = routes.into_router();
    match mode {
        // The lab has no keys.
        Mode::Lab => routes.merge(lab::routes(races)),
        Mode::Serve => routes,
    }
}
