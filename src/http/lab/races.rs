//! `/lab/races`: start, list and stop races, and download their reports.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::LabRaces;
use crate::http::extract::{present, present_whole};
use crate::http::{Api, ApiError, StrictJson, StrictQuery, openapi};
use crate::race::Race;
use crate::races::{Rejected, Running, State as RaceState};
use stocklock_core::strategy::{Dependency, Strategy};
use stocklock_lab::race::{Entrants, Lineup, RacePlan};

/// The largest values of a race that the page starts.
const LIMITS: Limits = Limits {
    stock: 1_000_000,
    buyers: 1_000,
    orders: 100_000,
    quantity: 100,
    replicas: 4,
    rtt_ms: 100,
};

/// The largest values of a race.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub(in crate::http) struct Limits {
    /// Units in stock.
    stock: i64,
    /// Buyers.
    buyers: usize,
    /// Orders of all buyers.
    orders: usize,
    /// Units of each order.
    quantity: i64,
    /// Replicas.
    replicas: u32,
    /// Milliseconds of the round trip that is added.
    rtt_ms: u32,
}

/// A server that some strategies need.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct ServerBody {
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
pub(in crate::http) struct RaceBody {
    /// Its id.
    id: String,
    /// `running`, `finished`, `stopped` or `failed`.
    state: &'static str,
}

/// The laboratory.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct LabBody {
    /// The database of the races, without a password.
    place: String,
    /// The servers besides it.
    servers: Vec<ServerBody>,
    /// The largest values of a race.
    limits: Limits,
    /// The last races, newest first.
    races: Vec<RaceBody>,
}

/// The strategies of a race: `"all"`, or a list of names.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub(in crate::http) enum Names {
    /// The word `all`.
    All(String),
    /// Names.
    These(Vec<String>),
}

/// A race to start. What is left out has the default of `stocklock race`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct NewRace {
    /// `"all"`, or names of `GET /strategies`.
    strategies: Names,
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

/// Get the laboratory: its database, its servers, its last races
#[utoipa::path(get, path = "/lab/races", tag = "lab",
    responses(
        (status = 200, description = "The laboratory", body = LabBody),
        (status = 404, response = openapi::NotInLab),
    ))]
pub(in crate::http) async fn list(
    LabRaces(races): LabRaces,
    State(api): State<Arc<Api>>,
) -> Json<LabBody> {
    let services = &api.config.services;
    let server = |dependency: Dependency, set| ServerBody {
        name: dependency.name(),
        title: dependency.title(),
        variable: dependency.variable(),
        set,
    };
    Json(LabBody {
        place: races.place().to_owned(),
        servers: vec![
            server(Dependency::Redis, services.redis_url.is_some()),
            server(Dependency::RedisMasters, services.redlock_urls.is_some()),
            server(Dependency::Zookeeper, services.zookeeper_connect.is_some()),
        ],
        limits: LIMITS,
        races: races
            .list()
            .iter()
            .map(|race| RaceBody::from(&**race))
            .collect(),
    })
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
pub(in crate::http) async fn start(
    LabRaces(races): LabRaces,
    State(api): State<Arc<Api>>,
    body: StrictJson<NewRace>,
) -> Result<Response, ApiError> {
    let race = body.parse()?.race()?;
    if race.rtt.is_some() && !races.can_be_delayed() {
        return Err(refused(
            "rtt_ms: there is no server to delay: SQLite is part of the process; set DATABASE_URL, \
             REDIS_URL, REDLOCK_URLS or ZOOKEEPER_CONNECT",
        ));
    }
    let lineup = Lineup::choose(&race.plan, |strategy| api.available.why_not(strategy));
    let lineup = lineup.map_err(|problem| {
        ApiError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "strategy-unavailable",
            problem,
        )
    })?;
    let started = races.start(race, &lineup).map_err(|error| match error {
        Rejected::Running(id) => {
            let detail = "another race runs; stop it, or wait for its end";
            ApiError::new(StatusCode::CONFLICT, "race-running", detail).with_id(id)
        }
        Rejected::ShuttingDown => ApiError::from_status(StatusCode::SERVICE_UNAVAILABLE),
    })?;
    let location = format!("/lab/races/{}", started.id);
    let headers = [(header::LOCATION, location)];
    Ok((
        StatusCode::CREATED,
        headers,
        Json(RaceBody::from(&*started)),
    )
        .into_response())
}

/// Get the state of a race
#[utoipa::path(get, path = "/lab/races/{id}", tag = "lab", params(("id" = String, Path, description = "The race")),
    responses(
        (status = 200, description = "Its state", body = RaceBody),
        (status = 404, response = openapi::NotInLab),
    ))]
pub(in crate::http) async fn state(
    LabRaces(races): LabRaces,
    Path(id): Path<String>,
) -> Result<Json<RaceBody>, ApiError> {
    let race = races.find(&id).ok_or_else(unknown_race)?;
    Ok(Json(RaceBody::from(&*race)))
}

/// Stop a race and its replicas; a race that has ended stays as it is
#[utoipa::path(post, path = "/lab/races/{id}/stop", tag = "lab", params(("id" = String, Path, description = "The race")),
    responses(
        (status = 204, description = "It stops"),
        (status = 404, response = openapi::NotInLab),
    ))]
