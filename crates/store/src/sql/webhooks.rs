//! The webhooks of a database, and how far each has got.
//!
//! A position moves only from the one that its sender has read, and only if no request has changed the webhook since.
//! So two senders cannot both move it, and a change by a request is never overwritten.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use uuid::Uuid;

use super::SqlStore;
use super::dialect::Dialect;
use super::rows::rows;
use super::statement::{Statement, Value, values};
use crate::Result;
use stocklock_core::stock::EventCursor;

rows! {
    /// A row of `webhook`.
    struct WebhookRow {
        id: String,
        url: String,
        secret: String,
        old_secret: Option<String>,
        old_until: Option<i64>,
        types: String,
        low_at: Option<i64>,
        revision: i64,
        position: String,
        batch_end: Option<String>,
        created_at: i64,
        failing_since: Option<i64>,
        problem: Option<String>,
        disabled_at: Option<i64>,
        now: i64,
    }
}

/// Who is sent the events. Times are milliseconds since 1970. `Debug` does not show the secrets.
#[derive(Clone)]
pub struct Webhook {
    /// Its id.
    pub id: Uuid,
    /// The address that the events are sent to.
    pub url: String,
    /// The key of the signatures.
    pub secret: String,
    /// The one before, while it is also used.
    pub old_secret: Option<String>,
    /// The types of events that are sent, with commas between them; empty: all.
    pub types: String,
    /// The bound of `low`.
    pub low_at: Option<i64>,
    /// Grows with each change by a request, and when it is disabled.
    pub revision: i64,
    /// After the last event that has arrived.
    pub position: EventCursor,
    /// The end of the batch that is being sent.
    pub batch_end: Option<EventCursor>,
    /// When it was created.
    pub created_at: i64,
    /// Since when nothing has arrived.
    pub failing_since: Option<i64>,
    /// What the last attempt has met.
    pub problem: Option<String>,
    /// When it was disabled.
    pub disabled_at: Option<i64>,
}

impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut webhook = f.debug_struct("Webhook");
        webhook.field("id", &self.id).finish_non_exhaustive()
    }
}

impl WebhookRow {
    /// The webhook. `None` if a later release has written it in a way that this one does not know.
    fn webhook(self) -> Option<Webhook> {
        let is_used = self.old_until.is_some_and(|until| self.now < until);
        let cursor = |text: &str| EventCursor::parse(text);
        Some(Webhook {
            id: Uuid::parse_str(&self.id).ok()?,
            url: self.url,
            secret: self.secret,
            old_secret: self.old_secret.filter(|_| is_used),
            types: self.types,
            low_at: self.low_at,
            revision: self.revision,
            position: cursor(&self.position)?,
            batch_end: match self.batch_end {
                Some(end) => Some(cursor(&end)?),
                None => None,
            },
            created_at: self.created_at,
            failing_since: self.failing_since,
            problem: self.problem,
            disabled_at: self.disabled_at,
        })
    }
}

/// Reads and changes the webhooks of a database.
#[async_trait]
pub trait Webhooks: Send + Sync {
    /// All of them, the oldest first.
    async fn webhooks(&self) -> Result<Vec<Webhook>>;

    /// Stores a new one. Its revision is 1.
    async fn add_webhook(&self, webhook: &Webhook) -> Result<()>;

    /// Stores what a request has changed: address, secret, filters, whether it is disabled, and the problem. A
    /// replaced secret stays in use for `overlap`. If another one was replaced less than `repeat` ago, that older one
    /// stays in use instead. Returns whether the revision was still that of `webhook`.
    async fn change_webhook(
        &self,
        webhook: &Webhook,
        overlap: Duration,
        repeat: Duration,
    ) -> Result<bool>;

    /// Moves it to a position and the end of a batch. Returns whether it was where `webhook` is.
    async fn move_webhook(
        &self,
        webhook: &Webhook,
        position: EventCursor,
        batch_end: Option<EventCursor>,
    ) -> Result<bool>;

