//! Looking into locks, and taking them away. The database has no queue, so there are no waiters to see.

use std::time::Duration;

use async_trait::async_trait;

use super::connections::Use;
use super::session::{Stored, revocation};
use super::{Sql, SqlBackend, escaped};
use crate::backend::{Admin, Claim};
use crate::claims::{Claimant, LockView};
use crate::shared::error::BackendError;
use crate::shared::nonce::Nonce;
use crate::shared::token::Token;

/// No negative time: the token of a lock may be ahead of the clock.
fn microseconds(count: i64) -> Duration {
    Duration::from_micros(u64::try_from(count).unwrap_or(0))
}

impl Sql {
    /// Returns the buried nonces and revocations in the rows of these locks, or nothing if the database does
    /// not answer: the answer to the request before it counts, whatever the reason of a loss.
    pub(super) async fn gone(&self, names: Vec<String>) -> Vec<String> {
        let asked = async {
            let connected = self.connected(Use::Urgent).await?;
            let gone = self.connections.send(connected, move |session| {
                Box::pin(async move { session.gone(&names).await })
            });
            gone.await
        };
        asked.await.unwrap_or_else(|error: BackendError| {
            tracing::debug!(%error, "the reason of a loss is unknown");
            Vec::new()
        })
    }

    pub(super) async fn read(&self, name: &str) -> Result<Option<Stored>, BackendError> {
        let name = escaped(name);
        let connected = self.connected(Use::Urgent).await?;
        let read = self.connections.send(connected, move |session| {
            Box::pin(async move { session.read(&name).await })
        });
        read.await
    }
}

#[async_trait]
impl Admin for SqlBackend {
    async fn ping(&self) -> Result<(), BackendError> {
        let connected = self.0.connected(Use::Urgent).await?;
        let ping = self.0.connections.send(connected, |session| session.ping());
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
                age: Some(microseconds(row.age)),
                expires_in: Some(microseconds(row.rest)),
                owner: Some(row.owner),
            });
        }
        Ok(view)
    }

    async fn revoke(&self, name: &str, nonce: Nonce, _: Claim) -> Result<bool, BackendError> {
        let (row, holder) = (escaped(name), nonce.to_string());
        let connected = self.0.connected(Use::Urgent).await?;
        let revoked = self.0.connections.send(connected, move |session| {
            Box::pin(async move { session.revoke(&row, &holder).await })
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
}
