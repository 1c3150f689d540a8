//! The routes of the laboratory: its page, and races: list, stop, watch, and download their reports.
//!
//! The service adds the routes that parse a body or need its own state, writes the bodies of errors, and refuses
//! what pages of other sites send.

use std::sync::Arc;

use axum::Json;
use axum::extract::{FromRequestParts, Path, RawQuery};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use serde::Serialize;
use utoipa::openapi::RefOr;
use utoipa::{ToResponse, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::error::LabError;
use crate::limits::{LIMITS, Limits};
use crate::page;
use crate::races::{Races, Running, State};
use stocklock_core::strategy::Dependency;

mod events;

/// Nothing from elsewhere is loaded, and no other page may show this one in a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The routes, with their documentation. Only `stocklock lab` has races; its replicas have none.
pub fn router<S>(races: Option<Arc<Races>>) -> OpenApiRouter<S> {
    OpenApiRouter::new()
        .routes(routes!(start_page))
        .routes(routes!(file))
        .routes(routes!(list))
        .routes(routes!(state))
        .routes(routes!(stop))
        .routes(routes!(report))
        .routes(routes!(events::events))
        .with_state(races)
}

/// Responses that the document of the service describes.
macro_rules! described_by_the_service {
    ($($name:ident)+) => {$(
        struct $name;

        impl ToResponse<'static> for $name {
            fn response() -> (&'static str, RefOr<utoipa::openapi::Response>) {
                (stringify!($name), RefOr::T(utoipa::openapi::Response::default()))
            }
        }
    )+};
}
described_by_the_service!(NotInLab Invalid RaceRefused);

/// The races of this process.
#[derive(Debug)]
pub(crate) struct LabRaces(Arc<Races>);

impl FromRequestParts<Option<Arc<Races>>> for LabRaces {
    type Rejection = LabError;

    async fn from_request_parts(
        _: &mut Parts,
        races: &Option<Arc<Races>>,
    ) -> Result<Self, LabError> {
        races.clone().map(Self).ok_or_else(LabError::no_races)
    }
}

/// A server that some strategies need.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ServerBody {
    /// Its name.
    name: &'static str,
    /// Its name in texts.
    title: &'static str,
    /// The setting that names it.
    variable: &'static str,
    /// Whether it is set.
    set: bool,
}

/// The state of a race.
#[derive(Debug, Serialize, ToSchema)]
pub struct RaceBody {
    /// Its id.
    pub id: String,
    /// `running`, `finished`, `stopped` or `failed`.
    state: &'static str,
}

/// The laboratory.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LabBody {
    /// The database of the races, without a password.
    place: String,
    /// The servers besides it.
    servers: Vec<ServerBody>,
    /// The largest values of a race.
    limits: Limits,
    /// The last races, newest first.
    races: Vec<RaceBody>,
}

/// Get the page of the laboratory
#[utoipa::path(get, path = "/", tag = "lab",
    responses((status = 200, description = "A page of HTML", content_type = "text/html", body = String)))]
pub(crate) async fn start_page() -> impl IntoResponse {
    (
        [(header::CONTENT_SECURITY_POLICY, POLICY)],
        Html(page::INDEX),
    )
}

/// Get a style sheet or a script of the page
#[utoipa::path(get, path = "/lab/page/{file}", tag = "lab",
    params(("file" = String, Path, description = "Its name")),
    responses(
        (status = 200, description = "The file", content_type = "text/javascript", body = String),
        (status = 404, response = NotInLab),
    ))]
pub(crate) async fn file(Path(name): Path<String>) -> Result<impl IntoResponse, LabError> {
    let (content_type, text) = page::file(&name).ok_or_else(|| {
        let detail = "the page has no such file";
        LabError::unknown("unknown-file", detail)
    })?;
    // Another build has other files under the same names.
    let headers = [
        (header::CONTENT_TYPE, content_type),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    Ok((headers, text))
}

/// Get the laboratory: its database, its servers, its last races
#[utoipa::path(get, path = "/lab/races", tag = "lab", operation_id = "races",
    responses(
        (status = 200, description = "The laboratory", body = LabBody),
        (status = 404, response = NotInLab),
    ))]