    /// Records a failure, and disables the webhook if it has failed for longer than `patience`, or `is_gone`. No change
    /// that was read before can enable it then.
    async fn fail_webhook(
        &self,
        webhook: &Webhook,
        problem: &str,
        patience: Duration,
        is_gone: bool,
    ) -> Result<()>;

    /// Deletes it. Returns whether it was there.
    async fn delete_webhook(&self, id: Uuid) -> Result<bool>;
}

#[async_trait]
impl<D: Dialect> Webhooks for SqlStore<D> {
    async fn webhooks(&self) -> Result<Vec<Webhook>> {
        let rows: Vec<WebhookRow> = self
            .select(&self.readers, &D::texts().webhooks, &[])
            .await?;
        Ok(rows.into_iter().filter_map(WebhookRow::webhook).collect())
    }

    async fn add_webhook(&self, webhook: &Webhook) -> Result<()> {
        let (id, position) = (webhook.id.to_string(), webhook.position.to_string());
        let columns = values![
            &*id,
            &*webhook.url,
            &*webhook.secret,
            &*webhook.types,
            webhook.low_at,
            &*position,
            webhook.created_at,
        ];
        let inserted = self.change_rows(&D::texts().insert_webhook, &columns);
        inserted.await.map(drop)
    }

    async fn change_webhook(
        &self,
        webhook: &Webhook,
        overlap: Duration,
        repeat: Duration,
    ) -> Result<bool> {
        let id = webhook.id.to_string();
        let columns = values![
            &*id,
            webhook.revision,
            &*webhook.url,
            &*webhook.secret,
            millis(overlap),
            millis(overlap.saturating_sub(repeat)),
            &*webhook.types,
            webhook.low_at,
            webhook.disabled_at,
            webhook.problem.as_deref(),
        ];
        let changed = self.change_rows(&D::texts().change_webhook, &columns);
        Ok(changed.await? > 0)
    }

    async fn move_webhook(
        &self,
        webhook: &Webhook,
        position: EventCursor,
        batch_end: Option<EventCursor>,
    ) -> Result<bool> {
        let (id, old) = (webhook.id.to_string(), webhook.position.to_string());
        let (new, end) = (position.to_string(), batch_end.map(|end| end.to_string()));
        let old_end = webhook
            .batch_end
            .map_or_else(String::new, |end| end.to_string());
        let columns = values![
            &*id,
            webhook.revision,
            &*old,
            &*new,
            end.as_deref(),
            &*old_end
        ];
        let moved = self.change_rows(&D::texts().move_webhook, &columns);
        Ok(moved.await? > 0)
    }

    async fn fail_webhook(
        &self,
        webhook: &Webhook,
        problem: &str,
        patience: Duration,
        is_gone: bool,
    ) -> Result<()> {
        let (id, patience) = (webhook.id.to_string(), millis(patience));
        let problem: String = problem.chars().take(200).collect();
        let columns = values![
            &*id,
            webhook.revision,
            &*problem,
            patience,
            i64::from(is_gone),
        ];
        let failed = self.change_rows(&D::texts().fail_webhook, &columns);
        failed.await.map(drop)
    }

    async fn delete_webhook(&self, id: Uuid) -> Result<bool> {
        let id = id.to_string();
        let columns = values![&*id];
        let deleted = self.change_rows(&D::texts().delete_webhook, &columns);
        Ok(deleted.await? > 0)
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

impl<D: Dialect> SqlStore<D> {
    /// Executes one statement in its own transaction, and returns how many rows it changed.
    pub(super) async fn change_rows(
        &self,
        statement: &Statement,
        values: &[Value<'_>],
    ) -> Result<u64> {
        self.write(async {
            let mut tx = self.writers.begin(D::texts().begin.as_str()).await?;
            let changed = tx.change(statement, values).await?;
            tx.commit().await?;
            Ok(changed)
        })
        .await
    }
}
