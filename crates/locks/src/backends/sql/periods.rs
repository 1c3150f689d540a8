//! Periods of jobs: a lock that is neither renewed nor released, and whose lease is the period.

use std::time::Duration;

use async_trait::async_trait;

use super::connections::Use;
use super::session::Ask;
use super::{SqlBackend, escaped, microseconds};
use crate::backend::Periods;
use crate::shared::error::BackendError;
use crate::shared::nonce::Nonce;

/// The start of the name of a period's row. No escaped name begins like this.
const PREFIX: &str = r"\:";

#[async_trait]
impl Periods for SqlBackend {
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
        let connected = self.0.connected(Use::Urgent).await?;
        let row = self.0.connections.send(connected, move |session| {
            Box::pin(async move { session.acquire(&ask).await })
        });
        let removed = || BackendError::transient("the row of the period was removed");
        let (starter, _token, rest, _buried) = row.await?.ok_or_else(removed)?;
        let rest = Duration::from_micros(u64::try_from(rest).unwrap_or(0));
        Ok((starter != nonce).then_some(rest))
    }
}
