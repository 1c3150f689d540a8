//! What operations did, in stock of both homes.

use std::time::{SystemTime, UNIX_EPOCH};

use super::StoreRouter;
use crate::sql::CLOCK_MARGIN;
use crate::{Result, StoreError};
use stocklock_core::stock::{Home, Movement, OperationFilter, OperationStatus};

impl StoreRouter {
    /// What the SQL ledger has of the operations. `deadline`: when their callers were answered at the
    /// latest, in milliseconds since 1970; `None` if that is not known.
    ///
    /// # Errors
    /// A store does not answer. [`StoreError::NoRedis`] if they may be in a Redis that is not
    /// configured.
    pub async fn operations(
        &self,
        of: &OperationFilter,
        deadline: Option<i64>,
    ) -> Result<(OperationStatus, Vec<Movement>)> {
        let mut found = self.sql.operations(of).await?;
        if found.is_empty() {
            // Without a question to the servers, if they would only confirm it.
            let Some(deadline) = deadline.filter(|deadline| *deadline < now()) else {
                return Ok((OperationStatus::Pending, found));
            };
            // The journals first: what leaves them is in SQL.
            if !self.is_applied_past(deadline).await? {
                return Ok((OperationStatus::Pending, found));
            }
            match self.sql.final_operations(of, deadline).await? {
                None => return Ok((OperationStatus::Pending, found)),
                Some(nothing) if nothing.is_empty() => {
                    return Ok((OperationStatus::NotRecorded, nothing));
                }
                Some(late) => found = late,
            }
        }
        Ok((OperationStatus::Committed, found))
    }

    async fn is_applied_past(&self, deadline: i64) -> Result<bool> {
        match &self.redis {
            Some(redis) => {
                let past = deadline.saturating_add(CLOCK_MARGIN);
                redis.is_applied_past(past).await
            }
            None if self.sql.has_home(Home::Redis).await? => Err(StoreError::NoRedis),
            None => Ok(true),
        }
    }
}

/// The clock of this process, in milliseconds since 1970.
#[expect(
    clippy::disallowed_methods,
    reason = "it only saves questions to the servers, whose clocks decide"
)]
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |time| {
        i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
    })
}
