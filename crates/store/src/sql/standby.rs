//! What the ledger has may be missing at a synchronous standby: see [`super::pool::commit_warnings`].
//!
//! Guarantee: no answer says that an operation is recorded before a later commit has waited for the
//! standby. So a failover loses nothing that was acknowledged, whichever replica is asked. That holds
//! also if waits for the standby are cancelled, sessions are ended, or the primary restarts.
//! The same holds for events that are handed out.

use std::time::Duration;

use tokio::time::timeout;

use super::SqlStore;
use super::dialect::Dialect;
use super::errors::unavailable;
use crate::{Result, StoreError};
use stocklock_core::ports::{AttemptOutcome, BatchAnswer, BatchAttempt};
use stocklock_core::stock::Movement;

/// How long a reader of events waits for its turn to wait for the standby.
const TURN: Duration = Duration::from_secs(5);

impl<D: Dialect> SqlStore<D> {
    /// The movements that were found, when the standby has them.
    pub(super) async fn at_standby(&self, found: Vec<Movement>) -> Result<Vec<Movement>> {
        if !found.is_empty() {
            let waited = self.wait_for_standby().await;
            waited.map_err(StoreError::outcome_unknown)?;
        }
        Ok(found)
    }

    /// For answers of an attempt that is not known to have committed. Those that report a recorded
    /// operation wait for the standby. If that wait fails, only they become unknown outcomes: the others
    /// keep their answers.
    pub(super) async fn with_recorded(&self, mut answers: Vec<BatchAnswer>) -> BatchAttempt {
        let is_recorded = |answer: &BatchAnswer| matches!(answer, Ok(AttemptOutcome::Recorded(_)));
        if answers.iter().any(is_recorded)
            && let Err(error) = self.wait_for_standby().await
        {
            let error = StoreError::outcome_unknown(error);
            for answer in answers.iter_mut().filter(|one| is_recorded(one)) {
                *answer = Err(error.clone());
            }
        }
        BatchAttempt::Answered(answers)
    }

    /// Returns when the synchronous standby has the feed up to a row that is visible. A failover would give the number
    /// of a row that only the primary has to another event.
    pub(super) async fn feed_at_standby(&self, seq: i64) -> Result<()> {
        // One wait for all that read the same rows.
        let turn = timeout(TURN, self.feed_at_standby.lock()).await;
        let busy = |_elapsed| unavailable("other requests wait for the standby");
        let mut confirmed = turn.map_err(busy)?;
        if seq > *confirmed {
            let waited = self.wait_for_standby().await;
            waited.map_err(|error| match error {
                StoreError::OutcomeUnknown(source, _) => unavailable(source),
                other => other,
            })?;
            *confirmed = seq;
        }
        Ok(())
    }

    /// Returns when the synchronous standby, if there is one, has what is visible now.
    ///
    /// # Errors
    /// The database does not answer, or the wait ended early.
    pub(super) async fn wait_for_standby(&self) -> Result<()> {
        let Some([standby, change]) = D::STANDBY else {
            return Ok(());
        };
        // Not on a connection for writes: sales need those.
        let found: Vec<(i64,)> = self.select(&self.readers, standby, &[]).await?;
        if found.is_empty() {
            return Ok(());
        }
        self.write(async {
            let mut tx = self.writers.begin(D::texts().begin.as_str()).await?;
            tx.change(change, &[]).await?;
            tx.commit().await
        })
        .await
    }
}
