//! `GET /events`: what has changed, in order; as a page, or as a stream of server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::sse::{self, KeepAlive};
use axum::response::{IntoResponse as _, Response, Sse};
use futures_util::stream::unfold;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep_until};
use utoipa::{IntoParams, ToSchema};

use super::fields::MAX_WAIT_SECONDS;
use super::keys::check_again;
use super::paging::{PageSize, bad_cursor};
use super::{Api, ApiError, StrictQuery, openapi};
use crate::events::{EventBody, Follower};
use stocklock_core::access::Scope;
use stocklock_core::stock::{Event, EventCursor, EventPage, MAX_UNITS, MovementKind, Sku};

/// A comment is sent after this silence, so that a proxy does not close the connection.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// How long a stream lasts. Its client connects again, and shows its key again.
const STREAM: Duration = Duration::from_mins(1);

/// Some events.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct EventList {
    /// In the order in which they were published. Those of one level are in the order of its versions. There may be
    /// none, although more follow.
    events: Vec<EventBody>,
    /// The parameter `after` for what follows.
    cursor: String,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct EventQuery {
    /// The `cursor` of the last answer; default: the oldest event that is kept. `Last-Event-ID` comes first.
    after: Option<String>,
    /// Maximum number of events, 1 to 1000; default 100.
    #[param(value_type = Option<u32>)]
    limit: Option<PageSize>,
    /// How long to wait for the first event, 0 to 30 s; default 0. A stream waits longer.
    #[param(value_type = Option<u32>)]
    wait_s: Option<Wait>,
    /// Only events of this SKU.
    #[param(value_type = Option<String>)]
    sku: Option<Sku>,
    /// Only events of this type, for example `stock.deducted`.
    #[param(value_type = Option<String>)]
    r#type: Option<EventType>,
    /// Adds `low` to `crossed` when the available units fall to this number or below it.
    #[param(value_type = Option<i64>)]
    low_at: Option<LowAt>,
}

/// The type of an event, as the kind of its movement.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct EventType(MovementKind);

impl TryFrom<String> for EventType {
    type Error = &'static str;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        let kind = name.strip_prefix("stock.").map(str::to_owned);
        match kind.map(MovementKind::from) {
            None | Some(MovementKind::Other(_)) => Err("no such type of events"),
            Some(kind) => Ok(Self(kind)),
        }
    }
}

/// A number of units, 0 to a million millions.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "i64")]
pub(super) struct LowAt(pub(super) i64);

impl TryFrom<i64> for LowAt {
    type Error = String;

    fn try_from(units: i64) -> Result<Self, Self::Error> {
        match units {
            0..=MAX_UNITS => Ok(Self(units)),
            _ => Err(format!("must be from 0 to {MAX_UNITS}")),
        }
    }
}

/// A wait in seconds, 0 to 30.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(try_from = "u32")]
struct Wait(Duration);

impl TryFrom<u32> for Wait {
    type Error = String;

    fn try_from(seconds: u32) -> Result<Self, Self::Error> {
        if seconds > MAX_WAIT_SECONDS {
            return Err(format!("must be from 0 to {MAX_WAIT_SECONDS}"));
        }
        Ok(Self(Duration::from_secs(seconds.into())))
    }
}

/// Follow what changes
///
/// Each change of a level is an event, some 250 ms after its commit. The events of a level come in the order of its
/// versions, each once. There is no such order between levels. `EVENTS=on` switches them on.
///
/// With `Accept: text/event-stream`, the answer is a stream of server-sent events, whose ids are cursors. It lasts a
/// minute; a client connects again with `Last-Event-ID`.
#[utoipa::path(
    get, path = "/events", tag = "events", operation_id = "follow_events",
    params(
        EventQuery,
        ("Last-Event-ID" = Option<String>, Header, description = "The id of the last event that was received"),
    ),
    responses(
        (status = 200, description = "Some events, or a stream of them", content(
            (EventList = "application/json"), (String = "text/event-stream"),
        )),
        openapi::ReadErrors,
        (status = 404, response = openapi::NotFound),
        (status = 410, response = openapi::Gone),
    )
)]
pub(super) async fn events(
    State(api): State<Arc<Api>>,
    headers: HeaderMap,
    StrictQuery(query): StrictQuery<EventQuery>,
) -> Result<Response, ApiError> {
    let accepted = headers.get(header::ACCEPT);
    let accepted = accepted.and_then(|value| value.to_str().ok());
    let streams = accepted.is_some_and(|accepted| accepted.contains("text/event-stream"));
    let wait = query.wait_s.unwrap_or_default().0;
    let mut reader = Reader::new(api, query, headers)?;
    if !streams {
        let events = reader.next(Instant::now() + wait).await?;
        let low_at = reader.low_at;
        let bodies = events.into_iter().map(|one| EventBody::new(one, low_at));
        let list = EventList {
            events: bodies.collect(),
            cursor: reader.after.unwrap_or_default().to_string(),
        };
        return Ok(Json(list).into_response());
    }
    let asked = reader.after;
    // The first page decides between 200 and an error.
    let first = reader.page().await?;
    Ok(stream(reader, first.into(), asked))
}

