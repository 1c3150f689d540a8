//! Sends the events to webhooks. One replica does so: it holds a lock in the database. Each webhook has one batch at a
//! time, in the order of the feed. The end of a batch is stored before the batch is sent, so a repeat, also by another
//! replica, is the same batch with the same id. A receiver gets each event at least once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use super::supervise::{Outage, supervise};
use crate::events::{EventBody, Follower, Followers, event_type};
use crate::http::Api;
use crate::webhooks::{Body, Message, now};
use stocklock_core::ports::StoreError;
use stocklock_core::stock::{Event, EventCursor, EventPage};
use stocklock_store::Webhook;

/// How many events a batch has at most.
const BATCH: u32 = 100;

/// The pause before the webhooks are listed again: how long a change by a request may take to count.
const LIST_PAUSE: Duration = Duration::from_secs(1);

/// The pause after a first failure, and the longest one.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_mins(5)];

/// A webhook that has failed for so long is disabled.
const PATIENCE: Duration = Duration::from_hours(5 * 24);

/// Sends while this replica is the sender, until `stop` is cancelled.
pub(super) async fn run(api: Arc<Api>, stop: CancellationToken) {
    let start = || campaign(Arc::clone(&api), stop.clone());
    supervise("the sender of webhooks", &stop, start).await;
}

async fn campaign(api: Arc<Api>, stop: CancellationToken) {
    if api.followers.is_none() {
        return stop.cancelled().await;
    }
    let leader = api.locks.leaders.lock("webhooks");
    let mut outage = Outage::default();
    loop {
        api.metrics.webhooks_disabled.set(0);
        tokio::select! {
            // It may be the leader no more, which is no failure.
            led = leader.clone().lead(async |_| lead(&api).await) => {
                let problem = "no replica can be chosen to send to webhooks; one will be later";
                outage.note(led.map(drop), problem);
            }
            () = stop.cancelled() => return,
        }
        tokio::select! {
            () = sleep(LIST_PAUSE) => {}
            () = stop.cancelled() => return,
        }
    }
}

/// Runs a task for each webhook. It ends when the webhook has changed or its old secret is not used any more, and is
/// started again.
async fn lead(api: &Arc<Api>) {
    let mut tasks: HashMap<(Uuid, i64, bool), AbortOnDropHandle<()>> = HashMap::new();
    loop {
        match api.store.webhooks().await {
            Ok(webhooks) => {
                // A request that disables a webhook clears its problem.
                let has_failed =
                    |one: &&Webhook| one.disabled_at.is_some() && one.problem.is_some();
                let failed = webhooks.iter().filter(has_failed).count();
                let failed = failed.try_into().unwrap_or(i64::MAX);
                api.metrics.webhooks_disabled.set(failed);
                let key = |one: &Webhook| (one.id, one.revision, one.old_secret.is_some());
                let enabled = webhooks.into_iter().filter(|one| one.disabled_at.is_none());
                let mut enabled: HashMap<_, _> = enabled.map(|one| (key(&one), one)).collect();
                tasks.retain(|key, task| enabled.remove(key).is_some() && !task.is_finished());
                for (key, webhook) in enabled {
                    let task = tokio::spawn(deliver(Arc::clone(api), webhook));
                    tasks.insert(key, AbortOnDropHandle::new(task));
                }
            }
            Err(error) => tracing::debug!(%error, "the webhooks cannot be listed"),
        }
        sleep(LIST_PAUSE).await;
    }
}

/// Why a batch has not arrived.
enum Problem {
    /// It will be sent again.
    Failed(String),
    /// The database of this service does not answer, which is not the receiver's fault.
    Database(StoreError),
    /// The webhook is not wanted any more, or can never go on.
    Gone(String),
    /// The webhook is not where this task has left it.
    Moved,
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        Self::Database(error)
    }
}

async fn deliver(api: Arc<Api>, webhook: Webhook) {
    let Some(follower) = api.followers.as_ref().map(Followers::watch) else {
        return;
    };
    let mut delivery = Delivery {
        api: &api,
        webhook,
        follower,
    };
    let [mut pause, longest] = PAUSES;
    loop {
        let (problem, is_gone) = match delivery.next().await {
            Ok(()) => {
                pause = PAUSES[0];
                continue;
            }
            Err(Problem::Failed(problem)) => (problem, false),
            Err(Problem::Gone(problem)) => (problem, true),
            Err(Problem::Database(error)) => {
                tracing::debug!(%error, "the events of a webhook cannot be read");
                sleep(LIST_PAUSE).await;
                continue;
            }
            Err(Problem::Moved) => return,
        };
        let webhook = &delivery.webhook;
        tracing::debug!(id = %webhook.id, problem, "a webhook was not reached");
        api.metrics.webhook_failures.inc();
        let failed = api.store.fail_webhook(webhook, &problem, PATIENCE, is_gone);
        if let Err(error) = failed.await {
            tracing::debug!(%error, "the failure of a webhook cannot be recorded");
        }
        if is_gone {
            return;
        }
        // Receivers that fail together are not asked together again.
        sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
        pause = (2 * pause).min(longest);
    }
}

