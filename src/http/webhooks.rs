//! `/webhooks`: who is sent the events. The messages follow Standard Webhooks.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;
use uuid::Uuid;

use super::events::{EventType, LowAt, events_are_starting};
use super::fields::MAX_URL;
use super::{Api, ApiError, NoFields, StrictJson, StrictQuery, openapi, present};
use crate::webhooks::{Body, Message, new_secret, now, now_millis};
use stocklock_core::stock::EventPage;
use stocklock_store::Webhook;

/// How many there may be.
const MAX_WEBHOOKS: usize = 100;

/// How long messages are signed with the secret before, too.
const OVERLAP: Duration = Duration::from_hours(24);

/// How long after a rotation another one counts as its repeat: the receiver may know only the secret before both.
const REPEAT: Duration = Duration::from_hours(1);

/// How often a change is tried if other requests change the same webhook.
const TRIES: usize = 5;

/// Where events are to be sent.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WebhookBody {
    /// `https://…` at a public address; or at one that `WEBHOOK_ALLOW` names, also `http://…`.
    #[schema(example = "https://shop.example/stock-events")]
    url: String,
    /// The types of events, or `stock.*`; default: all.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<Vec<String>>)]
    types: Option<Vec<Wanted>>,
    /// Adds `low` to `crossed` when the available units fall to this number or below it.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<i64>)]
    low_at: Option<LowAt>,
}

/// What to change of a webhook.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WebhookChangeBody {
    /// The new address.
    #[serde(default, deserialize_with = "present")]
    url: Option<String>,
    /// The types of events, or `stock.*`.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<Vec<String>>)]
    types: Option<Vec<Wanted>>,
    /// The new bound of `low`.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<i64>)]
    low_at: Option<LowAt>,
    /// Whether events are sent. They go on where they were.
    #[serde(default, deserialize_with = "present")]
    enabled: Option<bool>,
    /// `true` makes a new secret. For 24 hours messages are also signed with the old one. Another rotation within an
    /// hour replaces only the new one.
    #[serde(default, deserialize_with = "present")]
    rotate_secret: Option<bool>,
}

/// A type of events, or all of them.
#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
struct Wanted(String);

impl TryFrom<String> for Wanted {
    type Error = &'static str;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        if name != "stock.*" {
            EventType::try_from(name.clone())?;
        }
        Ok(Self(name))
    }
}

/// A webhook.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct WebhookState {
    /// Its id.
    id: String,
    /// The address that the events are sent to.
    url: String,
    /// The types that are sent; empty: all.
    types: Vec<String>,
    /// The bound of `low`.
    low_at: Option<i64>,
    /// After the last event that has arrived: a cursor of `GET /events`.
    cursor: String,
    /// When it was created: RFC 3339, UTC.
    created_at: String,
    /// Since when nothing has arrived, if the last attempt failed.
    failing_since: Option<String>,
    /// What the last attempt has met.
    problem: Option<String>,
    /// When it was disabled: by a request, after an answer 410, or after five days without success.
    disabled_at: Option<String>,
    /// The key of the signatures, `whsec_…`: only in the answer that makes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
}

impl WebhookState {
    fn new(webhook: Webhook, shows_secret: bool) -> Self {
        let types = webhook.types.split(',').filter(|name| !name.is_empty());
        Self {
            id: webhook.id.to_string(),
            types: types.map(str::to_owned).collect(),
            url: webhook.url,
            low_at: webhook.low_at,
            cursor: webhook.position.to_string(),
            created_at: time(webhook.created_at),
            failing_since: webhook.failing_since.map(time),
            problem: webhook.problem,
            disabled_at: webhook.disabled_at.map(time),
            secret: shows_secret.then_some(webhook.secret),
        }
    }
}

/// A time in milliseconds since 1970 as RFC 3339.
pub(crate) fn time(millis: i64) -> String {
    let since = Duration::from_millis(millis.try_into().unwrap_or_default());
    humantime::format_rfc3339_millis(UNIX_EPOCH + since).to_string()
}