pub(crate) async fn list(LabRaces(races): LabRaces) -> Json<LabBody> {
    let urls = races.servers();
    let server = |dependency: Dependency, set| ServerBody {
        name: dependency.name(),
        title: dependency.title(),
        variable: dependency.variable(),
        set,
    };
    Json(LabBody {
        place: races.place().to_owned(),
        servers: vec![
            server(Dependency::Redis, urls.redis.is_some()),
            server(Dependency::RedisMasters, urls.redlock.is_some()),
            server(Dependency::Zookeeper, urls.zookeeper.is_some()),
        ],
        limits: LIMITS,
        races: races
            .list()
            .iter()
            .map(|race| RaceBody::from(&**race))
            .collect(),
    })
}

/// Get the state of a race
#[utoipa::path(get, path = "/lab/races/{id}", tag = "lab", params(("id" = String, Path, description = "The race")),
    responses(
        (status = 200, description = "Its state", body = RaceBody),
        (status = 404, response = NotInLab),
    ))]
pub(crate) async fn state(
    LabRaces(races): LabRaces,
    Path(id): Path<String>,
) -> Result<Json<RaceBody>, LabError> {
    let race = races.find(&id).ok_or_else(unknown_race)?;
    Ok(Json(RaceBody::from(&*race)))
}

/// Stop a race and its replicas; a race that has ended stays as it is
#[utoipa::path(post, path = "/lab/races/{id}/stop", tag = "lab", params(("id" = String, Path, description = "The race")),
    responses(
        (status = 204, description = "It stops"),
        (status = 404, response = NotInLab),
    ))]
pub(crate) async fn stop(
    LabRaces(races): LabRaces,
    Path(id): Path<String>,
) -> Result<StatusCode, LabError> {
    races.find(&id).ok_or_else(unknown_race)?.stop();
    Ok(StatusCode::NO_CONTENT)
}

/// Download the report of a race that has ended
#[utoipa::path(get, path = "/lab/races/{id}/report", tag = "lab",
    params(
        ("id" = String, Path, description = "The race"),
        ("format" = Option<String>, Query, description = "`html` or `json`"),
    ),
    responses(
        (status = 200, description = "The report", content_type = "text/html", body = String),
        (status = 404, response = NotInLab),
        (status = 409, response = RaceRefused),
        (status = 422, response = Invalid),
    ))]
pub(crate) async fn report(
    LabRaces(races): LabRaces,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Response, LabError> {
    let race = races.find(&id).ok_or_else(unknown_race)?;
    let is_json = match query.as_deref().unwrap_or_default() {
        "" | "format=html" => false,
        "format=json" => true,
        _ => return Err(LabError::invalid("format: must be `html` or `json`")),
    };
    if race.state() == State::Running {
        let detail = "the report is complete when the race has ended";
        return Err(LabError::running(race.id, detail));
    }
    let recording = race.recording();
    let (content_type, ending, text) = if is_json {
        ("application/json", "json", recording.json().to_string())
    } else {
        ("text/html; charset=utf-8", "html", recording.html())
    };
    let name = format!("attachment; filename=\"race-{}.{ending}\"", race.id);
    let headers = [
        (header::CONTENT_TYPE, content_type.to_owned()),
        (header::CONTENT_DISPOSITION, name),
    ];
    Ok((headers, text).into_response())
}

pub(super) fn unknown_race() -> LabError {
    let detail = "there is no such race; the laboratory keeps the last ones, until it stops";
    LabError::unknown("unknown-race", detail)
}

impl From<&Running> for RaceBody {
    fn from(race: &Running) -> Self {
        Self {
            id: race.id.to_string(),
            state: race.state().name(),
        }
    }
}
