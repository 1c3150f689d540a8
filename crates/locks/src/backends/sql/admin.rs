//! Looking into locks, taking them away, and the periods of jobs. The database has no queue, so there are no waiters to see.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;

use super::connections::Use;
use super::session::{Ask, Stored, revocation};
use super::{Sql, SqlBackend, escaped, microseconds};
use crate::backend::{Admin, Claim};
use crate::claims::{Claimant, LockView};
use crate::shared::error::BackendError;
use crate::shared::nonce::Nonce;
use crate::shared::token::Token;

/// The start of the name of a period's row. No escaped name begins like this.
const PREFIX: &str = r"\:";

/// No negative time: the token of a lock may be ahead of the clock.
fn positive(count: i64) -> Duration {
    Duration::from_micros(u64::try_from(count).unwrap_or(0))
}

impl Sql {
    /// Returns the buried nonces and revocations in the rows of these locks, or nothing if the database does
    /// not answer: the answer to the request before it counts, whatever the reason of a loss.
    pub(super) async fn gone(&self, names: Vec<String>) -> Vec<String> {
        let gone = self.ask(Use::Urgent, move |session| {
            async move { session.gone(&names).await }.boxed()
        });
        gone.await.unwrap_or_else(|error| {
            tracing::debug!(%error, "the reason of a loss is unknown");
            Vec::new()
        })
    }

    pub(super) async fn read(&self, name: &str) -> Result<Option<Stored>, BackendError> {
        let name = escaped(name);
        let read = self.ask(Use::Urgent, move |session| {
            async move { session.read(&name).await }.boxed()
        });
        read.await
    }
}

#[async_trait]
impl Admin for SqlBackend {
    async fn ping(&self) -> Result<(), BackendError> {
        let ping = self.0.ask(Use::Urgent, |session| session.ping().boxed());
        ping.await
    }

    async fn inspect(&self, name: &str, _: Claim) -> Result<LockView, BackendError> {
        let stored = self.0.read(name).await?;
        let mut view = LockView::default();
        if let Some(row) = stored.filter(|row| row.rest > 0 && !row.nonce.is_empty()) {
            let foreign = || BackendError::permanent(format!("`{}` is no nonce", row.nonce));
            view.holders.push(Claimant {
                nonce: Nonce::parse(&row.nonce).ok_or_else(foreign)?,
                permits: 1,
                token: Some(Token::new(row.token)),
                // The token is the time of the acquisition.
                age: Some(positive(row.age)),
                expires_in: Some(positive(row.rest)),
                owner: Some(row.owner),
            });
        }
        Ok(view)
    }

    async fn revoke(&self, name: &str, nonce: Nonce, _: Claim) -> Result<bool, BackendError> {
        let (row, holder) = (escaped(name), nonce.to_string());
        let revoked = self.0.ask(Use::Urgent, move |session| {
            async move { session.revoke(&row, &holder).await }.boxed()
        });
        if revoked.await? {
            self.0.sweep_if_due();
            return Ok(true);
        }
        // The answer to an earlier request may have been lost.
        let stored = self.0.read(name).await?;
        let revocation = revocation(&nonce.to_string());
        Ok(stored.is_some_and(|stored| stored.gone.contains(&revocation)))
    }

    /// A lock that is neither renewed nor released, and whose lease is the period.
    async fn begin_period(
        &self,
        name: &str,
        nonce: Nonce,
        period: Duration,
    ) -> Result<Option<Duration>, BackendError> {
        let nonce = nonce.to_string();
        let ask = Ask {
            name: format!("{PREFIX}{}", escaped(name)),
            nonce: nonce.clone(),
            owner: self.0.owner.clone(),
            lease: microseconds(period),
            floor: 0,
            is_waiting: false,
        };
        let row = self.0.ask(Use::Urgent, move |session| {
            async move { session.acquire(&ask).await }.boxed()
        });
        let removed = || BackendError::transient("the row of the period was removed");
        let (starter, _token, rest, _buried) = row.await?.ok_or_else(removed)?;
        Ok((starter != nonce).then_some(positive(rest)))
    }
}