/// When the change of an event was made, on the database's clock.
fn since(event: &Event) -> Option<Instant> {
    let made = humantime::parse_rfc3339(&event.movement.created_at).ok()?;
    let age = now().duration_since(made).unwrap_or_default();
    Instant::now().checked_sub(age)
}

struct Delivery<'a> {
    api: &'a Api,
    webhook: Webhook,
    follower: Follower,
}

impl Drop for Delivery<'_> {
    fn drop(&mut self) {
        self.api.metrics.webhook_lag.clear(self.webhook.id);
    }
}

impl Delivery<'_> {
    /// Sends the next batch, or moves on over events that the webhook does not want, or waits for events.
    async fn next(&mut self) -> Result<(), Problem> {
        let position = self.webhook.position;
        let page = self.api.store.events(Some(position), None, BATCH).await?;
        let (mut events, cursor) = match page {
            EventPage::Events { events, cursor, .. } => (events, cursor),
            EventPage::Starting => {
                sleep(LIST_PAUSE).await;
                return Ok(());
            }
            EventPage::Expired => {
                let problem = "cursor-expired: the next events are not kept any more";
                return Err(Problem::Gone(problem.to_owned()));
            }
        };
        let lag = &self.api.metrics.webhook_lag;
        if cursor == position {
            lag.clear(self.webhook.id);
            self.follower.wait_beyond(position.seq).await;
            return Ok(());
        }
        if let Some(since) = events.first().and_then(since) {
            lag.set(self.webhook.id, since);
        }
        // The feed may have more by now than when the batch was stored.
        let place = |end| events.iter().position(|event| event.cursor == end);
        let last = self.webhook.batch_end.and_then(place);
        let end = self.webhook.batch_end.filter(|_| last.is_some());
        let end = end.unwrap_or(cursor);
        events.truncate(last.map_or(events.len(), |last| last + 1));
        events.retain(|event| self.wants(event));
        if events.is_empty() {
            return self.move_to(end, None).await;
        }
        if self.webhook.batch_end != Some(end) {
            self.move_to(position, Some(end)).await?;
        }
        self.send(events, end).await?;
        self.move_to(end, None).await
    }

    fn wants(&self, event: &Event) -> bool {
        if !self.api.config.service.shard.has(&event.movement.sku) {
            return false;
        }
        let name = event_type(&event.movement.kind);
        let mut types = self.webhook.types.split(',');
        self.webhook.types.is_empty() || types.any(|wanted| wanted == name || wanted == "stock.*")
    }

    async fn move_to(&mut self, to: EventCursor, end: Option<EventCursor>) -> Result<(), Problem> {
        if !self.api.store.move_webhook(&self.webhook, to, end).await? {
            return Err(Problem::Moved);
        }
        (self.webhook.position, self.webhook.batch_end) = (to, end);
        Ok(())
    }

    async fn send(&self, events: Vec<Event>, end: EventCursor) -> Result<(), Problem> {
        let webhook = &self.webhook;
        // After a deployment was divided, both parts have the same webhook and the same positions.
        let shard = self.api.config.service.shard;
        let shard = if shard.is_part() {
            format!("_{shard}").replace('/', ".")
        } else {
            String::new()
        };
        let id = format!(
            "msg_{}_{}_{}_{}{shard}",
            webhook.id.simple(),
            webhook.revision,
            webhook.position.to_string().replace(';', "."),
            end.to_string().replace(';', ".")
        );
        let timestamp = events.last().map(|event| event.movement.created_at.clone());
        let bodies = events.into_iter();
        let bodies: Vec<_> = bodies
            .map(|event| EventBody::new(event, webhook.low_at))
            .collect();
        let body = Body {
            r#type: "stock.events",
            // The same in a repeat.
            timestamp: &timestamp.unwrap_or_default(),
            data: json!({"events": bodies, "cursor": end.to_string()}),
        };
        let message = Message::signed(webhook, id, &body);
        let sent = self.api.webhooks.post(&webhook.url, &message).await;
        match sent.map_err(Problem::Failed)? {
            status if status.is_success() => Ok(()),
            status if status.as_u16() == 410 => Err(Problem::Gone(format!("status {status}"))),
            status => Err(Problem::Failed(format!("status {status}"))),
        }
    }
}