/// Send the events to an address
///
/// From now on. The answer has the secret of the signatures.
#[utoipa::path(
    post, path = "/webhooks", tag = "events", operation_id = "create_webhook",
    request_body = WebhookBody,
    responses(
        (status = 201, description = "Created", body = WebhookState),
        openapi::ReadErrors, openapi::WriteErrors,
        (status = 404, response = openapi::NotFound),
        (status = 409, response = openapi::WebhookConflict),
    )
)]
pub(super) async fn create(
    State(api): State<Arc<Api>>,
    _: StrictQuery<NoFields>,
    body: StrictJson<WebhookBody>,
) -> Result<(StatusCode, Json<WebhookState>), ApiError> {
    let all = all(&api).await?;
    let body = body.parse()?;
    if all.len() >= MAX_WEBHOOKS {
        let detail = format!("there are {MAX_WEBHOOKS} webhooks; delete one");
        return Err(ApiError::new(
            StatusCode::CONFLICT,
            "too-many-webhooks",
            detail,
        ));
    }
    let last = api.store.last_published().await?;
    let webhook = Webhook {
        id: Uuid::now_v7(),
        url: checked(&api, body.url)?,
        secret: secret()?,
        old_secret: None,
        types: joined(body.types.unwrap_or_default()),
        low_at: body.low_at.map(|units| units.0),
        revision: 1,
        position: last.ok_or_else(events_are_starting)?,
        batch_end: None,
        created_at: now_millis(),
        failing_since: None,
        problem: None,
        disabled_at: None,
    };
    // Nothing is read after the commit: only this answer has the secret.
    api.store.add_webhook(&webhook).await?;
    Ok((StatusCode::CREATED, Json(WebhookState::new(webhook, true))))
}

/// List the webhooks
#[utoipa::path(
    get, path = "/webhooks", tag = "events", operation_id = "webhooks",
    responses(
        (status = 200, description = "All of them, the oldest first", body = Vec<WebhookState>),
        openapi::ReadErrors, (status = 404, response = openapi::NotFound),
    )
)]
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    _: StrictQuery<NoFields>,
) -> Result<Json<Vec<WebhookState>>, ApiError> {
    let all = all(&api).await?.into_iter();
    Ok(Json(all.map(|one| WebhookState::new(one, false)).collect()))
}

/// Look at a webhook
#[utoipa::path(
    get, path = "/webhooks/{id}", tag = "events", operation_id = "webhook", params(openapi::WebhookPath),
    responses(
        (status = 200, description = "The webhook", body = WebhookState),
        openapi::ReadErrors, (status = 404, response = openapi::NotFound),
    )
)]
pub(super) async fn webhook(
    State(api): State<Arc<Api>>,
    Path(id): Path<String>,
    _: StrictQuery<NoFields>,
) -> Result<Json<WebhookState>, ApiError> {
    let webhook = find(&api, parsed(&id)?).await?;
    Ok(Json(WebhookState::new(webhook, false)))
}

/// Change a webhook
///
/// A batch that is being sent then may be sent again with another id.
#[utoipa::path(
    patch, path = "/webhooks/{id}", tag = "events", operation_id = "change_webhook", params(openapi::WebhookPath),
    request_body = WebhookChangeBody,
    responses(
        (status = 200, description = "Changed", body = WebhookState),
        openapi::ReadErrors, openapi::WriteErrors,
        (status = 404, response = openapi::NotFound),
        (status = 409, response = openapi::WebhookConflict),
    )
)]
pub(super) async fn change(
    State(api): State<Arc<Api>>,
    Path(id): Path<String>,
    _: StrictQuery<NoFields>,
    body: StrictJson<WebhookChangeBody>,
) -> Result<Json<WebhookState>, ApiError> {
    let before = find(&api, parsed(&id)?).await?;
    let body = body.parse()?;
    let (url, types) = (
        body.url.map(|url| checked(&api, url)),
        body.types.map(joined),
    );
    let (url, rotates) = (url.transpose()?, body.rotate_secret == Some(true));
    let new = rotates.then(secret).transpose()?;
    if body.enabled == Some(true) {
        let next = api.store.events(Some(before.position), None, 1).await?;
        if matches!(next, EventPage::Expired) {
            return Err(ApiError::new(
                StatusCode::CONFLICT,
                "cursor-expired",
                "the next events of the webhook are not kept any more; read the levels, and create a new one",
            ));
        }
    }
    for _ in 0..TRIES {
        let mut webhook = find(&api, before.id).await?;
        webhook.url = url.clone().unwrap_or(webhook.url);
        webhook.types = types.clone().unwrap_or(webhook.types);
        webhook.low_at = body.low_at.map(|units| units.0).or(webhook.low_at);
        webhook.secret = new.clone().unwrap_or(webhook.secret);
        if let Some(enabled) = body.enabled {
            let since = webhook.disabled_at.unwrap_or_else(now_millis);
            webhook.disabled_at = (!enabled).then_some(since);
        }
        webhook.failing_since = None;
        if webhook.disabled_at.is_none() || body.enabled.is_some() {
            webhook.problem = None;
        }
        if api.store.change_webhook(&webhook, OVERLAP, REPEAT).await? {
            return Ok(Json(WebhookState::new(webhook, rotates)));
        }
    }
    Err(ApiError::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "contended",
        "other requests change the webhook; nothing was changed",
    )
    .retry_after(1))
}