pub(in crate::http) async fn stop(
    LabRaces(races): LabRaces,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    races.find(&id).ok_or_else(unknown_race)?.stop();
    Ok(StatusCode::NO_CONTENT)
}

/// The form of a report.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(in crate::http) enum Format {
    /// One self-contained file.
    #[default]
    Html,
    /// Every event, by strategy.
    Json,
}

/// The query of a report.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::http) struct ReportQuery {
    /// `html` or `json`
    #[serde(default)]
    #[param(inline)]
    format: Format,
}

/// Download the report of a race that has ended
#[utoipa::path(get, path = "/lab/races/{id}/report", tag = "lab",
    params(("id" = String, Path, description = "The race"), ReportQuery),
    responses(
        (status = 200, description = "The report", content_type = "text/html", body = String),
        (status = 404, response = openapi::NotInLab),
        (status = 409, response = openapi::RaceRefused),
        (status = 422, response = openapi::Invalid),
    ))]
pub(in crate::http) async fn report(
    LabRaces(races): LabRaces,
    Path(id): Path<String>,
    StrictQuery(query): StrictQuery<ReportQuery>,
) -> Result<Response, ApiError> {
    let race = races.find(&id).ok_or_else(unknown_race)?;
    if race.state() == RaceState::Running {
        let detail = "the report is complete when the race has ended";
        return Err(ApiError::new(StatusCode::CONFLICT, "race-running", detail).with_id(race.id));
    }
    let recording = race.recording();
    let (content_type, ending, text) = match query.format {
        Format::Html => ("text/html; charset=utf-8", "html", recording.html()),
        Format::Json => ("application/json", "json", recording.json().to_string()),
    };
    let name = format!("attachment; filename=\"race-{}.{ending}\"", race.id);
    let headers = [
        (header::CONTENT_TYPE, content_type.to_owned()),
        (header::CONTENT_DISPOSITION, name),
    ];
    Ok((headers, text).into_response())
}

pub(super) fn unknown_race() -> ApiError {
    let detail = "there is no such race; the laboratory keeps the last ones, until it stops";
    ApiError::new(StatusCode::NOT_FOUND, "unknown-race", detail)
}

impl From<&Running> for RaceBody {
    fn from(race: &Running) -> Self {
        Self {
            id: race.id.to_string(),
            state: race.state().name(),
        }
    }
}

impl NewRace {
    /// The race, if its values are within the limits.
    fn race(self) -> Result<Race, ApiError> {
        let mut plan = RacePlan::new(
            in_range("stock", self.stock.unwrap_or(5_000), 1, LIMITS.stock)?,
            in_range("buyers", self.buyers.unwrap_or(100), 1, LIMITS.buyers)?,
            in_range("orders", self.orders.unwrap_or(60), 1, LIMITS.orders)?,
        );
        let (orders, limit) = (plan.buyers * plan.orders, LIMITS.orders);
        if orders > limit {
            let detail = format!("orders: {orders} in total, and this lab makes at most {limit}");
            return Err(refused(detail));
        }
        plan.quantity = in_range("quantity", self.quantity.unwrap_or(1), 1, LIMITS.quantity)?;
        plan.strategies = self.strategies.entrants()?;
        plan.safeguards.guard = self.guard.unwrap_or(true);
        let rtt_ms = in_range(
            "rtt_ms",
            self.rtt_ms.unwrap_or(0.0),
            0.0,
            LIMITS.rtt_ms.into(),
        )?;
        let rtt = Duration::from_secs_f64(rtt_ms / 1_000.0);
        Ok(Race {
            plan,
            replicas: in_range("replicas", self.replicas.unwrap_or(2), 1, LIMITS.replicas)?,
            rtt: (!rtt.is_zero()).then_some(rtt),
            targets: Vec::new(),
        })
    }
}

impl Names {
    fn entrants(self) -> Result<Entrants, ApiError> {
        let names = match self {
            Self::All(word) if word == "all" => return Ok(Entrants::Everyone),
            Self::All(_) => Vec::new(),
            Self::These(names) => names,
        };
        if names.is_empty() {
            let detail =
                "strategies: expected \"all\", or a list of names; GET /strategies lists them";
            return Err(ApiError::invalid(detail));
        }
        let parsed = names.iter().map(|name| {
            let unknown =
                || format!("strategies: `{name}` is not a strategy; GET /strategies lists them");
            name.parse().map_err(|_| ApiError::invalid(unknown()))
        });
        let strategies: Vec<Strategy> = parsed.collect::<Result<_, _>>()?;
        let is_repeated = |(at, strategy)| strategies[..at].contains(strategy);
        if strategies.iter().enumerate().any(is_repeated) {
            return Err(ApiError::invalid("strategies: a name is repeated"));
        }
        Ok(Entrants::Only(strategies))
    }
}

/// A race with valid fields that this lab cannot run.
fn refused(detail: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::CONFLICT, "race-refused", detail)
}

fn in_range<T: PartialOrd + std::fmt::Display + Copy>(
    field: &str,
    value: T,
    least: T,
    most: T,
) -> Result<T, ApiError> {
    if (least..=most).contains(&value) {
        return Ok(value);
    }
    Err(ApiError::invalid(format!(
        "{field}: must be between {least} and {most}"
    )))
}
