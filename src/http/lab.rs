//! The routes of the laboratory and of the gallery of failures, which have their own crates, and those that need the
//! state of the service.
//!
//! These routes start processes, so `browser.rs` refuses the pages of other sites.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Response};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Api, ApiError, StrictJson, openapi};
use stocklock_lab::race::RacePlan;
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

/// Start a race on new replicas; one at a time
#[utoipa::path(post, path = "/lab/races", tag = "lab", request_body = RacePlan,
    responses(
        (status = 201, description = "It runs", body = RaceBody),
        (status = 404, response = openapi::NotInLab),
        openapi::LabErrors,
        (status = 409, response = openapi::RaceRefused),
        (status = 503, response = openapi::RaceUnavailable),
    ))]
async fn start(
    State(api): State<Arc<Api>>,
    body: StrictJson<RacePlan>,
) -> Result<Response, ApiError> {
    let races = api.races.as_ref().ok_or_else(LabError::no_races)?;
    let plan = body.parse()?;
    let started = races.start(plan, |strategy| api.available.why_not(strategy))?;
    let race = RaceBody::from(&*started);
    let location = [(header::LOCATION, format!("/lab/races/{}", race.id))];
    Ok((StatusCode::CREATED, location, Json(race)).into_response())
}
