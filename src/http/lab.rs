//! The routes of the laboratory and of the gallery of failures, which have their own crates, and those that need the
//! state of the service.
//!
//! These routes start processes, so `browser.rs` refuses the pages of other sites.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Api, ApiError, StrictJson, openapi, present, present_whole};
use stocklock_lab::race::{Entrants, Names, RacePlan};
use stocklock_lab::{LabError, RaceBody, Races};

mod locks;

/// Every route of the lab. `races` are those of its page.
pub(super) fn routes(races: Option<Arc<Races>>) -> OpenApiRouter<Arc<Api>> {
    stocklock_lab::router(races)
        .layer(map_response(with_error))
        .merge(stocklock_failures::router())
        .routes(routes!(start))
        .routes(routes!(locks::locks, locks::revoke))
}

/// The response with the service's error instead of the laboratory's.
async fn with_error(mut response: Response) -> Response {
    match response.extensions_mut().remove::<LabError>() {
        Some(error) => ApiError::from(error).into_response(),
        None => response,
    }
}

impl From<LabError> for ApiError {
    fn from(error: LabError) -> Self {
        let LabError {
            status,
            code,
            detail,
            race,
        } = error;
        let error = Self::new(status, code, detail);
        match race {
            Some(id) => error.with_id(id),
            None => error,
        }
    }
}

/// A race to start. What is left out has the default of `stocklock race`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewRace {
    /// `"all"`, or names of `GET /strategies`.
    #[schema(value_type = Names)]
    strategies: Entrants,
    /// Units in stock.
    #[serde(default, deserialize_with = "present_whole")]
    #[schema(minimum = 1, maximum = 1_000_000, nullable = false)]
    stock: Option<i64>,
    /// Buyers who order at the same time.
    #[serde(default, deserialize_with = "present_whole")]
    #[schema(minimum = 1, maximum = 1000, nullable = false)]
    buyers: Option<usize>,
    /// Orders of each buyer, one after the other.
    #[serde(default, deserialize_with = "present_whole")]
    #[schema(minimum = 1, maximum = 100_000, nullable = false)]
    orders: Option<usize>,
    /// Units of each order.
    #[serde(default, deserialize_with = "present_whole")]
    #[schema(minimum = 1, maximum = 100, nullable = false)]
    quantity: Option<i64>,
    /// Replicas to start.
    #[serde(default, deserialize_with = "present_whole")]
    #[schema(minimum = 1, maximum = 4, nullable = false)]
    replicas: Option<u32>,
    /// Milliseconds of round trip to add between replicas and servers.
    #[serde(default, deserialize_with = "present")]
    #[schema(minimum = 0, maximum = 100, nullable = false)]
    rtt_ms: Option<f64>,
    /// `false`: strategies with a lock write without a condition.
    #[serde(default, deserialize_with = "present")]
    #[schema(nullable = false)]
    guard: Option<bool>,
}

impl NewRace {
    fn plan(self) -> Result<RacePlan, ApiError> {
        let known = RacePlan::default();
        let rtt = Duration::try_from_secs_f64(self.rtt_ms.unwrap_or_default() / 1_000.0);
        Ok(RacePlan {
            strategies: self.strategies,
            stock: self.stock.unwrap_or(known.stock),
            buyers: self.buyers.unwrap_or(known.buyers),
            orders: self.orders.unwrap_or(known.orders),
            quantity: self.quantity.unwrap_or(known.quantity),
            replicas: self.replicas.unwrap_or(known.replicas),
            rtt: rtt.map_err(|error| ApiError::invalid(format!("rtt_ms: {error}")))?,
            guard: self.guard.unwrap_or(known.guard),
            ..known
        })
    }
}

/// Start a race on new replicas; one at a time
#[utoipa::path(post, path = "/lab/races", tag = "lab", request_body = NewRace,
    responses(
        (status = 201, description = "It runs", body = RaceBody),
        (status = 404, response = openapi::NotInLab),
        openapi::LabErrors,
        (status = 409, response = openapi::RaceRefused),
        (status = 503, response = openapi::RaceUnavailable),
    ))]
async fn start(
    State(api): State<Arc<Api>>,
    body: StrictJson<NewRace>,
) -> Result<Response, ApiError> {
    let races = api.races.as_ref().ok_or_else(LabError::no_races)?;
    let plan = body.parse()?.plan()?;
    let started = races.start(plan, |strategy| api.available.why_not(strategy))?;
    let race = RaceBody::from(&*started);
    let location = [(header::LOCATION, format!("/lab/races/{}", race.id))];
    Ok((StatusCode::CREATED, location, Json(race)).into_response())
}