/// Delete a webhook
#[utoipa::path(
    delete, path = "/webhooks/{id}", tag = "events", operation_id = "delete_webhook", params(openapi::WebhookPath),
    responses(
        (status = 204, description = "Deleted"),
        openapi::ReadErrors, openapi::WriteErrors,
        (status = 404, response = openapi::NotFound),
    )
)]
pub(super) async fn delete(
    State(api): State<Arc<Api>>,
    Path(id): Path<String>,
    _: StrictQuery<NoFields>,
) -> Result<StatusCode, ApiError> {
    are_on(&api)?;
    if api.store.delete_webhook(parsed(&id)?).await? {
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(unknown())
}

/// What a test has found.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct WebhookTested {
    /// Whether the receiver has answered 2xx.
    delivered: bool,
    /// The status of its answer.
    status: Option<u16>,
    /// Why there was no answer.
    problem: Option<String>,
}

/// Send a message without events to a webhook
///
/// Its type is `webhook.test`. It is sent once, also to a webhook that is disabled.
#[utoipa::path(
    post, path = "/webhooks/{id}/test", tag = "events", operation_id = "test_webhook", params(openapi::WebhookPath),
    responses(
        (status = 200, description = "What the receiver has answered", body = WebhookTested),
        openapi::ReadErrors, openapi::WriteErrors,
        (status = 404, response = openapi::NotFound),
    )
)]
pub(super) async fn test(
    State(api): State<Arc<Api>>,
    Path(id): Path<String>,
    _: StrictQuery<NoFields>,
) -> Result<Json<WebhookTested>, ApiError> {
    let webhook = find(&api, parsed(&id)?).await?;
    let now = humantime::format_rfc3339_millis(now()).to_string();
    let body = Body {
        r#type: "webhook.test",
        timestamp: &now,
        data: json!({"events": [], "cursor": webhook.position.to_string()}),
    };
    let message = Message::signed(&webhook, format!("msg_{}", Uuid::now_v7().simple()), &body);
    let sent = api.webhooks.post(&webhook.url, &message).await;
    let status = sent.as_ref().ok().copied();
    Ok(Json(WebhookTested {
        delivered: status.is_some_and(|status| status.is_success()),
        status: status.map(|status| status.as_u16()),
        problem: sent.err(),
    }))
}

fn are_on(api: &Api) -> Result<(), ApiError> {
    let is_on = api.followers.is_some();
    is_on.then_some(()).ok_or_else(super::events::are_off)
}

async fn all(api: &Api) -> Result<Vec<Webhook>, ApiError> {
    are_on(api)?;
    Ok(api.store.webhooks().await?)
}

async fn find(api: &Api, id: Uuid) -> Result<Webhook, ApiError> {
    let mut all = all(api).await?.into_iter();
    all.find(|webhook| webhook.id == id).ok_or_else(unknown)
}

fn parsed(id: &str) -> Result<Uuid, ApiError> {
    Uuid::parse_str(id).map_err(|_| unknown())
}

fn unknown() -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "unknown-webhook", "no such webhook")
}

fn checked(api: &Api, url: String) -> Result<String, ApiError> {
    if url.len() > MAX_URL {
        return Err(ApiError::invalid(format!("url: more than {MAX_URL} bytes")));
    }
    let problem = api.webhooks.check(&url).err();
    problem.map_or(Ok(url), |problem| {
        Err(ApiError::invalid(format!("url: {problem}")))
    })
}

fn joined(types: Vec<Wanted>) -> String {
    let mut names: Vec<_> = types.into_iter().map(|wanted| wanted.0).collect();
    names.sort_unstable();
    names.dedup();
    names.join(",")
}

fn secret() -> Result<String, ApiError> {
    new_secret().map_err(|error| ApiError::internal(error.to_string()))
}
