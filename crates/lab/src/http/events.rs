//! `GET /lab/races/{id}/events`: what happens in a race, as server-sent events.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Path;
use axum::http::HeaderMap;
use axum::response::Sse;
use axum::response::sse::{Event, KeepAlive};
use futures_util::Stream;
use futures_util::stream::unfold;

use super::{Invalid, LabRaces, NotInLab, unknown_race};
use crate::error::LabError;
use crate::races::Running;

/// A comment is sent after this silence, so that a proxy does not close the connection.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Watch a race: server-sent events, from the first one or after `Last-Event-ID`; the last is `end`
#[utoipa::path(get, path = "/lab/races/{id}/events", tag = "lab",
    params(
        ("id" = String, Path, description = "The race"),
        ("Last-Event-ID" = Option<u64>, Header, description = "The number of the last event that was received"),
    ),
    responses(
        (status = 200, description = "`plan`, `start`, `tick`, `row`, `end`", content_type = "text/event-stream", body = String),
        (status = 404, response = NotInLab),
        (status = 422, response = Invalid),
    ))]
pub(crate) async fn events(
    LabRaces(races): LabRaces,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, LabError> {
    let race = races.find(&id).ok_or_else(unknown_race)?;
    let last = headers.get("last-event-id");
    let last = last.map_or(Some(0), |last| {
        let number: i64 = last.to_str().ok()?.parse().ok()?;
        usize::try_from(number).ok()
    });
    let last =
        last.ok_or_else(|| LabError::invalid("Last-Event-ID: not the number of an event"))?;
    let stream = stream(race, last);
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

/// The events after number `last`; ends after the last event of the race.
fn stream(race: Arc<Running>, last: usize) -> impl Stream<Item = Result<Event, Infallible>> {
    unfold((race, last), |(race, last)| async move {
        let recorded = race.event(last).await?;
        let number = last + 1;
        let event = Event::default().id(number.to_string()).event(recorded.name);
        Some((Ok(event.data(recorded.data.to_string())), (race, number)))
    })
}