/// The answer while changes may not be published yet.
pub(super) fn events_are_starting() -> ApiError {
    let error = ApiError::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "unavailable",
        "the events were just switched on, and the levels are being looked through",
    );
    error.retry_after(1)
}

/// The answer if no events are published.
pub(super) fn are_off() -> ApiError {
    let detail = "no events are published; set EVENTS=on to switch them on";
    ApiError::new(StatusCode::NOT_FOUND, "events-off", detail)
}

/// Reads the feed from a position on.
struct Reader {
    api: Arc<Api>,
    headers: HeaderMap,
    follower: Follower,
    after: Option<EventCursor>,
    /// The last row of the feed when the last page was read.
    end: i64,
    limit: u32,
    sku: Option<Sku>,
    kind: Option<MovementKind>,
    low_at: Option<i64>,
}

impl Reader {
    fn new(api: Arc<Api>, query: EventQuery, headers: HeaderMap) -> Result<Self, ApiError> {
        let followers = api.followers.as_ref().ok_or_else(are_off)?;
        api.check_shard(&query.sku)?;
        let follower = followers.join().ok_or_else(|| {
            let detail = "too many requests follow the events";
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", detail).retry_after(1)
        })?;
        let last = headers.get("last-event-id");
        let last = last.map(|id| id.to_str().unwrap_or_default().to_owned());
        let after = last.or(query.after);
        let after = after.map(|text| EventCursor::parse(&text).ok_or_else(bad_cursor));
        Ok(Self {
            after: after.transpose()?,
            end: 0,
            limit: query.limit.unwrap_or_default().rows(),
            sku: query.sku,
            kind: query.r#type.map(|kind| kind.0),
            low_at: query.low_at.map(|units| units.0),
            follower,
            api,
            headers,
        })
    }

    /// The next events, at least one, unless `deadline` passes or the replica stops.
    async fn next(&mut self, deadline: Instant) -> Result<Vec<Event>, ApiError> {
        loop {
            let events = self.page().await?;
            if !events.is_empty() || self.is_over(deadline) {
                return Ok(events);
            }
            self.wait(deadline).await;
        }
    }

    /// Whether `deadline` has passed, or the replica stops.
    fn is_over(&self, deadline: Instant) -> bool {
        Instant::now() >= deadline || self.api.shutdown.is_cancelled()
    }

    /// The events of the next page. There may be none, although more follow.
    async fn page(&mut self) -> Result<Vec<Event>, ApiError> {
        let api = &self.api;
        check_again(api, &self.headers, Scope::Events)?;
        let page = api.store.events(self.after, self.sku.as_ref(), self.limit);
        let (mut events, cursor, end) = match page.await? {
            EventPage::Events {
                events,
                cursor,
                end,
            } => (events, cursor, end),
            EventPage::Starting => return Err(events_are_starting()),
            EventPage::Expired => {
                return Err(ApiError::new(
                    StatusCode::GONE,
                    "cursor-expired",
                    "the events after the cursor are not kept any more; read /export, and follow the events \
                     after its X-Events-Cursor",
                ));
            }
        };
        self.after = Some(cursor);
        self.end = end;
        events.retain(|event| api.shard().has(&event.movement.sku));
        if let Some(wanted) = &self.kind {
            events.retain(|event| event.movement.kind == *wanted);
        }
        Ok(events)
    }

    /// Waits for another page, until `deadline` passes or the replica stops.
    async fn wait(&mut self, deadline: Instant) {
        let Some(EventCursor { seq, version: None }) = self.after else {
            return;
        };
        if seq >= self.end {
            tokio::select! {
                () = self.follower.wait_beyond(seq) => {}
                () = sleep_until(deadline) => {}
                () = self.api.shutdown.cancelled() => {}
            }
        }
    }
}

/// The events from here on, until the stream's time is over, the replica stops or a page cannot be read.
///
/// After a page whose last events do not pass the filter, only the id of its end is sent. So a client that connects
/// again does not read the page again.
fn stream(reader: Reader, first: VecDeque<Event>, asked: Option<EventCursor>) -> Response {
    let end = Instant::now() + STREAM;
    let begin = (reader, first, asked);
    let events = unfold(begin, move |(mut reader, mut page, mut sent)| async move {
        loop {
            let id = |cursor: EventCursor| sse::Event::default().id(cursor.to_string());
            if let Some(event) = page.pop_front() {
                let (id, cursor) = (id(event.cursor), event.cursor);
                let body = EventBody::new(event, reader.low_at);
                let event = id.event(&body.r#type).json_data(&body);
                let event = event.expect("texts and numbers are JSON");
                return Some((Ok::<_, Infallible>(event), (reader, page, Some(cursor))));
            }
            if let Some(cursor) = reader.after.filter(|after| Some(*after) != sent) {
                sent = Some(cursor);
                return Some((Ok(id(cursor)), (reader, page, sent)));
            }
            reader.wait(end).await;
            if reader.is_over(end) {
                return None;
            }
            // After an error, the client connects again, and gets it.
            page = reader.page().await.ok()?.into();
        }
    });
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE);
    Sse::new(events).keep_alive(keep_alive).into_response()
}
